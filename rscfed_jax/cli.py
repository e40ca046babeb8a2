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

from rscfed_jax import __version__
from rscfed_jax.config import Config, Kind, SettingError, read_setting
from rscfed_jax.data.federation import Federation, build_federation
from rscfed_jax.data.sources import load_dataset
from rscfed_jax.modelfile import check_target, is_model_file
from rscfed_jax.rundir import RunDirectory, check_stored, load_config

GROUPS_OF_DATA = ("data", "federation")
METRICS = ("accuracy", "auc", "precision", "recall")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, or 2 for a wrong setting."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except SettingError as error:
        print(f"rscfed-jax {arguments.command}: error: {error}", file=sys.stderr)
        return 2


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
    _add_settings(data, groups=("run",), only=("seed",))
    data.add_argument("--figure", help="also draw the partition into this file (png, pdf or svg)")
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
    from rscfed_jax.experiment import train

    try:
        result = train(
            config, out=directory.path, resume=arguments.resume, progress=not arguments.quiet, federation=federation
        )
    except KeyboardInterrupt:
        print(f"stopped; `--out {directory.path} --resume` with the same flags goes on", file=sys.stderr)
        return 130
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


def _evaluate(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if is_model_file(arguments.path):
        check_stored(arguments.path, setting="PATH")
        config = Config(subset_size=1, **settings)
    else:
        config = load_config(arguments.path, setting="PATH").replace(**settings)
    load_dataset(config.dataset, data_dir=config.data_dir, seed=config.seed)
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
    federation = build_federation(config)
    _print_federation(config, federation)
    if arguments.figure:
        from rscfed_jax.report.plots import plot_partition

        try:
            plot_partition(federation.class_counts, federation.labeled, arguments.figure)
        except (OSError, ValueError) as error:
            raise SettingError("figure", arguments.figure, f"cannot be written: {error}") from None
        print(f"figure: {arguments.figure}")
    return 0


def _print_federation(config: Config, federation: Federation) -> None:
    dataset = federation.dataset
    shape = "x".join(map(str, dataset.train_images.shape[1:]))
    print(
        f"{config.dataset}: {len(dataset.train_images)} training and {len(dataset.test_images)} test images, "
        f"{shape}, {dataset.classes} classes"
    )
    counts = federation.class_counts
    width = max(5, len(str(counts.max())) + 1)
    shown = range(min(dataset.classes, 20))
    print(f"{'client':>6} {'labels':>6} {'size':>6}  " + "".join(f"{label:>{width}}" for label in shown))
    for client, visible in enumerate(federation.label_visible):
        row = "".join(f"{counts[client, label]:>{width}}" for label in shown)
        print(f"{client:>6} {visible.sum():>6} {len(visible):>6}  {row}")
    if dataset.classes > len(shown):
        print(f"(classes {len(shown)} to {dataset.classes - 1} not shown)")


if __name__ == "__main__":
    sys.exit(main())
