"""The command line: reads settings, refuses wrong ones in a line, and hands the rest to the library.

JAX is imported only after every setting and every input file has been checked.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rscfed_jax import __version__
from rscfed_jax.config import Config, Kind, SettingError, read_setting
from rscfed_jax.data.dataset import Dataset, pixel_statistics
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.partition import save_partition
from rscfed_jax.data.sources import dataset_of
from rscfed_jax.modelfile import check_target, is_model_file
from rscfed_jax.paper import reproduce
from rscfed_jax.paper.tables import DECIDED, TABLES
from rscfed_jax.rundir import RunDirectory, check_stored, load_config
from rscfed_jax.signals import StopSignals

GROUPS_OF_DATA = ("data", "federation")
MOST_CLASSES = 20  # that a table shows
FIGURES = (".png", ".pdf", ".svg")
METRICS = ("accuracy", "auc", "precision", "recall")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    0: done. 2: a wrong setting, or a file that cannot be read or written. 3: the global model is no longer finite.
    130 and 143: stopped by SIGINT or SIGTERM.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except SettingError as error:
        print(f"rscfed-jax {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"rscfed-jax {arguments.command}: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rscfed-jax",
        description="Federated semi-supervised learning as one compiled JAX program: RSCFed and its baselines.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    train = commands.add_parser(
        "train", help="train a federation", description="Train a federation.", allow_abbrev=False
    )
    _add_settings(train, groups=None)
    train.add_argument("--out", help="run directory (default runs/DATASET-METHOD-seedSEED)")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument("--quiet", action="store_true", help="no progress, only the result")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser(
        "evaluate",
        help="test the model of a run",
        description="Test the newest model of a run, on its own data unless flags say otherwise, "
        "or a model file, on the data and with the network that flags name. The last line is one JSON object.",
        allow_abbrev=False,
    )
    evaluate.add_argument("path", help="run directory, one of its checkpoints, or a model file")
    _add_settings(evaluate, groups=(*GROUPS_OF_DATA, "model"), leave_out=("init_from",))
    _add_settings(evaluate, groups=("run",), only=("seed",))
    evaluate.set_defaults(run=_evaluate)

    table = commands.add_parser(
        "reproduce",
        help="run a table of the paper",
        description="Run a table of the paper and put its numbers beside ours. Cells that --out already holds are not "
        "run again; an interrupted table goes on.",
        allow_abbrev=False,
    )
    table.add_argument("table", help=", ".join(TABLES))
    table.add_argument("--out", help="directory of the table (default runs/TABLE-DATASET)")
    table.add_argument("--seeds", default="1", metavar="N", help="run every cell with the seeds 0 to N - 1 (default 1)")
    table.add_argument("--dry-run", action="store_true", help="only list the cells, their settings and their time")
    table.add_argument("--quiet", action="store_true", help="no progress, only the table")
    _add_settings(table, groups=None, leave_out=DECIDED)
    table.set_defaults(run=_reproduce)

    export = commands.add_parser(
        "export",
        help="write the model of a run as a file for PyTorch",
        description="Write the newest global model of a run with the names of the published PyTorch code.",
        allow_abbrev=False,
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="run directory, or one of its checkpoints")
    export.add_argument("file", metavar="FILE", help="ends in .safetensors, or in .pt or .pth for a state dict")
    export.add_argument("--force", action="store_true", help="overwrite FILE if it is there")
    export.set_defaults(run=_export)

    data = commands.add_parser(
        "data",
        help="show a data set and its partition",
        description="Show a data set, and who holds what for the given flags.",
        allow_abbrev=False,
    )
    data.add_argument("dataset", help=Config.__dataclass_fields__["dataset"].metadata["help"])
    _add_settings(data, groups=GROUPS_OF_DATA, leave_out=("dataset",))
    _add_settings(data, groups=("method", "run"), only=("preset", "seed"))
    data.add_argument("--figure", help="also draw the partition into this file (png, pdf or svg)")
    data.add_argument("--export", help="also write the partition into this file (npz), as --partition-file reads it")
    data.set_defaults(run=_data)
    return parser


def _add_settings(
    parser: argparse.ArgumentParser,
    *,
    groups: Sequence[str] | None,
    leave_out: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> None:
    """Adds a flag for every setting of the given groups; a flag that is not given leaves no trace."""
    sections: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        group = field.metadata["group"]
        wanted = (groups is None or group in groups) and (only is None or field.name in only)
        if not wanted or field.name in leave_out:
            continue
        if group not in sections:
            sections[group] = parser.add_argument_group(group)
        kind: Kind = field.metadata["kind"]
        flag = "--" + field.name.replace("_", "-")
        note = field.metadata["help"].replace("%", "%%") + _default_note(field)
        common = {"dest": f"setting_{field.name}", "help": note, "default": argparse.SUPPRESS}
        if field.type is bool:
            sections[group].add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            sections[group].add_argument(flag, metavar=kind.metavar, **common)


def _default_note(field: dataclasses.Field) -> str:
    if field.default is not None:
        return f" (default {field.default})"
    return "" if "default" in field.metadata["help"] or "|" in str(field.type) else " (default: by preset)"


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings given by hand."""
    given = {}
    for name, value in vars(arguments).items():
        if name.startswith("setting_"):
            name = name.removeprefix("setting_")
            given[name] = value if isinstance(value, bool) else read_setting(name, value)
    return given


