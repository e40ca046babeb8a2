"""What a local step costs, counted without a device."""

import pytest

import rscfed_jax as rj
from rscfed_jax.runner.build import NO_OBJECTS
from rscfed_jax.runner.step_cost import Parts, saved_bytes

SIDE, BATCH = 16, 8


def saved(**settings):
    config = rj.Config(
        dataset=f"synthetic:train=60,test=20,classes=3,size={SIDE}",
        **{"image_size": SIDE, "clients": 4, "min_client_size": 1, "gamma": "iid", "batch_size": BATCH} | settings,
    )
    federation = rj.build_federation(config)
    return saved_bytes(config, 3, Parts.of(config, federation, NO_OBJECTS), NO_OBJECTS)


def test_what_a_step_saves_grows_with_the_batch_and_shrinks_with_the_type():
    of_batch = [saved(model="resnet8", batch_size=size) for size in (8, 16, 24)]
    # Parameters, which no batch changes, are saved as well.
    assert of_batch[2] - of_batch[1] == of_batch[1] - of_batch[0] > 0
    halves = [saved(model="resnet8", batch_size=size, dtype="bfloat16") for size in (8, 16)]
    # Normalisation computes in float32 in any case.
    assert 0.5 < (halves[1] - halves[0]) / (of_batch[1] - of_batch[0]) < 0.9


@pytest.mark.parametrize("method", ["rscfed", "fixmatch", "cbafed", "sage"])
def test_a_step_saves_at_least_its_images_for_the_gradient_of_the_first_kernel(method):
    assert saved(method=method) > 3 * SIDE * SIDE * BATCH * 4
