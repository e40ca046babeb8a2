"""Which settings keep their values when others change.

Settings are a dictionary as config.json holds it. Its `given` lists the settings that were given by hand; without that
record all were.
"""

from collections.abc import Mapping
from typing import Any

from rscfed_jax.config.kinds import plain
from rscfed_jax.config.registry import METHODS, is_path
from rscfed_jax.config.settings import SETTINGS

RECORD = "given"
HASHES = ("method_hash", "model_hash")
DECIDING = ("method", "dataset", "preset")  # they bring defaults for the rest
# Settings whose default follows from others, as `Config` resolves them.
FOLLOWS = {
    "resize": ("image_size",),
    "subset_size": ("clients", "partition"),
    "beta_labeled": ("beta",),
    "server_lr": ("server_optimizer",),
    "attack_scale": ("attack",),
    "labeled_choice": ("partition_file",),
    "server_labels": ("labels_at",),
    "labeled_clients": ("labels_at", "labeled_fraction"),
    "gamma": ("classes_per_client", "partition"),
    "clients": ("partition",),
}


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with some of them changed, to be resolved by `Config`.

    Settings given by hand stay. The others stay as they were resolved, unless the method, the data set or the preset
    is another one, or a setting that they follow from. Own settings of the method before do not outlive it.
    """
    changes = {name: plain(value) for name, value in changes.items()}
    before = {name: value for name, value in settings.items() if name != RECORD}
    by_hand = {*(before if settings.get(RECORD) is None else settings[RECORD]), *changes}
    after = before | {"method_hash": None} | changes if "method" in changes else before
    old, new = _method_in(before), _method_in(after)
    moved = {name for name, value in changes.items() if value != before.get(name)}
    if old != new or moved & {"dataset", "preset"}:
        loose = before.keys() - by_hand - {*DECIDING, *HASHES}
    else:
        loose = {name for name, others in FOLLOWS.items() if moved & {*others}} - by_hand
    loose |= {f"{name}_hash" for name in ("method", "model") if name in changes or name in loose}
    if old[0] != new[0]:
        loose |= {name for name in before if name.startswith(f"{old[0]}_") and name not in {*SETTINGS, *HASHES}}
    kept = {name: value for name, value in before.items() if name not in loose} | changes
    return kept | {RECORD: [name for name, value in kept.items() if name in by_hand and value is not None]}


def _method_in(settings: Mapping[str, Any]) -> tuple[object, object]:
    """Name and hash of the method, whether it is named or a file's path."""
    method, stored = settings.get("method") or SETTINGS["method"].default, settings.get("method_hash")
    if stored is None and is_path(method):
        found = METHODS.find(method)
        return found.name, found.hash
    return method, stored