def _start_jax() -> None:
    """Uses every core, and remembers compiled programs so that a second start is quick."""
    import jax

    from rscfed_jax.clients import use_all_cores

    use_all_cores()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "rscfed_jax" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _train(arguments: argparse.Namespace) -> int:
    config = Config(**_settings(arguments))
    default = f"runs/{Path(config.dataset.partition(':')[0]).name}-{config.method}-seed{config.seed}"
    directory = RunDirectory(default if arguments.out is None else arguments.out)
    directory.check(config, resume=arguments.resume)
    if config.init_from is not None:
        check_stored(config.init_from, setting="init_from")
    federation = build_federation(config)
    _start_jax()
    from rscfed_jax.experiment import Stopped, train
    from rscfed_jax.history import DivergedError

    with StopSignals() as signals:
        try:
            result = train(
                config,
                out=directory.path,
                resume=arguments.resume,
                progress=not arguments.quiet,
                federation=federation,
                stop=signals.received,
            )
        except Stopped as stopped:
            print(f"{stopped}; `--out {directory.path} --resume` with the same flags goes on", file=sys.stderr)
            return 128 + signals.number
        except DivergedError as error:
            print(f"rscfed-jax train: error: {error}; the last checkpoint is from before", file=sys.stderr)
            return 3
    _print_result(result.summary, directory)
    return 0


def _print_result(summary: dict[str, Any], directory: RunDirectory) -> None:
    print(f"{'':<28}" + "".join(f"{name:>11}" for name in METRICS))
    rows = {
        "mean of last 5 evaluations": summary["final"],
        f"best, round {summary['best']['round']} (oracle)": summary["best"],
    }
    for name, metrics in rows.items():
        print(f"{name:<28}" + "".join(f"{metrics[metric]:>11.2%}" for metric in METRICS))
    print(f"{summary['seconds_per_round']:.2f} s per round on {summary['device']}")
    print(f"curve: {directory.curve}")
    print(f"run:   {directory.path}")


def _reproduce(arguments: argparse.Namespace) -> int:
    seeds = int(arguments.seeds) if arguments.seeds.isdecimal() and len(arguments.seeds) < 5 else 0
    if seeds < 1:
        raise SettingError("seeds", arguments.seeds, "must be a whole number from 1 to 9999")
    settings = {"rounds": 1000} | _settings(arguments)
    dataset = settings.get("dataset", "fashion")
    out = arguments.out or f"runs/{arguments.table}-{Path(dataset.partition(':')[0]).name}"
    jobs = reproduce.plan(arguments.table, settings, seeds=seeds, out=out)
    seconds = []
    for job, federation in zip(jobs, reproduce.federations(jobs), strict=True):
        seconds.append(0.0 if job.finished else reproduce.estimated_seconds(job.config, federation))
        if arguments.dry_run:
            given = " ".join(f"{name}={value}" for name, value in job.cell.settings.items())
            state = "finished" if job.finished else f"about {seconds[-1] / 60:.1f} min"
            print(f"{job.cell.name:<28} seed {job.config.seed}  {state:<16} {given}")
    if arguments.dry_run:
        print(f"{len(jobs)} runs, about {sum(seconds) / 3600:.2f} h for the simple CNN on two CPU cores")
        return 0
    _start_jax()
    from rscfed_jax.experiment import Stopped
    from rscfed_jax.history import DivergedError

    def say(text: str) -> None:
        if not arguments.quiet:
            print(text, file=sys.stderr)

    with StopSignals() as signals:
        try:
            reproduce.run(jobs, progress=not arguments.quiet, say=say, stop=signals.received)
        except Stopped as stopped:
            print(f"{stopped}; the same command goes on", file=sys.stderr)
            return 128 + signals.number
        except DivergedError as error:
            print(f"rscfed-jax reproduce: error: {error}; the last checkpoint is from before", file=sys.stderr)
            return 3
    print(reproduce.write_report(arguments.table, jobs, seeds=seeds, out=out))
    print(f"files: {out}/table.md, table.csv, curves.png")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if is_model_file(arguments.path):
        check_stored(arguments.path, setting="PATH")
        config = Config(subset_size=1, **settings)
    else:
        config = load_config(arguments.path, setting="PATH").replace(**settings)
    dataset_of(config)
    _start_jax()
    from rscfed_jax.experiment import evaluate_run

    metrics, round_ = evaluate_run(arguments.path, config)
    print(json.dumps({"round": round_} | {name: float(getattr(metrics, name)) for name in METRICS}))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    load_config(arguments.run_dir, setting="RUN_DIR")
    check_target(arguments.file, setting="FILE", overwrite=arguments.force)
    _start_jax()
    from rscfed_jax.stored_model import export_model

    round_ = export_model(arguments.run_dir, arguments.file)
    print(f"model of round {round_}: {arguments.file}")
    return 0


