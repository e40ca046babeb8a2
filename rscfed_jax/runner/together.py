"""Experiments that share a program, from their settings to their results."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rscfed_jax.config.files import write_json
from rscfed_jax.runner.build import NO_OBJECTS, Objects, build_cells
from rscfed_jax.runner.choice import choose_chunk, choose_form, of_the_same_device, this_device, told_to_all
from rscfed_jax.runner.choose_population import choose_population
from rscfed_jax.runner.client_states import ClientStates
from rscfed_jax.runner.enough_memory import check_memory
from rscfed_jax.runner.experiment import Experiment
from rscfed_jax.runner.loop import ROUNDS_PER_CALL, Loop
from rscfed_jax.runner.progress import RunProgress
from rscfed_jax.runner.result import Result
from rscfed_jax.runner.tuning import bring_tuning, keep_tuning
from rscfed_jax.storage.checkpoint import Checkpoints


def run_together(
    experiments: Sequence[Experiment],
    *,
    shown: RunProgress,
    resume: bool,
    stop: Callable[[], bool],
    objects: Objects = NO_OBJECTS,
    grid_devices: int = 1,
) -> tuple[list[Result | None], int]:
    """Runs experiments that share a program as its cells; the results, None for a diverged one, and compilations."""
    config, federation = experiments[0].config, experiments[0].federation
    device, directory = this_device(), experiments[0].directory
    earlier = directory.read_device() if directory is not None and resume else None
    stored = of_the_same_device(told_to_all(earlier), device)
    bring_tuning(directory, device)
    began = time.perf_counter()
    conv = choose_form(config, federation, objects=objects, stored=stored, say=shown.say, device=device)
    capacity = min(config.eval_every, ROUNDS_PER_CALL)
    place = choose_population(experiments, objects=objects, device=device, capacity=capacity)
    check_memory(experiments, place, objects=objects, device=device, capacity=capacity)
    # Before the directories are taken: a model or network that does not fit leaves nothing behind.
    simulation = build_cells(
        [experiment.config for experiment in experiments],
        [experiment.federation for experiment in experiments],
        objects=objects,
        grid_devices=grid_devices,
        conv=conv,
        working_sets_of=None if place == "device" else capacity,
    )
    simulation, choice, tried = choose_chunk(
        simulation, config, capacity=capacity, stored=stored, device=device, objects=objects
    )
    seconds = time.perf_counter() - began if tried else 0.0
    with ExitStack() as held:
        for experiment in experiments:
            if (directory := experiment.directory) is not None:
                partition = experiment.federation.to_json()
                held.enter_context(directory.open(experiment.config, partition, resume=resume))
                with directory.refusing():
                    write_json(directory.device, choice._asdict())
        shown.say(str(choice))
        kept = None
        if place != "device":
            shown.say(f"population on {place}: the devices hold {simulation.data.sizes.shape[1]:,} clients at a time")
            directory = experiments[0].directory if place == "disk" else None
            file = None if directory is None else directory.clients
            kept = ClientStates.of(simulation.state.clients, file)
            held.callback(kept.close)
        for experiment in experiments:
            # After the clients' file, which the thread that writes a checkpoint still needs when a run is cut short.
            if (directory := experiment.directory) is not None:
                experiment.checkpoints = held.enter_context(Checkpoints(directory.checkpoints))
        loop = Loop(experiments, simulation, choice, shown, stop, capacity=capacity, kept=kept)
        loop.compilations, loop.compile_seconds = tried, seconds
        results = loop.run()
        for experiment in experiments:
            keep_tuning(experiment.directory, device)
        return results, loop.compilations
