"""What a round is made of when it is lowered for a GPU or a TPU, none of which is needed for it."""

import dataclasses
import re

import jax
import pytest

import rscfed_jax as rj
from rscfed_jax.core.client_axis import ClientAxis
from tests.helpers import run

CLIENTS = 4
CONFIG = rj.Config(
    dataset="synthetic:train=40,test=10,classes=3,size=16",
    image_size=16,
    clients=CLIENTS,
    gamma="iid",
    min_client_size=1,
    subsets=2,
    subset_size=2,
    batch_size=4,
    devices=1,
)


def lowered_for(platform, **settings):
    config = CONFIG.replace(**settings)
    simulation = rj.build_simulation(config, rj.build_federation(config))
    algorithm = dataclasses.replace(simulation.algorithm, axis=ClientAxis(CLIENTS))

    def rounds(state, data, hyper):
        return rj.scan_rounds(algorithm, state, data, hyper, rounds=1)

    state = simulation.state._replace(key=jax.random.key_data(simulation.state.key))

    def with_key(state, data, hyper):
        state, report = rounds(state._replace(key=jax.random.wrap_key_data(state.key)), data, hyper)
        return state.model, report

    exported = jax.export.export(jax.jit(with_key), platforms=[platform])(state, simulation.data, simulation.hyper)
    return exported.mlir_module()


@pytest.fixture(scope="module")
def cuda():
    return lowered_for("cuda")


@pytest.fixture(scope="module")
def tpu():
    return lowered_for("tpu")


def convolutions(text):
    """The groups of the batch and of the features of each convolution."""
    return re.findall(r"batch_group_count = (\d+) : i64, feature_group_count = (\d+)", text)


def test_on_gpus_kernel_gradients_are_backward_filter_convolutions(cuda):
    # Two of the student and two of the teacher, the gradient of one input, and those of two kernels.
    found = convolutions(cuda)
    assert sorted(found) == sorted([("1", str(CLIENTS))] * 5 + [(str(CLIENTS), "1")] * 2)


def test_on_tpus_no_single_pixel_is_gathered(tpu, cuda):
    def pixel_gathers(text):
        gathers = [line for line in text.splitlines() if "stablehlo.gather" in line]
        return [line for line in gathers if "slice_sizes = array<i64: 1, 1, 1>" in line]

    assert pixel_gathers(cuda)
    assert not pixel_gathers(tpu)


def test_no_loss_scatters(cuda, tpu):
    """Scatters store clients and reports; one of floats that adds would have no order on a GPU."""
    for text in (cuda, tpu):
        adding = re.findall(r'"stablehlo.scatter".*?\n.*?\n\s+%\S+ = stablehlo.add .*?tensor<f32>', text)
        assert not adding


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_products_of_training_have_the_precision_that_is_asked_for(precision, cuda):
    lines = (cuda if precision == "default" else lowered_for("cuda", precision=precision)).splitlines()
    products = [line for line in lines if "stablehlo.dot_general" in line or "stablehlo.convolution" in line]
    of_training = [line for line in products if "xf32>" in line]
    highest = [line for line in of_training if "HIGHEST" in line]
    if precision == "highest":
        assert len(highest) == len(of_training)
    else:
        assert 0 < len(highest) < len(of_training)  # those of the aggregation


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("plan --target a100", "--target a100: needs its compiler, from the package jax[cuda12]"),
        ("plan --target k80", "--target k80: must be one of v5e, v2, a100, t4, h100"),
        ("grid --set beta=1,2 --target v5e", "--target v5e: only compiles and does not run: add --dry-run"),
        ("reproduce table1 --target v5e", "--target v5e: only compiles and does not run: add --dry-run"),
        ("train --gpu-graphs", "--gpu-graphs True: needs a GPU; JAX sees cpu here"),
    ],
)
def test_targets_and_graphs_that_cannot_be_had_are_refused(command, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*command.split()) == 2
    said = capsys.readouterr().err.strip()
    assert line in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())
