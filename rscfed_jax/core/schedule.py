"""Which slot of work runs when and on which device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.core.types import Array

NOBODY = np.int32(2**31 - 1)  # the client id of a slot that pads the work
# Devices wait for each other after a wave of slots. A long wave evens out their work, a short one takes less memory.
LONGEST_WAVE = 16
WAVE_BYTES = 256 * 2**20


def waves_of(slots: int, *, devices: int, chunk: int, size: int) -> tuple[int, int, int]:
    """How many waves there are, and in each the chunks of a device and the slots of a chunk."""
    per_device = -(-slots // devices)
    chunk = min(chunk or per_device, per_device)
    chunks = -(-per_device // chunk)
    longest = max(1, min(LONGEST_WAVE, WAVE_BYTES // (size * devices)) // chunk)
    waves = -(-chunks // longest)
    return waves, -(-chunks // waves), chunk


def order_of(work: Array, *, devices: int, chunk: int, size: int) -> Array:
    """[waves, devices, chunks, chunk] which slot runs when and where; each brings `size` bytes to every device.

    Slots sorted by falling work make chunks of alike slots; a chunk takes as long as its first slot.
    """
    waves, in_wave, chunk = waves_of(len(work), devices=devices, chunk=chunk, size=size)
    by_work = jnp.argsort(-work, stable=True)
    chunk_work = work[by_work].at[jnp.arange(waves * in_wave * devices) * chunk].get(mode="fill", fill_value=0)
    dealt = jax.vmap(partial(_deal, devices=devices))(chunk_work.reshape(waves, -1).astype(jnp.float32))
    dealt += in_wave * devices * jnp.arange(waves)[:, None, None]
    return take(by_work, dealt[..., None] * chunk + jnp.arange(chunk))


def _deal(work: Array, devices: int) -> Array:
    """[devices, n / devices] all items of falling `work` [n], so that devices get equal parts of it.

    Each item goes to the device whose free places need the largest ones to reach its part. Places that are left for
    items without work do not count.
    """
    if devices == 1:
        return jnp.arange(len(work))[None]
    number = len(work) // devices
    places = (jnp.count_nonzero(work) + jnp.arange(devices)) // devices
    part = jnp.sum(work) / devices

    def give(carry: tuple[Array, Array], amount: Array) -> tuple[tuple[Array, Array], Array]:
        load, taken = carry
        free = places - taken
        needs = jnp.where(free > 0, (part - load) / free, jnp.finfo(part.dtype).min)
        device = jnp.argmax(jnp.where(taken < number, needs, -jnp.inf))
        place = device * number + taken[device]
        return (load.at[device].add(amount), taken.at[device].add(1)), place

    nothing = jnp.zeros(devices, part.dtype), jnp.zeros(devices, places.dtype)
    _, places_of_items = jax.lax.scan(give, nothing, work)
    return jnp.argsort(places_of_items).reshape(devices, number)


def take(values: Array, places: Array | np.ndarray) -> Array:
    """`values` at `places`; NOBODY where there is none."""
    return jnp.asarray(values).at[places].get(mode="fill", fill_value=NOBODY)


def last_slots(ids: Array, number: int) -> Array:
    """[n] the ids, with NOBODY in all but the last slot of each of the `number` clients.

    A scatter with duplicate indices has no defined order.
    """
    slots = jnp.arange(len(ids))
    last = jnp.full(number, -1).at[ids].max(slots, mode="drop")
    return jnp.where(last.at[ids].get(mode="fill", fill_value=-1) == slots, ids, NOBODY)
