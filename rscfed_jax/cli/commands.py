"""What the commands do: each takes the parsed arguments and returns an exit code.

JAX is imported only after every setting and every input file has been checked.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rscfed_jax.cli.endings import print_result, stoppable
from rscfed_jax.cli.settings import flags_of, settings_of, settings_of_grid, settings_of_table
from rscfed_jax.cli.show_data import draw_partition, export_partition, print_dataset, print_partition
from rscfed_jax.config import Config, Setting, SettingError, read_size
from rscfed_jax.config.config_file import SEEDS
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.load import dataset_of
from rscfed_jax.report.tables import as_console
from rscfed_jax.runner import grid as grids
from rscfed_jax.runner import table as tables
from rscfed_jax.runner.memory import check_address_space
from rscfed_jax.runner.processes import ALONE, Company, as_letters, from_the_first, is_first
from rscfed_jax.runner.sweep import Cell, Program, describe, programs_of, run_programs, saved_by
from rscfed_jax.runner.targets import TARGETS, prepare
from rscfed_jax.storage.mlflow import MlflowLog
from rscfed_jax.storage.model_file import check_stored, check_target, is_model_file
from rscfed_jax.storage.run_directory import RunDirectory, check_same_data, load_config
from rscfed_jax.storage.tensorboard import EventLog
from rscfed_jax.storage.wandb import WandbLog

FIGURES = (".png", ".pdf", ".svg")
LOGS = (EventLog, WandbLog, MlflowLog)


def start_jax(company: Company = ALONE) -> None:
    """Starts JAX, which is imported here for the first time."""
    check_address_space()
    from rscfed_jax.runner import start

    start.start_jax(company)


def train(arguments: argparse.Namespace) -> int:
    """Trains a federation."""
    config = Config(**settings_of(arguments))
    default = f"runs/{Path(config.dataset.partition(':')[0]).name}-{config.method}-seed{config.seed}"
    directory = RunDirectory(_out(arguments, default))
    company = company_of(arguments)
    if company.writes:
        directory.check(config, resume=arguments.resume)
    wanted = [log for log in LOGS if getattr(arguments, log.name) and company.writes]
    logs = [log(directory, resume=arguments.resume, warn=_warn) for log in wanted]
    if config.init_from is not None:
        check_stored(config.init_from, setting="init_from")
    federation = build_federation(config)
    for log in logs:
        log.check()
    start_jax(company)
    from rscfed_jax import api

    def tell(record: dict[str, Any]) -> None:
        for log in logs:
            log.add(record)

    def work(stop: Callable[[], bool]) -> None:
        common: dict[str, Any] = {"progress": not arguments.quiet, "stop": stop, "federation": federation}
        with contextlib.ExitStack() as held:
            for log in logs:
                held.enter_context(log)
            api.train(config, out=directory.path, resume=arguments.resume, on_record=tell, **common)

    code = stoppable(work, command="train", go_on=f"`--out {directory.path} --resume` with the same flags continues it")
    if code == 0 and is_first():
        print_result(directory.read_summary(), directory)
    return code


def _warn(text: str) -> None:
    """Prints a warning; the run continues even if nobody reads its output."""
    with contextlib.suppress(OSError):
        print(f"rscfed-jax: warning: {text}", file=sys.stderr, flush=True)


def _out(arguments: argparse.Namespace, default: str) -> str:
    """Where the command writes to."""
    if arguments.out == "":
        raise SettingError("out", "''", f"must name a directory; without --out it is {default}")
    return str(arguments.out or default)


def _seeds(arguments: argparse.Namespace) -> int:
    if arguments.seeds is None and arguments.config_file is not None:
        return arguments.config_file.seeds or SEEDS.default
    return _value(arguments, SEEDS)


def _value(arguments: argparse.Namespace, setting: Setting) -> Any:
    """What a flag of the command gives, or its default."""
    text = getattr(arguments, setting.name)
    return setting.default if text is None else setting.checked(setting.read(text))


def reproduce_table(arguments: argparse.Namespace) -> int:
    """Runs a published table."""
    _check_target(arguments)
    seeds, company = _seeds(arguments), company_of(arguments)
    settings = settings_of_table(arguments)
    dataset = settings.get("dataset", tables.DATASET)
    out = _out(arguments, f"runs/{arguments.table}-{Path(dataset.partition(':')[0]).name}")
    rows = tables.plan(arguments.table, settings, seeds=seeds, out=out, check=company.writes)
    cells = [cell for row in rows for cell in row.cells]
    if arguments.dry_run:
        defaults = tables.defaults_of(arguments.table, settings) | settings
        if "model" in defaults:
            print("common:", *(f"{name}={value}" for name, value in defaults.items()))
        for row in rows:
            own = {name: value for name, value in row.row.defaults.items() if name not in settings}
            given = " ".join(f"{name}={value}" for name, value in (row.row.settings | own).items())
            for cell in row.cells:
                finished = "finished" if cell.finished else ""
                print(f"{row.row.name:<28} seed {cell.config.seed}  {finished:<9} {given}")
        programs = programs_of(cells)
        print(*describe(programs, len(cells)), sep="\n")
        _print_target(arguments.target, programs)
        return 0
    programs = _programs(cells, company)

    def work(stop: Callable[[], bool]) -> None:
        run_programs(programs, progress=not arguments.quiet, stop=stop)

    code = stoppable(work, command="reproduce", go_on="the same command continues it")
    if code == 0 and is_first():
        print(tables.write_table(arguments.table, rows, seeds=seeds, out=out))
        print(f"files: {out}/table.md, table.csv, curves.png")
    return code


def grid(arguments: argparse.Namespace) -> int:
    """Runs every combination of values of some settings."""
    _check_target(arguments)
    seeds, company = _seeds(arguments), company_of(arguments)
    grid_devices, most = _value(arguments, grids.GRID_DEVICES), _value(arguments, grids.CELLS_AT_ONCE)
    settings, axes = settings_of_grid(arguments, grids.parse_axes(arguments.set or [], flags_of(arguments)))
    if not axes:
        raise SettingError("set", "", "is missing; as in --set beta=0,100,1e4 --set tau=0.5,1")
    out = _out(arguments, f"runs/grid-{'-'.join(axes)}")
    points = grids.points_of(settings, axes, seeds=seeds, out=out, check=company.writes)
    cells = [cell for point in points for cell in point.cells]
    if arguments.dry_run:
        finished = (f"{cell.name}: finished" for cell in cells if cell.finished)
        programs = programs_of(cells, most=most)
        print(*finished, *describe(programs, len(cells)), sep="\n")
        _print_target(arguments.target, programs)
        return 0
    programs = _programs(cells, company, most=most)
    result: list[grids.GridResult] = []

    def work(stop: Callable[[], bool]) -> None:
        shown: dict[str, Any] = {"progress": not arguments.quiet, "stop": stop}
        result.append(grids.run_points(points, programs, out=out, grid_devices=grid_devices, **shown))

    code = stoppable(work, command="grid", go_on="the same command continues it")
    if code == 0 and is_first():
        print(as_console(grids.summary_lines(result[0])))
        count = result[0].compilations
        print(f"{len(cells)} runs, {count} program{'s' if count != 1 else ''} compiled")
        print(f"files: {out}/grid.csv, summary.csv, summary.md{', heatmap.png' if len(axes) == 2 else ''}")
    return code


def _programs(cells: Sequence[Cell], company: Company, *, most: int | None = None) -> list[Program]:
    """Starts JAX, and groups the cells as the disk of the first process has them.

    A single process loads the data first, so that errors in them are reported at once.
    """
    programs = programs_of(cells, most=most) if company.alone else []
    start_jax(company)
    if company.alone:
        return programs
    told = from_the_first({"saved": as_letters(saved_by(cells) if is_first() else None)})
    assert told is not None
    return programs_of(cells, most=most, saved=json.loads(told["saved"].tobytes()))


def _check_target(arguments: argparse.Namespace) -> None:
    """Refuses an unknown target, or one without a dry run, before anything is loaded."""
    if arguments.target is not None and arguments.target not in TARGETS:
        raise SettingError("target", arguments.target, f"must be one of {', '.join(TARGETS)}")
    if arguments.target is not None and not getattr(arguments, "dry_run", True):
        raise SettingError("target", arguments.target, "only compiles and does not run: add --dry-run")
    if arguments.target is not None:
        prepare()


def _print_target(target: str | None, programs: Sequence[Program]) -> None:
    """Prints the cost of programs on a target."""
    if target is None or not programs:
        return
    start_jax()
    from rscfed_jax.runner.target_plan import target_lines

    for line in target_lines(target, programs):
        print(line, flush=True)


def plan(arguments: argparse.Namespace) -> int:
    """Estimates the cost of an experiment."""
    _check_target(arguments)
    config = Config(**settings_of(arguments))
    if arguments.target is not None:
        cells = [Cell(f"{config.method} on {config.dataset}", config, None)]
        _print_target(arguments.target, programs_of(cells))
        return 0
    memory = read_size("memory", arguments.memory)
    flops = read_size("flops", arguments.flops) if arguments.flops is not None else None
    federation = build_federation(config)
    start_jax()
    from rscfed_jax.runner.estimate import as_lines

    print(*as_lines(config, federation, memory=memory, flops=flops), sep="\n")
    return 0


def company_of(arguments: argparse.Namespace) -> Company:
    """The processes that the flags name."""
    return Company.of(arguments.coordinator, arguments.num_processes, arguments.process_id)


def evaluate(arguments: argparse.Namespace) -> int:
    """Tests a model."""
    settings = settings_of(arguments)
    if is_model_file(arguments.path):
        check_stored(arguments.path, setting="PATH")
        config = Config(**settings)
    else:
        # Fixed: the model of a run fits the run's own settings alone.
        config = load_config(arguments.path, setting="PATH").fixed().replace(**settings)
    dataset = dataset_of(config)
    if not settings.keys() - {"download", "download_from"}:
        names, counts = dataset.names, dataset.test_counts.tolist()
        check_same_data(arguments.path, config.dataset, class_names=names, test_counts=counts)
    start_jax()
    from rscfed_jax.api import evaluate_run

    found, round_ = evaluate_run(arguments.path, config)
    print(json.dumps({"round": round_} | {name: float(value) for name, value in found._asdict().items()}))
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Writes a model for PyTorch."""
    load_config(arguments.run_dir, setting="RUN_DIR")
    check_target(arguments.file, setting="FILE", overwrite=arguments.force)
    start_jax()
    from rscfed_jax.runner.stored_model import export_model

    round_ = export_model(arguments.run_dir, arguments.file)
    print(f"model of round {round_}: {arguments.file}")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Writes a report of runs."""
    from rscfed_jax.report.console import letters_for, report_as_console
    from rscfed_jax.report.write import write_report

    file, content = write_report(arguments.directories, out=arguments.out, format=arguments.format)
    for note in content.notes:
        print(note)
    print(report_as_console(content, letters=letters_for()))
    print(f"report of {len(content.runs)} run{'s' if len(content.runs) > 1 else ''}: {file}")
    return 0


def data(arguments: argparse.Namespace) -> int:
    """Shows a data set and its partition."""
    config = Config(dataset=arguments.dataset, **settings_of(arguments))
    if arguments.figure and Path(arguments.figure).suffix not in FIGURES:
        raise SettingError("figure", arguments.figure, f"must end in one of {', '.join(FIGURES)}")
    if arguments.export is not None and Path(arguments.export).suffix != ".npz":
        raise SettingError("export", arguments.export, "must end in .npz")
    federation = build_federation(config)
    files = {"figure": (arguments.figure, draw_partition), "export": (arguments.export, export_partition)}
    files = {setting: (path, write) for setting, (path, write) in files.items() if path is not None}
    for setting, (path, write) in files.items():
        try:
            write(federation, path)
        except (OSError, ValueError) as error:
            raise SettingError(setting, path, f"cannot be written: {error}") from None
    print_dataset(config, federation.dataset)
    print_partition(federation)
    for setting, (path, _) in files.items():
        print(f"{setting}: {path}")
    return 0
