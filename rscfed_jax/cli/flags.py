"""The flags that commands have in common: one for every setting, a file of settings, a target, and processes."""

import argparse
from collections.abc import Sequence
from typing import Any

from rscfed_jax.config import PRESETS, SETTINGS, Setting
from rscfed_jax.config.kinds import SWITCH
from rscfed_jax.config.presets import USUAL
from rscfed_jax.config.registry import DATASETS, METHODS, NETWORKS
from rscfed_jax.data.load import datasets_help
from rscfed_jax.runner.targets import TARGETS

OR_FILE = ", or a Python file of your own: docs/extending.md"


def add_config(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flag of a file of settings."""
    parser.add_argument("--config", metavar="FILE", help=f"{what}; flags override it")


def add_target(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flag of a device to compile for."""
    parser.add_argument(
        "--target",
        metavar="DEVICE",
        help=f"{what} for a device that need not be present ({', '.join(TARGETS)}), and show memory, chunk and the "
        "least time by its data sheet; needs its compiler, from jax[cuda12] or jax[tpu]",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name the processes of a run."""
    group = parser.add_argument_group("processes", "not needed on clusters that JAX detects")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0; the same for every process")
    group.add_argument("--num-processes", metavar="P", help="number of processes that run this command")
    group.add_argument("--process-id", metavar="I", help="number of this process, from 0; only process 0 writes")


def add_settings(
    parser: argparse.ArgumentParser,
    *,
    groups: Sequence[str] | None,
    leave_out: Sequence[str] = (),
    only: Sequence[str] | None = None,
    own: Sequence[Setting] = (),
) -> None:
    """Adds a flag for every setting of the given groups, without a default.

    With all groups, it also adds the settings of all methods.
    """
    sections: dict[str, Any] = {}
    of_methods = [setting for method in METHODS.declarations.values() for setting in method.settings]
    for setting in (*SETTINGS.values(), *([*of_methods, *own] if groups is None else ())):
        wanted = (groups is None or setting.group in groups) and (only is None or setting.name in only)
        if not wanted or setting.name in leave_out:
            continue
        if setting.group not in sections:
            sections[setting.group] = parser.add_argument_group(setting.group)
        note = (HELP.get(setting.name, setting.help) + default_note(setting)).replace("%", "%%")
        common = {"dest": f"setting_{setting.name}", "help": note, "default": argparse.SUPPRESS}
        if setting.kind is SWITCH:
            sections[setting.group].add_argument(setting.flag, action=argparse.BooleanOptionalAction, **common)
        else:
            sections[setting.group].add_argument(setting.flag, metavar=setting.kind.metavar, **common)


HELP = {
    "dataset": datasets_help(),
    "method": ", ".join(METHODS.declarations) + OR_FILE,
    "model": "network of every client: " + ", ".join(NETWORKS.declarations) + OR_FILE,
}


def default_note(setting: Setting) -> str:
    """A setting's default in brackets, with the different defaults of presets, data sets and methods."""
    name = setting.name
    if setting.default is not None:
        usual = setting.default
    elif name in USUAL:
        usual = f"{USUAL[name]} of --image-size" if name == "resize" else USUAL[name]
    elif name in PRESETS["paper"]:
        usual = PRESETS["paper"][name]
    else:
        return ""
    others = {preset: values[name] for preset, values in PRESETS.items() if values.get(name, usual) != usual}
    for room in (DATASETS, METHODS):
        for declared in room.declarations.values():
            if name in (defaults := declared.get("DEFAULTS", {})):
                others[declared.name] = defaults[name]
            for preset, values in declared.get("PRESETS", {}).items():
                if name in values:
                    others[f"{declared.name} {preset}"] = values[name]
    said = ([] if usual is None else [f"default {_as_flag(usual)}"]) + [
        f"{who} {_as_flag(value)}" for who, value in others.items() if value is not None
    ]
    return f" ({'; '.join(said)})" if said else ""


def _as_flag(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