def _data(arguments: argparse.Namespace) -> int:
    config = Config(dataset=arguments.dataset, subset_size=1, **_settings(arguments))
    if arguments.figure and Path(arguments.figure).suffix not in FIGURES:
        raise SettingError("figure", arguments.figure, f"must end in one of {', '.join(FIGURES)}")
    federation = build_federation(config)
    files = {"figure": (arguments.figure, _draw_partition), "export": (arguments.export, _export_partition)}
    files = {setting: (path, write) for setting, (path, write) in files.items() if path is not None}
    for setting, (path, write) in files.items():
        try:
            write(federation, path)
        except (OSError, ValueError) as error:
            raise SettingError(setting, path, f"cannot be written: {error}") from None
    _print_dataset(config, federation.dataset)
    _print_partition(federation)
    for setting, (path, _) in files.items():
        print(f"{setting}: {path}")
    return 0


def _draw_partition(federation: Federation, path: str) -> None:
    from rscfed_jax.report.plots import plot_partition

    plot_partition(federation.class_counts, federation.labeled, path)


def _export_partition(federation: Federation, path: str) -> None:
    save_partition(path, federation.members)


def _print_dataset(config: Config, dataset: Dataset) -> None:
    shape = "x".join(map(str, dataset.train_images.shape[1:]))
    print(f"{config.dataset}: {dataset.origin or 'drawn at random'}")
    print(f"{len(dataset.train_images)} training and {len(dataset.test_images)} test images, {shape}")
    mean, std = pixel_statistics(dataset.train_images)
    for name, own, constants in (("mean", mean, dataset.mean), ("standard deviation", std, dataset.std)):
        in_use = "these are in use" if constants is None else f"in use: {_numbers(constants)}"
        print(f"{name} of the training images: {_numbers(own / 255)}; {in_use}")
    counts = [np.bincount(labels, minlength=dataset.classes) for labels in (dataset.train_labels, dataset.test_labels)]
    names = dataset.class_names or [""] * dataset.classes
    shown = min(dataset.classes, MOST_CLASSES)
    print(f"{'class':>6} {'train':>7} {'test':>7}")
    for label in range(shown):
        print(f"{label:>6} {counts[0][label]:>7} {counts[1][label]:>7}  {names[label]}".rstrip())
    if dataset.classes > shown:
        print(f"(classes {shown} to {dataset.classes - 1} not shown)")


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


def _print_partition(federation: Federation) -> None:
    counts = federation.class_counts
    width = max(5, len(str(counts.max())) + 1)
    shown = range(min(federation.dataset.classes, MOST_CLASSES))
    print(f"{'client':>6} {'labels':>6} {'size':>6}  " + "".join(f"{label:>{width}}" for label in shown))
    for client, visible in enumerate(federation.label_visible):
        row = "".join(f"{counts[client, label]:>{width}}" for label in shown)
        print(f"{client:>6} {visible.sum():>6} {len(visible):>6}  {row}")


if __name__ == "__main__":
    sys.exit(main())
