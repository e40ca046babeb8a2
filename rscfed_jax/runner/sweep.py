"""Many experiments, few programs: experiments that differ only in numbers, seed and partition share one program."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rscfed_jax.config import RECORD, SETTINGS, Config, Hyper, SettingError, changed
from rscfed_jax.config.registry import DATASETS, METHODS, is_path
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.load import dataset_of
from rscfed_jax.storage.model_file import check_stored
from rscfed_jax.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from rscfed_jax.runner.build import Objects

# Settings that change numbers or who holds what, never the program: besides the numbers of `Hyper`, these.
NUMBERS = {
    *(set(Hyper._fields) & SETTINGS.keys()),
    *("teacher_init", "flip", "preset", "seed"),
    *("gamma", "labeled_choice", "labeled_clients", "labeled_fraction", "min_client_size", "partition_file"),
    *("server_labels", "labeled_gamma", "classes_per_client", "partition", "train_fraction"),
} - {"warmup_rounds"}
OF_DATA = ("dataset", "data_dir", "download", "download_from", "split", "validation", "image_size", "resize")

Found = tuple[list[dict[str, Any]], dict[str, Any] | None]  # metrics and summary; no summary of a diverged run


class Cell(NamedTuple):
    """One experiment, to run alone or inside a program."""

    name: str
    config: Config
    directory: RunDirectory | None  # nothing is written without one
    objects: "Objects | None" = None  # a method or network that was given as an object

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


class Program(NamedTuple):
    """Cells that share one compilation, and the data of each."""

    cells: list[Cell]
    federations: list[Federation]

    @property
    def objects(self) -> "Objects":
        """The method and network that its cells were given as objects."""
        from rscfed_jax.runner.build import NO_OBJECTS

        return self.cells[0].objects or NO_OBJECTS


def cells_of(
    name: str,
    settings: dict[str, Any],
    *,
    seeds: Iterable[int],
    out: str | Path | None,
    check: bool = True,
    objects: "Objects | None" = None,
) -> list[Cell]:
    """A cell for each seed; settings are checked, nothing is written.

    `check`: the directories are looked at as well, which is for the process that writes.
    """
    cells = []
    for seed in seeds:
        config = Config(**changed(settings, {"seed": seed}))
        if objects is not None:
            config = objects.named_in(config)
        directory = None if out is None else RunDirectory(Path(out) / "cells" / f"{name}-seed{seed}")
        if directory is not None and check:
            directory.check(config, resume=True)
        cell = Cell(f"{name}, seed {seed}", config, directory, objects)
        if config.init_from is not None and not (check and cell.finished):
            check_stored(config.init_from, setting="init_from")
        cells.append(cell)
    return cells


def settings_by_method(settings: dict[str, Any], methods: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """A function from a method to the settings of its cells: without the own settings of the other methods.

    Refuses an own setting of a method that is not among `methods`, names or paths.
    """
    owner: dict[str, tuple[str, str]] = {}
    for method in (*METHODS.declarations, *filter(is_path, methods)):
        declared = METHODS.find(method)
        owner |= {setting.name: (method, declared.name) for setting in declared.settings}
    for name, value in settings.items():
        if name in owner and not {*owner[name]} & {*methods}:
            raise SettingError(name, value, f"is a setting of the method {owner[name][1]}, which no cell has")

    def of_method(method: str) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in owner or method in owner[name]}

    return of_method


def federations(cells: Sequence[Cell]) -> Iterator[Federation]:
    """The federation of each cell; cells with the same samples share one data set."""
    loaded: dict[tuple, Dataset] = {}
    for cell in cells:
        key = _samples(cell.config)
        if key not in loaded:
            loaded[key] = dataset_of(cell.config)
        yield build_federation(cell.config, dataset=loaded[key])


def _samples(config: Config) -> tuple:
    """What decides on the samples of a data set."""
    declared = DATASETS.declarations.get(config.dataset.partition(":")[0])
    seeded = declared is None or declared.get("SEEDED", True)
    return (*(getattr(config, name) for name in OF_DATA), config.seed if seeded else None)


def program_key(cell: Cell, federation: Federation) -> tuple:
    """What experiments must have in common to run as the cells of one program."""
    config = cell.config
    free = NUMBERS | {RECORD} | {f"{config.method}_{name}" for name in config.numbers}
    static = tuple(item for item in config.to_dict().items() if item[0] not in free)
    switched = (config.drop_rate > 0, config.byzantine > 0, config.prox_mu > 0)
    kinds = (int(federation.labeled.sum()), int(federation.unlabeled.sum()))
    # Working sets of a population are one experiment's alone.
    alone = cell.name if config.population in ("host", "disk") else None
    return (static, *_samples(config), *kinds, *switched, cell.objects, alone)


def programs_of(
    cells: Sequence[Cell], *, most: int | None = None, saved: dict[str, list[int] | None] | None = None
) -> list[Program]:
    """The unfinished cells in programs of at most `most` cells.

    Cells resume together from their newest common checkpoint, unless one of them would lose more than
    `checkpoint_every` rounds; cells without checkpoints form their own program. `saved` lists the checkpoints of each
    cell by name, None for one that is finished; without it the disk is asked.
    """
    saved = saved_by(cells) if saved is None else saved
    waiting = [cell for cell in cells if saved[cell.name] is not None]
    programs: dict[tuple, list[tuple[Program, set[int]]]] = {}
    for cell, federation in zip(waiting, federations(waiting), strict=True):
        mine = set(saved[cell.name] or [])
        alike = programs.setdefault(program_key(cell, federation), [])
        for place, (program, common) in enumerate(alike):
            shared = common & mine
            lost = max(mine | common, default=0) - max(shared, default=0)
            together = lost <= cell.config.checkpoint_every if shared else not (mine or common)
            if together and len(program.cells) < (most or len(cells)):
                program.cells.append(cell)
                program.federations.append(federation)
                alike[place] = (program, shared)
                break
        else:
            alike.append((Program([cell], [federation]), mine))
    return [program for alike in programs.values() for program, _ in alike]


def saved_by(cells: Sequence[Cell]) -> dict[str, list[int] | None]:
    """What the disk holds: the checkpoints of each cell by name, None for one that is finished."""
    return {cell.name: None if cell.finished else cell.saved_rounds for cell in cells}


def describe(programs: Sequence[Program], runs: int) -> Iterator[str]:
    """What would run together, the memory it takes, and about how long, line by line."""
    from rscfed_jax.runner.estimate import program_bytes, run_seconds

    hours = 0.0
    for number, program in enumerate(programs, 1):
        configs = [cell.config for cell in program.cells]
        pairs = list(zip(configs, program.federations, strict=True))
        seconds = sum(run_seconds(config, federation, objects=program.objects) for config, federation in pairs)
        hours += seconds / 3600
        memory = program_bytes(configs, program.federations, objects=program.objects) / 2**30
        count = f"{len(pairs)} cell{'s' if len(pairs) > 1 else ''}"
        yield f"program {number}: {count}, {memory:.2f} GiB, about {seconds / 60:.1f} min"
        for cell in program.cells:
            yield f"    {cell.name}"
    waiting = sum(len(program.cells) for program in programs)
    yield (
        f"{runs} runs, {runs - waiting} of them finished; {len(programs)} programs; "
        f"about {hours:.2f} h on two CPU cores, estimated from arithmetic"
    )


class Ran(NamedTuple):
    """What became of the programs."""

    found: dict[str, Found]  # of the cells that have no directory
    compilations: int  # of rounds and warm-ups

    def of(self, cell: Cell) -> Found:
        """Metrics and summary of a cell."""
        if cell.directory is None:
            return self.found[cell.name]
        diverged = cell.directory.has_diverged
        return cell.directory.read_metrics(), None if diverged else cell.directory.read_summary()


def run_programs(
    programs: Sequence[Program],
    *,
    progress: bool,
    stop: Callable[[], bool] = lambda: False,
    grid_devices: int = 1,
) -> Ran:
    """Runs programs one after the other, resuming what was interrupted."""
    from rscfed_jax.core.client_axis import ClientAxis
    from rscfed_jax.runner.experiment import Experiment
    from rscfed_jax.runner.loop import Stopped
    from rscfed_jax.runner.processes import any_of_them, is_first
    from rscfed_jax.runner.progress import RunProgress
    from rscfed_jax.runner.together import run_together

    for program in programs:  # before anything runs, as JAX must be asked what devices there are
        ClientAxis.create(program.cells[0].config.chunk, program.cells[0].config.devices, grid_devices)
    found: dict[str, Found] = {}
    compilations = 0
    rounds = [program.cells[0].config.rounds for program in programs]
    with RunProgress(sum(rounds), visible=progress and is_first()) as shown:
        for number, program in enumerate(programs):
            if any_of_them(stop()):
                raise Stopped(f"stopped before program {number + 1} of {len(programs)}")
            names = program.cells[0].name if len(program.cells) == 1 else f"{len(program.cells)} cells"
            shown.begin_part(sum(rounds[:number]), f"program {number + 1} of {len(programs)}: {names}")
            experiments = [
                Experiment(cell.config, federation, cell.directory if is_first() else None, cell.name, of_many=True)
                for cell, federation in zip(program.cells, program.federations, strict=True)
            ]
            results, compiled = run_together(
                experiments, shown=shown, resume=True, stop=stop, objects=program.objects, grid_devices=grid_devices
            )
            compilations += compiled
            for cell, result in zip(program.cells, results, strict=True):
                if cell.directory is None:  # a whole result would keep the program's data and state alive
                    found[cell.name] = ([], None) if result is None else (result.metrics, result.summary)
            del experiments, results
    return Ran(found, compilations)
