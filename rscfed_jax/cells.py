"""Many experiments, few programs: those that differ only in numbers, seed and partition run as cells of one program."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rscfed_jax.config import Config, Hyper
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.sources import dataset_of
from rscfed_jax.rundir import RunDirectory

# Settings that change numbers or who holds what, never the program: besides the numbers of `Hyper`, these.
NUMBERS = {
    *(set(Hyper._fields) & {field.name for field in dataclasses.fields(Config)}),
    *("teacher_init", "flip", "preset", "seed"),
    *("gamma", "labeled_choice", "labeled_clients", "labeled_fraction", "min_client_size", "partition_file"),
    "train_fraction",
} - {"warmup_rounds"}
SECONDS_PER_STEP = 0.007  # of a client, simple CNN and batch 64 on two CPU cores: benchmarks/round_time.py
OF_DATA = ("dataset", "data_dir", "download", "split", "validation", "image_size", "resize")
WITHOUT_SEED = ("fashion", "svhn", "cifar10", "cifar100")  # data sets whose samples do not depend on the seed


class Job(NamedTuple):
    """One experiment to run."""

    name: str
    config: Config
    directory: RunDirectory | None  # nothing is written without one

    @property
    def finished(self) -> bool:
        """Whether its run has all its rounds, or its model is no longer finite."""
        if self.directory is None:
            return False
        if self.directory.has_diverged or not self.directory.summary.exists():
            return self.directory.has_diverged
        return self.directory.read_summary()["rounds"] >= self.config.rounds

    @property
    def saved_rounds(self) -> list[int]:
        """The rounds of which there is a checkpoint."""
        return [] if self.directory is None else self.directory.saved_rounds


class Group(NamedTuple):
    """Jobs that run as the cells of one program, and the data of each."""

    jobs: list[Job]
    federations: list[Federation]


def federations(jobs: Sequence[Job]) -> Iterator[Federation]:
    """The federation of each job; jobs with the same samples share one data set."""
    loaded: dict[tuple, Dataset] = {}
    for job in jobs:
        key = _samples(job.config)
        if key not in loaded:
            loaded[key] = dataset_of(job.config)
        yield build_federation(job.config, dataset=loaded[key])


def _samples(config: Config) -> tuple:
    """What decides on the samples of a data set."""
    seed = None if config.dataset in WITHOUT_SEED else config.seed
    return (*(getattr(config, name) for name in OF_DATA), seed)


def program_of(config: Config, federation: Federation) -> tuple:
    """What experiments must have in common to run as the cells of one program."""
    static = tuple(value for name, value in config.to_dict().items() if name not in NUMBERS)
    faults = (config.drop_rate > 0, config.byzantine > 0)
    return (*static, *_samples(config), int(federation.labeled.sum()), federation.any_unlabeled, *faults)


def groups_of(
    jobs: Sequence[Job], *, most: int | None = None, saved: dict[str, list[int] | None] | None = None
) -> list[Group]:
    """The unfinished jobs in groups that share a program, of at most `most` cells.

    Jobs go on together from a checkpoint that they have in common, unless that would cost one of them more rounds than
    a kill does: new ones begin apart. `saved` tells the checkpoints of each job by name, None for one that is finished;
    without it the disk is asked.
    """
    saved = saved_by(jobs) if saved is None else saved
    waiting = [job for job in jobs if saved[job.name] is not None]
    groups: dict[tuple, list[tuple[Group, set[int]]]] = {}
    for job, federation in zip(waiting, federations(waiting), strict=True):
        own = set(saved[job.name] or [])
        alike = groups.setdefault(program_of(job.config, federation), [])
        for place, (group, common) in enumerate(alike):
            shared = common & own
            lost = max(own | common, default=0) - max(shared, default=0)
            together = lost <= job.config.checkpoint_every if shared else not (own or common)
            if together and len(group.jobs) < (most or len(jobs)):
                group.jobs.append(job)
                group.federations.append(federation)
                alike[place] = (group, shared)
                break
        else:
            alike.append((Group([job], [federation]), own))
    return [group for alike in groups.values() for group, _ in alike]


def saved_by(jobs: Sequence[Job]) -> dict[str, list[int] | None]:
    """What the disk holds: the checkpoints of each job by name, None for one that is finished."""
    return {job.name: None if job.finished else job.saved_rounds for job in jobs}


def estimated_seconds(config: Config, federation: Federation) -> float:
    """A guess at the time of a run from its client steps; only the simple CNN on two CPU cores was measured."""
    steps = -(-federation.sizes // config.batch_size)
    if config.method in ("rscfed", "sso"):
        trainings = config.subsets * config.subset_size
        per_round = steps.mean() * (min(trainings, config.clients) if config.repeat == "share" else trainings)
    else:
        per_round = steps[federation.labeled].sum() if config.method == "fedavg" else steps.sum()
    warmup = config.warmup_rounds * steps[federation.labeled].sum()
    return float((config.rounds * per_round + warmup) * config.local_epochs * SECONDS_PER_STEP)


def describe(groups: Sequence[Group], runs: int) -> Iterator[str]:
    """What would run together, the memory it takes, and about how long, line by line."""
    from rscfed_jax.plan import group_bytes

    hours = 0.0
    for number, group in enumerate(groups, 1):
        pairs = list(zip(group.jobs, group.federations, strict=True))
        seconds = sum(estimated_seconds(job.config, federation) for job, federation in pairs)
        hours += seconds / 3600
        memory = group_bytes([job.config for job in group.jobs], group.federations) / 2**30
        count = f"{len(pairs)} cell{'s' if len(pairs) > 1 else ''}"
        yield f"group {number}: {count} as one program, {memory:.2f} GiB, about {seconds / 60:.1f} min"
        for job in group.jobs:
            yield f"    {job.name}"
    waiting = sum(len(group.jobs) for group in groups)
    yield (
        f"{runs} runs, {runs - waiting} of them finished; {len(groups)} programs; "
        f"about {hours:.2f} h for the simple CNN on two CPU cores"
    )


class Ran(NamedTuple):
    """What became of the groups."""

    found: dict[str, tuple[list[dict[str, Any]], dict[str, Any] | None]]  # metrics and summary of jobs not on disk
    compilations: int  # of rounds and warm-ups


def run_groups(
    groups: Sequence[Group],
    *,
    progress: bool,
    stop: Callable[[], bool] = lambda: False,
    grid_devices: int = 1,
) -> Ran:
    """Runs groups one after the other, each as one program, continuing what was interrupted."""
    from rscfed_jax.clients import ClientAxis
    from rscfed_jax.group import Experiment, Stopped, run_together
    from rscfed_jax.processes import any_of_them, is_first
    from rscfed_jax.progress import RunProgress

    for group in groups:  # before anything runs, as JAX must be asked what devices there are
        ClientAxis.create(group.jobs[0].config.chunk, group.jobs[0].config.devices, grid_devices)
    found: dict[str, tuple[list[dict[str, Any]], dict[str, Any] | None]] = {}
    compilations = 0
    rounds = [group.jobs[0].config.rounds for group in groups]
    with RunProgress(sum(rounds), visible=progress and is_first()) as shown:
        for number, group in enumerate(groups):
            if any_of_them(stop()):
                raise Stopped(f"stopped before group {number + 1} of {len(groups)}")
            names = group.jobs[0].name if len(group.jobs) == 1 else f"{len(group.jobs)} cells as one program"
            shown.begin_part(sum(rounds[:number]), f"group {number + 1} of {len(groups)}: {names}")
            experiments = [
                Experiment(job.config, federation, job.directory if is_first() else None, job.name, of_many=True)
                for job, federation in zip(group.jobs, group.federations, strict=True)
            ]
            results, compiled = run_together(
                experiments, shown=shown, resume=True, stop=stop, grid_devices=grid_devices
            )
            compilations += compiled
            for job, result in zip(group.jobs, results, strict=True):
                if job.directory is None:  # a whole result would keep the group's data and state alive
                    found[job.name] = ([], None) if result is None else (result.metrics, result.summary)
            del experiments, results
    return Ran(found, compilations)
