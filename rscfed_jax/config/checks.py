"""Refuses combinations of settings that do not work together, before JAX is imported."""

from typing import TYPE_CHECKING

from rscfed_jax.config.kinds import SettingError, is_int
from rscfed_jax.config.registry import Declaration
from rscfed_jax.config.settings import SETTINGS

if TYPE_CHECKING:
    from rscfed_jax.config.config import Config

SMALLEST_STRONG_SIDE = 16  # of an image that RandAugment and cutout leave something of
# Fewest members of a subset, beyond twice the attackers, that an aggregator works with.
LEAST_HONEST = {"trimmed_mean": 1, "krum": 3, "multi_krum": 3}
OF_A_DRAW = ("gamma", "classes_per_client", "partition_file", "labeled_gamma", "min_client_size")


def check_together(config: "Config") -> None:
    """Refuses settings that cannot be combined."""
    _check_labels(config)
    _check_partition(config)
    if config.byzantine > config.clients:
        raise SettingError("byzantine", config.byzantine, f"must be from 0 to --clients {config.clients}")
    if config.resize < config.image_size:
        raise SettingError("resize", config.resize, f"must be at least --image-size {config.image_size}")
    if config.samples == "subsets" and config.subset_size > config.clients:
        raise SettingError("subset_size", config.subset_size, f"must be from 1 to --clients {config.clients}")
    if config.samples == "unlabeled" and (config.labeled_clients == config.clients or config.labeled_fraction == 1):
        raise no_unlabeled_samples(config)
    if config.labeled_batch_size is not None and config.labeled_fraction is None:
        reason = "needs --labeled-fraction, which gives every client labeled and unlabeled samples"
        raise SettingError("labeled_batch_size", config.labeled_batch_size, reason)
    if config.server_optimizer == "adam" and config.server_momentum == 1:
        raise SettingError("server_momentum", 1, "must be below 1, because Adam divides by one minus it")
    _check_aggregator(config)
    if config.method_file is not None:
        _check_method(config, config.method_file)
    if config.model_file is not None:
        _check_model(config, config.model_file)


def no_unlabeled_samples(config: "Config") -> SettingError:
    """The error where every sample has a label, and only clients with unlabeled ones would take part."""
    setting = "labeled_clients" if config.labeled_fraction is None else "labeled_fraction"
    needs = f"--method {config.method}" if config.sampling == "own" else f"--sampling {config.sampling}"
    reason = f"leaves no unlabeled samples, which {needs} needs; must be smaller"
    return SettingError(setting, getattr(config, setting), reason)


def _check_labels(config: "Config") -> None:
    if config.labels_at == "server":
        for name in ("labeled_clients", "labeled_fraction"):
            if (value := getattr(config, name)) is not None:
                raise SettingError(
                    name, value, "cannot be combined with --labels-at server, where no client holds labels"
                )
        return
    if config.server_labels is not None:
        raise SettingError("server_labels", config.server_labels, "needs --labels-at server")
    if config.labeled_fraction is not None:
        if config.labeled_clients is not None:
            reason = "cannot be combined with --labeled-clients; give only one"
            raise SettingError("labeled_fraction", config.labeled_fraction, reason)
        if config.labeled_fraction == 0:
            raise SettingError("labeled_fraction", 0, "no client would hold a label; must be above 0 and at most 1")
    elif config.labeled_clients == 0:
        raise SettingError("labeled_clients", 0, f"no client would hold a label; must be from 1 to {config.clients}")
    elif config.labeled_clients is not None and config.labeled_clients > config.clients:
        raise SettingError("labeled_clients", config.labeled_clients, f"must be from 1 to --clients {config.clients}")


def wrong_clients(dataset: str, named: int) -> str:
    """Why a number of clients does not fit a data set that names its own."""
    return f"{dataset} says which of {named} clients holds each sample; must be {named}, or give --partition drawn"


def _check_partition(config: "Config") -> None:
    if config.partition == "natural":
        for name in OF_A_DRAW:
            if (value := getattr(config, name)) not in (None, SETTINGS[name].default):
                reason = (
                    f"{config.dataset} says which client holds each sample; leave it out, or give --partition drawn"
                )
                raise SettingError(name, value, reason)
    if config.classes_per_client is not None:
        for name in ("gamma", "partition_file"):
            if getattr(config, name) is not None:
                reason = f"cannot be combined with --{name.replace('_', '-')}; give only one"
                raise SettingError("classes_per_client", config.classes_per_client, reason)
    if config.labeled_gamma is None:
        return
    for name in ("classes_per_client", "partition_file"):
        if getattr(config, name) is not None:
            reason = (
                f"cannot be combined with --{name.replace('_', '-')}, which already decides who holds which samples"
            )
            raise SettingError("labeled_gamma", config.labeled_gamma, reason)
    if config.labeled_fraction is None or config.labeled_fraction == 1:
        reason = "needs a --labeled-fraction below 1, which says how many labeled samples there are"
        raise SettingError("labeled_gamma", config.labeled_gamma, reason)


def _check_aggregator(config: "Config") -> None:
    if config.aggregator not in LEAST_HONEST or config.samples is None:
        return
    labeled = config.clients if config.labeled_clients is None else config.labeled_clients
    unlabeled = config.clients if config.labeled_clients is None else config.clients - labeled
    if config.server is not None:  # it may join the clients; who really takes part is known when a run is built
        labeled, unlabeled = 1, config.clients
    members = {"subsets": config.subset_size, "all": config.clients, "labeled": labeled, "unlabeled": unlabeled}
    check_members(config, members[config.samples] + (config.server is not None))


def check_members(config: "Config", held: int) -> None:
    """Refuses a robust aggregator of `held` models that are too few for it."""
    if config.aggregator not in LEAST_HONEST:
        return
    needed = 2 * config.assumed_attackers + LEAST_HONEST[config.aggregator]
    if held < needed:
        reason = (
            f"needs at least {needed} models to withstand --assumed-attackers {config.assumed_attackers}, "
            f"but {held} are averaged together"
        )
        raise SettingError("aggregator", config.aggregator, reason)


def _check_method(config: "Config", method: Declaration) -> None:
    given = config.given()
    for name, reason in method.get("REFUSES", {}).items():
        if name not in SETTINGS:
            raise SettingError("method", method.path, f"its REFUSES name {name}, which is not a setting")
        if given.get(name) not in (None, False, "off"):
            raise SettingError("method", config.method, str(reason))
    if method.get("STRONG_VIEW", False) and config.strong != "weak" and config.image_size < SMALLEST_STRONG_SIDE:
        reason = f"has a strong view, which needs --image-size {SMALLEST_STRONG_SIDE} or more, or --strong weak"
        raise SettingError("method", config.method, reason)


def _check_model(config: "Config", model: Declaration) -> None:
    least, multiple = model.get("SMALLEST_SIDE", 1), model.get("SIDE_MULTIPLE", 1)
    if not (is_int(least) and is_int(multiple) and multiple > 0):
        raise SettingError("model", model.path, "its SMALLEST_SIDE and SIDE_MULTIPLE must be whole numbers")
    if config.image_size < least or config.image_size % multiple:
        sides = f"multiples of {multiple}" if multiple > 1 else "sides"
        raise SettingError("image_size", config.image_size, f"{config.model} takes {sides} of at least {least}")
