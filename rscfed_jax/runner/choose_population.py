"""Where the clients of an experiment are while no round trains them: on the devices, on the host or on disk."""

from collections.abc import Sequence

import jax

from rscfed_jax.config import SettingError
from rscfed_jax.core.method import Method
from rscfed_jax.core.sampling import AllClients, LabeledClients, RandomSubsets, UnlabeledClients
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.choice import memory_limit
from rscfed_jax.runner.estimate import image_bytes
from rscfed_jax.runner.experiment import Experiment
from rscfed_jax.runner.memory import memory_of_the_host
from rscfed_jax.runner.step_cost import Parts

DEVICE_SHARE, HOST_SHARE = 0.5, 0.25  # of the memory that data and states of all clients may take


def choose_population(experiments: Sequence[Experiment], *, objects: Objects, device: jax.Device, capacity: int) -> str:
    """`device`, `host` or `disk`: as set, or the first that has room. Refuses what cannot be elsewhere.

    A working set is that of `capacity` rounds.
    """
    experiment = experiments[0]
    config, federation = experiment.config, experiment.federation
    if config.population == "device":
        return "device"
    if (reason := why_on_devices(experiments, objects.method_of(config))) is not None:
        if config.population == "auto":
            return "device"
        raise SettingError("population", config.population, f"{reason}; must be device or auto")
    if config.population == "disk" and experiment.directory is None:
        raise SettingError("population", "disk", "needs a run directory for the clients' states; give --out")
    if config.population != "auto":
        return config.population
    if config.holders <= capacity * config.subsets * config.subset_size:
        return "device"  # a working set may be all of them
    parts = Parts.of(config, federation, objects)
    own = parts.client_bytes(config)
    needed = image_bytes(config, federation) + config.holders * own
    if needed <= DEVICE_SHARE * (memory_limit(device) or memory_of_the_host()):
        return "device"
    drawn = min(config.holders, config.rounds * config.subsets * config.subset_size)
    return "host" if drawn * own <= HOST_SHARE * memory_of_the_host() or experiment.directory is None else "disk"


def why_on_devices(experiments: Sequence[Experiment], method: Method) -> str | None:
    """Why all clients must be on the devices; None if those suffice that take part in the rounds to come."""
    if len(experiments) > 1:
        return "several cells share this program"
    if jax.process_count() > 1:
        return "several processes share the clients"
    if isinstance(method.sample, RandomSubsets | LabeledClients):
        return None
    if isinstance(method.sample, AllClients | UnlabeledClients):
        return f"the method {method.name} trains all clients in every round, not subsets (--sampling subsets)"
    return f"the method {method.name} draws clients by a rule of its own"
