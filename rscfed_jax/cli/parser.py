"""The command line: its flags, and one-line errors for wrong settings. `commands` has what the commands do."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from rscfed_jax import __version__
from rscfed_jax.cli import commands
from rscfed_jax.cli.flags import add_config, add_processes, add_settings, add_target
from rscfed_jax.cli.settings import file_of, with_source
from rscfed_jax.config import Setting, SettingError
from rscfed_jax.config.limits import read_limits
from rscfed_jax.config.registry import METHODS, is_path
from rscfed_jax.data.load import datasets_help
from rscfed_jax.paper.tables import DECIDED, TABLES
from rscfed_jax.runner.memory import is_out_of_memory
from rscfed_jax.runner.processes import leave

GROUPS_OF_DATA = ("data", "federation")
USAGE = "%(prog)s [FLAG ...]"  # argparse would list a hundred flags before it says what the command does


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    0: done. 2: a wrong setting, a file that cannot be read or written, or not enough memory. 3: the global model is no
    longer finite. 4: another process of the run has ended. 130 and 143: stopped by SIGINT or SIGTERM. 141: nobody read
    the result.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        read_limits()  # refused at once if wrong, even where no file is read
        methods = [METHODS.find(path) for path in method_files(argv)]
        parser = _parser([setting for method in methods for setting in method.settings])
    except SettingError as error:
        print(f"rscfed-jax: error: {error}", file=sys.stderr)
        return 2
    except argparse.ArgumentError as error:
        files, flag = ", ".join(method_files(argv)), error.argument_name
        print(
            f"rscfed-jax: error: --method {files}: a number would be {flag}, which is already a flag", file=sys.stderr
        )
        return 2
    if nothing := next((word for word in argv if word.startswith("--") and word.endswith("=--")), None):
        parser.error(f"argument {nothing.removesuffix('=--')}: expected one argument")  # argparse would give it a list
    arguments = parser.parse_args(argv)
    arguments.methods = [str(method.path) for method in methods]
    try:
        arguments.config_file = file_of(arguments)
        code = arguments.run(arguments)
        sys.stdout.flush()
        return leave(code)
    except SettingError as error:
        print(f"rscfed-jax {arguments.command}: error: {with_source(error, arguments)}", file=sys.stderr)
        return leave(2)
    except BrokenPipeError:
        # Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return leave(141)
    except KeyboardInterrupt:
        print(f"rscfed-jax {arguments.command}: stopped", file=sys.stderr)
        return leave(130)
    except Exception as error:
        if is_out_of_memory(error):
            print(f"rscfed-jax {arguments.command}: error: not enough memory: {error}", file=sys.stderr)
            return leave(2)
        traceback.print_exc()
        return leave(1)


def method_files(argv: Sequence[str]) -> list[str]:
    """The files of methods that the arguments name: their own settings are flags, too."""
    files = []
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        following = value if equals else " ".join(argv[place + 1 : place + 2])
        if name == "--method":
            files.append(following)
        elif name == "--set" and following.partition("=")[0].strip() == "method":
            files += [part.strip() for part in following.partition("=")[2].split(",")]
    return list(dict.fromkeys(filter(is_path, files)))


def _parser(own: Sequence[Setting] = ()) -> argparse.ArgumentParser:
    """The parser of all commands; `own` are the settings of methods in users' files."""
    parser = _Parser(
        prog="rscfed-jax",
        description="Federated semi-supervised learning as one compiled JAX program: RSCFed and its baselines.",
        allow_abbrev=False,
    )
    parser.set_defaults(config_file=None, from_file={})  # what --config says, and what of it counts, once it is read
    parser.add_argument("--version", action="version", version=__version__)
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    train = parsers.add_parser(
        "train",
        usage=USAGE,
        help="train a federation",
        description="Train a federation. Without flags: RSCFed on the embedded Fashion-MNIST subset.",
        allow_abbrev=False,
    )
    add_config(train, "a run's config.json, to repeat it, or a TOML file of settings")
    add_settings(train, groups=None, own=own)
    train.add_argument("--out", help="run directory (default runs/DATASET-METHOD-seedSEED)")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument("--quiet", action="store_true", help="show only the result, no progress")
    train.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write event files for TensorBoard into OUT/tensorboard (needs the package tensorboardX)",
    )
    train.add_argument(
        "--wandb",
        action="store_true",
        help="also log to Weights & Biases, as set by its variables such as WANDB_MODE (needs the package wandb)",
    )
    train.add_argument(
        "--mlflow",
        action="store_true",
        help="also log to MLflow, as set by its variables such as MLFLOW_TRACKING_URI (needs the package mlflow)",
    )
    train.set_defaults(run=commands.train)

    add_processes(train)

    evaluate = parsers.add_parser(
        "evaluate",
        usage=f"{USAGE} PATH",
        help="test the model of a run",
        description="Test the newest model of a run, by default on the data of the run, or a model file, with the data "
        "and the network that the flags name. The last line is one JSON object.",
        allow_abbrev=False,
    )
    evaluate.add_argument("path", metavar="PATH", help="run directory, one of its checkpoints, or a model file")
    add_settings(evaluate, groups=(*GROUPS_OF_DATA, "model"), leave_out=("init_from",))
    add_settings(evaluate, groups=("run",), only=("seed",))
    evaluate.set_defaults(run=commands.evaluate)

    table = parsers.add_parser(
        "reproduce",
        usage=f"{USAGE} TABLE",
        help="run a published table",
        description="Run a table of the RSCFed paper or of a later paper, and put the published numbers beside ours. "
        "Finished cells in --out are skipped, and interrupted ones resume. --method adds a method to the table.",
        allow_abbrev=False,
    )
    table.add_argument("table", metavar="TABLE", help=", ".join(TABLES))
    add_config(table, "a TOML file of settings, or a run's config.json, of which the settings given by hand are used")
    table.add_argument("--out", help="directory of the table (default runs/TABLE-DATASET)")
    table.add_argument("--seeds", metavar="N", help="run every cell with the seeds 0 to N - 1 (default 1)")
    table.add_argument(
        "--dry-run", action="store_true", help="only list the cells, with their settings and estimated time"
    )
    table.add_argument("--quiet", action="store_true", help="show only the table, no progress")
    add_target(table, "with --dry-run, also compile")
    offered = {"method", *(name for published in TABLES.values() for name in published.offers)}
    add_settings(table, groups=None, leave_out=[name for name in DECIDED if name not in offered], own=own)
    add_processes(table)
    table.set_defaults(run=commands.reproduce_table)

    grid = parsers.add_parser(
        "grid",
        usage="%(prog)s --set NAME=V,V,... [FLAG ...]",
        help="run every combination of values of some settings",
        description="Run every combination of the values of some settings, with several seeds. Cells that differ only "
        "in numbers, seed and partition run as one compiled program. Finished cells in --out are skipped, interrupted "
        "cells resume, and you can add values later.",
        allow_abbrev=False,
    )
    add_config(grid, "a TOML file of settings, with values to combine in its table [grid], or a run's config.json")
    grid.add_argument(
        "--set", action="append", metavar="NAME=V,V,...", help="values of a setting, as in beta=0,100,1e4; repeatable"
    )
    grid.add_argument("--seeds", metavar="N", help="run every cell with N seeds, starting at --seed (default 1)")
    grid.add_argument("--out", help="directory of the grid (default runs/grid-NAMES)")
    grid.add_argument("--dry-run", action="store_true", help="only list cells, programs, memory and estimated time")
    grid.add_argument("--quiet", action="store_true", help="show only the table, no progress")
    add_target(grid, "with --dry-run, also compile")
    grid.add_argument(
        "--grid-devices", metavar="N", help="spread cells over N groups of devices, clients inside each (default 1)"
    )
    grid.add_argument("--cells-at-once", metavar="N", help="at most N cells in one program (default: no limit)")
    add_settings(grid, groups=None, own=own)
    add_processes(grid)
    grid.set_defaults(run=commands.grid)

    plan = parsers.add_parser(
        "plan",
        usage=USAGE,
        help="estimate the cost of an experiment",
        description="Estimate memory, arithmetic and communication of an experiment without running it, for its own "
        "number of clients and for others. The last line is one JSON object.",
        allow_abbrev=False,
    )
    add_config(plan, "a run's config.json or a TOML file of settings")
    add_settings(plan, groups=None, own=own)
    plan.add_argument(
        "--memory", metavar="SIZE", default="16GiB", help="memory of a device, for the largest chunk (default 16GiB)"
    )
    plan.add_argument(
        "--flops", metavar="F", help="FLOP/s that all devices reach together, such as 20T, to estimate hours"
    )
    add_target(plan, "instead of estimating, compile")
    plan.set_defaults(run=commands.plan)

    export = parsers.add_parser(
        "export",
        help="write the model of a run as a file for PyTorch",
        description="Write the newest global model of a run, with the tensor names of the published PyTorch code.",
        allow_abbrev=False,
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="run directory, or one of its checkpoints")
    export.add_argument(
        "file", metavar="FILE", help="file to write; ends in .safetensors, or in .pt or .pth for a state dict"
    )
    export.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    export.set_defaults(run=commands.export)

    report = parsers.add_parser(
        "report",
        help="write a page, table or picture of runs",
        description="Compare runs on one HTML page that needs no network: settings that differ, final and best metrics "
        "over seeds, curves, communication, and inside each run the classes and weights of clients and the confusion "
        "matrix. Runs that differ only in their seed are one line. Unfinished runs are included.",
        allow_abbrev=False,
    )
    report.add_argument(
        "directories", metavar="DIR", nargs="+", help="a run directory, or one with runs anywhere below it"
    )
    formats = (
        "html, md (tables), csv (one line per setting, full precision) or png (all curves, details of the first run)"
    )
    report.add_argument("--format", help=f"{formats}; default: the ending of --out, or html")
    report.add_argument(
        "--out",
        metavar="FILE",
        help="file to write or replace; ends in its format (default DIR/report.FORMAT; report.FORMAT for several DIR)",
    )
    report.set_defaults(run=commands.report)

    data = parsers.add_parser(
        "data",
        usage=f"{USAGE} DATASET",
        help="show a data set and its partition",
        description="Show a data set, and which client holds what under the given flags.",
        allow_abbrev=False,
    )
    data.add_argument("dataset", metavar="DATASET", help=datasets_help())
    add_settings(data, groups=GROUPS_OF_DATA, leave_out=("dataset",))
    add_settings(data, groups=("method", "run"), only=("preset", "seed"))
    data.add_argument("--figure", metavar="FILE", help="also draw the partition to this file (png, pdf or svg)")
    data.add_argument(
        "--export", metavar="FILE", help="also write the partition to this npz file, for --partition-file"
    )
    data.set_defaults(run=commands.data)
    return parser


if __name__ == "__main__":
    sys.exit(main())
