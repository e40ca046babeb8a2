"""The host's loop over the rounds of experiments that run together: evaluate, log, checkpoint, report."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config.files import write_json
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client_axis import place_data
from rscfed_jax.core.metrics import Metrics, evaluate_cells
from rscfed_jax.report.plots import plot_curves, plot_pseudo_labels
from rscfed_jax.runner.build import Simulation
from rscfed_jax.runner.choice import Choice
from rscfed_jax.runner.client_accuracy import client_accuracies
from rscfed_jax.runner.client_states import ClientStates
from rscfed_jax.runner.compiled import compiled
from rscfed_jax.runner.experiment import Experiment, restore_all, save_all
from rscfed_jax.runner.history import DivergedError, History, check_finite, summarise
from rscfed_jax.runner.population import Stage
from rscfed_jax.runner.processes import any_of_them
from rscfed_jax.runner.progress import RunProgress
from rscfed_jax.runner.result import Result

ROUNDS_PER_CALL = 10  # the progress moves at least this often


class Stopped(Exception):  # noqa: N818 - as StopIteration, no error
    """The run was asked to stop and has done so; the message says what was saved."""


class Loop:
    """The host's loop over chunks of rounds of experiments that run as one program."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        simulation: Simulation,
        choice: Choice,
        shown: RunProgress,
        stop: Callable[[], bool],
        *,
        capacity: int,
        kept: ClientStates | None = None,
    ):
        self.experiments, self.simulation, self.choice = experiments, simulation, choice
        self.shown, self.stop = shown, stop
        # The first speaks for all in what they must have in common: rounds, evaluations, checkpoints, warm-up.
        self.config = experiments[0].config
        self.axis, self.network = simulation.algorithm.axis, simulation.algorithm.network
        self.state, self.stage = simulation.state, simulation.stage
        self.kept = kept  # the clients' states, if the host keeps them
        self.capacity = capacity  # rounds of one call
        self.seconds = self.compile_seconds = 0.0  # of the rounds of this process, and before them
        self.compilations = 0
        self.evaluated: tuple[int, Any] | None = None  # a round, and what was found after it
        self.round = self.start = 0  # the last round done, and that of the checkpoint that this process resumed from

    def run(self) -> list[Result | None]:
        """From the start or the newest checkpoint to the last round."""
        config, shown = self.config, self.shown
        resumed = self._restore()
        finished = self.round == config.rounds
        if finished:
            shown.say(f"{self.experiments[0].name} is finished: {self.round} rounds", always=True)
        elif resumed:
            shown.say(f"resumed at round {self.round}" if self.round >= 0 else "resumed in the warm-up")
        missing = self._classes_without_test_samples()
        if not resumed:
            self._begin()
        if self.round < 0 or not resumed:
            self._warm_up()
        self.start = self.round
        if not finished and any(experiment.active for experiment in self.experiments):
            shown.say("compiling the round")
            self._drive(self._program(self.simulation.algorithm), config.rounds)
        if any(each.active and each.history.records[-1]["round"] < config.rounds for each in self.experiments):
            # Not in the checkpoint: a run with more rounds, resumed from here, would not evaluate at this round.
            self._log()
        self._wait()
        return self._results(finished=finished, missing=missing)

    def _classes_without_test_samples(self) -> list[int]:
        labels = self.experiments[0].federation.dataset.test_labels
        missing = sorted(set(range(self.experiments[0].federation.dataset.classes)) - set(labels.tolist()))
        if missing:
            self.shown.say(f"the test set holds no sample of class {', '.join(map(str, missing))}: AUC leaves them out")
        return missing

    def _begin(self) -> None:
        """An empty history, and the warm-up's rounds before round 0.

        They are numbered apart, so that the run itself does not draw the same batches again.
        """
        models = self.axis.to_host(self.state.model)
        for number, experiment in enumerate(self.experiments):
            own = jax.tree.map(lambda leaf, number=number: leaf[number], models)
            experiment.history = History(best_model=own, clients=self.config.holders)
            if experiment.directory is not None:
                experiment.directory.rewrite_metrics([])
        self.round = -self.config.warmup_rounds
        self.state = self.state._replace(round=self.state.round + self.round)

    def _warm_up(self) -> None:
        """Rounds on the labeled clients alone, after which the run starts as if this were its initial model."""
        if self.round < 0:
            self.shown.say(f"warm-up: {-self.round} rounds on the labeled clients alone")
            self._drive(self._program(self.simulation.warmup), 0)
            self.state = self.state._replace(initial_model=jax.tree.map(jnp.copy, self.state.model))
        self._log()
        if self.config.warmup_rounds:
            self._save()

    def _drive(self, program: Any, last: int) -> None:
        """Runs up to the round `last`, with evaluations, checkpoints and stops; a warm-up is not evaluated.

        The state after a warm-up's last round is not saved here: it is not yet that of round 0.
        """
        saved = self.round
        while self.round < last and any(experiment.active for experiment in self.experiments):
            until, evaluates, saves = self._cut(self.round, saved, last)
            following = self._cut(until, until if saves else saved, last)[0]
            self._advance(program, until - self.round, following - until)
            if evaluates:
                self._log()
            stopping = any_of_them(self.stop()) and until < last
            if stopping or (saves and until != 0):
                self._save()
                saved = until
            if stopping:
                self._wait()
                any_of_them(False)  # the others wait until the first has written
                raise Stopped(f"stopped after round {until}" if until >= 0 else "stopped in the warm-up")
            if until > 0:
                pace = self.seconds / (until - self.start)
                self.shown.update(until, accuracy=self._best_accuracy(), seconds_per_round=pace)

    def _cut(self, round_: int, saved: int, last: int) -> tuple[int, bool, bool]:
        """Where the chunk of rounds after `round_` ends, and whether an evaluation and a checkpoint follow it."""
        config = self.config
        evaluation = last + 1 if last == 0 else (round_ // config.eval_every + 1) * config.eval_every
        until = min(evaluation, saved + config.checkpoint_every, round_ + self.capacity, last)
        return until, until == evaluation, until in (saved + config.checkpoint_every, last)

    def _program(self, algorithm: Algorithm) -> Any:
        began = time.perf_counter()
        simulation = self.simulation._replace(state=self.state)
        if self.stage is not None:
            if algorithm is not self.stage.algorithm:
                self.stage = Stage(self.stage.population, algorithm, capacity=self.capacity)
            self.state = self.stage.fitted(self.state)
            data = place_data(self.axis, self.stage.blank())
            simulation = simulation._replace(state=self.state, data=data, stage=self.stage)
        program, new = compiled(algorithm, simulation, capacity=self.capacity)
        self.compile_seconds += time.perf_counter() - began
        self.compilations += new
        return program

    def _advance(self, program: Any, rounds: int, following: int) -> None:
        """Runs this many rounds and takes in their reports; a diverged experiment is left out from here on.

        `following` are the rounds that come after them at once.
        """
        began = time.perf_counter()
        data, hyper = self.simulation.data, self.simulation.hyper
        if self.stage is None or self.kept is None:
            self.state, reports = jax.block_until_ready(program(self.state, data, hyper, np.int32(rounds), None))
        else:
            then = (self.round + rounds, following) if following else None
            chunk = (self.round, rounds)
            self.state, reports = self.stage.advance(program, self.state, hyper, self.kept, chunk, then=then)
        seconds = time.perf_counter() - began
        first = self.round + 1
        self.round += rounds
        if first > 0:
            self.seconds += seconds
        reports = self.axis.to_host(reports)
        for number, experiment in self._active():
            experiment.history.seconds += seconds / len(self.experiments)
            own = jax.tree.map(lambda leaf, number=number: leaf[:rounds, number], reports)
            try:
                if first > 0:
                    experiment.history.add_rounds(own, first=first)
                else:
                    check_finite(own, first=first)
            except DivergedError as error:
                experiment.diverged = error
                if experiment.of_many:
                    self._put_aside(experiment, error)

    def _put_aside(self, experiment: Experiment, error: DivergedError) -> None:
        """Reports that one of many experiments has diverged, here and in its directory, so that it is skipped later."""
        self.shown.say(f"{experiment.name}: {error}; the others continue", always=True)
        if experiment.directory is not None:
            with experiment.directory.refusing():
                write_json(experiment.directory.diverged, {"round": self.round, "why": str(error)})

    def _active(self) -> Iterator[tuple[int, Experiment]]:
        """The experiments whose model is still finite, with their place in the state."""
        return ((number, each) for number, each in enumerate(self.experiments) if each.active)

    def _log(self) -> None:
        """Evaluates all models on the test set."""
        metrics, confusions = self._evaluate()
        models = self.axis.to_host(self.state.model)
        sent = self.axis.to_host({"down": self.state.models_down, "up": self.state.models_up})
        for number, experiment in self._active():
            model = jax.tree.map(lambda leaf, number=number: leaf[number], models)
            model_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
            counts = {f"models_{way}": int(count[number]) for way, count in sent.items()}
            counts |= {f"bytes_{way}": int(count[number]) * model_bytes for way, count in sent.items()}
            own = Metrics(*(value[number] for value in metrics))
            served = client_accuracies(confusions[number], experiment.mixtures)
            record = experiment.history.add_evaluation(self.round, own, served | counts, model)
            if experiment.directory is not None:
                experiment.directory.append_metrics(record)
            experiment.on_record(record)

    def _evaluate(self) -> tuple[Any, np.ndarray]:
        """Metrics and confusion matrices of all models on the test set, on the host; the last round's are kept."""
        if self.evaluated is None or self.evaluated[0] != self.round:
            found: Any = evaluate_cells(self.network, self.state.model, self.simulation.test, axis=self.axis)
            self.evaluated = (self.round, self.axis.to_host(found))
        return self.evaluated[1]

    def _best_accuracy(self) -> float:
        return max((each.history.records[-1]["accuracy"] for _, each in self._active()), default=float("nan"))

    def _save(self) -> None:
        save_all(self.experiments, self.axis, self.state, self.round, self.kept)

    def _wait(self) -> None:
        for experiment in self.experiments:
            if experiment.checkpoints is not None:
                experiment.checkpoints.wait()

    def _restore(self) -> bool:
        """Goes back to the newest checkpoint that all experiments have; whether there was one."""
        restored = restore_all(
            self.experiments, self.axis, self.state, lambda text: self.shown.say(text, always=True), self.kept
        )
        if restored is None:
            return False
        self.state, self.round = restored
        self.shown.begin_at(max(self.round, 0))
        return True

    def _results(self, *, finished: bool, missing: list[int]) -> list[Result | None]:
        """Writes the summaries."""
        pace = self.seconds / max(self.round - self.start, 1)
        confusions = self._evaluate()[1]
        models = self.axis.to_host(self.state.model)  # on the devices, a part of each would be a program of its own
        simulation = self.simulation._replace(state=self.state)
        results: list[Result | None] = [None] * len(self.experiments)
        for number, experiment in self._active():
            config, history, directory = experiment.config, experiment.history, experiment.directory
            summary = summarise(
                history,
                confusion=confusions[number],
                seconds_per_round=pace / len(self.experiments),
                compile_seconds=self.compile_seconds,
                devices=self.axis.devices,
                conv=self.choice.conv,
                chunk=self.choice.chunk,
                missing=missing,
            )
            if directory is not None and finished and directory.summary.exists():
                summary = directory.read_summary()
            elif directory is not None:
                with directory.refusing():
                    directory.diverged.unlink(missing_ok=True)
                    plot_curves({config.method: history.records}, directory.curve)
                    if "pseudo_labels" in summary:
                        plot_pseudo_labels({config.method: history.records}, directory.pseudo_labels)
                    write_json(directory.summary, summary)  # the last: a run that has it is finished
            model = jax.tree.map(lambda leaf, number=number: leaf[number], models)
            results[number] = Result(
                config, history.records, summary, model, history.best_model, confusions[number], simulation, number
            )
        return results
