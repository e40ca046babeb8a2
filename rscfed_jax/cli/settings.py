"""The settings of a command line: those of its flags, which override those of --config."""

import argparse
import re
from collections.abc import Collection
from typing import Any

from rscfed_jax.config import RECORD, SETTINGS, SettingError
from rscfed_jax.config.config_file import ConfigFile, read_config_file
from rscfed_jax.config.documents import cut
from rscfed_jax.config.registry import known_settings
from rscfed_jax.paper.tables import decided_by, rows_of

PREFIX = "setting_"  # of the arguments that are settings of an experiment
Axes = dict[str, list[Any]]


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings given as flags."""
    flags = {name.removeprefix(PREFIX): value for name, value in vars(arguments).items() if name.startswith(PREFIX)}
    known = known_settings(str(flags.get("method")), *arguments.methods)
    return {name: value if isinstance(value, bool) else known[name].read(value) for name, value in flags.items()}


def file_of(arguments: argparse.Namespace) -> ConfigFile | None:
    """What the file of --config says, if one is given; only the command grid takes one that holds a grid."""
    path = getattr(arguments, "config", None)
    if path is None:
        return None
    file = read_config_file(path, methods=arguments.methods)
    if arguments.command != "grid":
        file.check_no_grid()
    return file


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of one experiment, as `Config` takes them."""
    flags, file = flags_of(arguments), arguments.config_file
    return flags if file is None else _over(file, flags, arguments, named=flags)


def settings_of_grid(arguments: argparse.Namespace, axes: Axes) -> tuple[dict[str, Any], Axes]:
    """The settings that the cells of a grid have in common, and the values to combine; `axes` are those of --set."""
    flags, file = flags_of(arguments), arguments.config_file
    if file is None:
        return flags, axes
    axes = {name: values for name, values in file.axes.items() if name not in flags} | axes
    return _over(file, flags, arguments, named={*flags, *axes}, varied=axes), axes


def settings_of_table(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the rows of a table have in common.

    Of a run's config.json those count that were given by hand, except where the table's rows decide.
    """
    flags, file = flags_of(arguments), arguments.config_file
    if file is None:
        return flags
    settings = _over(file, flags, arguments, named={*flags, "method"} if file.of_run else flags)
    given = {name: settings[name] for name in settings[RECORD]}
    if not file.of_run:
        return given
    rows = rows_of(arguments.table, given.get("dataset", SETTINGS["dataset"].default), given)
    left_out = decided_by(arguments.table, rows)
    if settings.get("method") not in (row.settings["method"] for row in rows):
        left_out |= given.keys() - SETTINGS.keys()
    return {name: value for name, value in given.items() if name in flags or name not in left_out}


def _over(
    file: ConfigFile,
    flags: dict[str, Any],
    arguments: argparse.Namespace,
    *,
    named: Collection[str],
    varied: Collection[str] = (),
) -> dict[str, Any]:
    """The settings of the file, the flags over them; the arguments note what is the file's, for refusals."""
    file.check_built_in(named=named)
    settings = file.changed(flags, varied=varied)
    arguments.from_file = {name: value for name, value in settings.items() if name not in flags}
    return settings


def with_source(error: SettingError, arguments: argparse.Namespace) -> str:
    """The error, with the values that it names and that came from the file, which the user may not be aware of."""
    named = dict.fromkeys(word.replace("-", "_") for word in re.findall(r"--([a-z][a-z0-9-]*)", str(error)))
    stored = {name: arguments.from_file[name] for name in named if name in arguments.from_file}
    said = ", ".join(f"--{name.replace('_', '-')} {cut(str(value))}" for name, value in stored.items())
    return f"{error} ({said}: from {arguments.config_file.path})" if said else str(error)
