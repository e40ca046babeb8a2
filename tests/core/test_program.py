"""Rounds as a program: what is inside it, what its arguments are, and that cutting it changes nothing."""

import dataclasses
from collections import Counter

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rscfed_jax.core.augment import weak
from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.core.faults import ATTACKS, Faults
from rscfed_jax.core.method import Method
from rscfed_jax.core.program import init_cells, run_cells, run_rounds, scan_rounds
from rscfed_jax.core.round import one_round
from rscfed_jax.core.sampling import LabeledClients
from rscfed_jax.core.types import FederatedData
from rscfed_jax.data.table import train_table
from tests.helpers import Tiny, once, ragged_federation, two_devices


@pytest.mark.parametrize(
    ("precision", "atol"), [("float64", 1e-9), pytest.param("float32", 1e-5, marks=pytest.mark.slow)]
)
def test_five_rounds_by_scan_equal_five_by_a_python_loop(precision, atol):
    with jax.enable_x64(precision == "float64"):
        tiny = Tiny()
        algorithm = tiny.algorithm(axis=ClientAxis(2))
        start = tiny.state(algorithm)
        scan = jax.jit(scan_rounds, static_argnames=("algorithm", "rounds"))
        scanned, reports = scan(algorithm, start, tiny.data, tiny.hyper, rounds=5)
        looped = start
        for number in range(5):
            looped, report = once(algorithm, looped, tiny.data, tiny.hyper)
            np.testing.assert_array_equal(report.subsets, reports.subsets[number])
        chex.assert_trees_all_close(scanned._replace(key=0), looped._replace(key=0), atol=atol)
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), looped.model, start.model)
        assert max(jax.tree.leaves(moved)) > 1e-3


def test_a_cut_does_not_change_a_bit_and_one_compilation_serves_every_length_and_number():
    tiny = Tiny()
    algorithm = tiny.algorithm()
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(n=1)(run_rounds.__wrapped__), static_argnames=("algorithm", "capacity"))
    whole, reports = counted(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(4), capacity=5)
    assert int(whole.round) == 4
    assert reports.weights.shape == (5, 2, 3)
    assert not reports.weights[4].any()
    parts = tiny.state(algorithm)
    for rounds in (1, 2, 1):
        parts, _ = counted(algorithm, parts, tiny.data, tiny.hyper, jnp.int32(rounds), capacity=5)
    chex.assert_trees_all_equal(parts._replace(key=0), whole._replace(key=0))
    faster = tiny.hyper._replace(lr_labeled=tiny.hyper.lr_labeled * 2, beta=tiny.hyper.beta * 0)
    other, _ = counted(algorithm, tiny.state(algorithm), tiny.data, faster, jnp.int32(4), capacity=5)
    assert float(jnp.abs(other.model["params"]["l3"]["kernel"] - whole.model["params"]["l3"]["kernel"]).max()) > 0


def exported(program, platform, *arguments):
    """The text of a program for a platform."""
    jitted = jax.jit(program.__wrapped__, static_argnames=("algorithm", "capacity"))
    return jax.export.export(jitted, platforms=[platform])(*arguments, jnp.int32(1), capacity=2)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("axis", [ClientAxis(0), two_devices(0)], ids=["one device", "two devices"])
def test_the_round_lowers_for_accelerators(platform, axis):
    tiny = Tiny(conv="auto")
    algorithm = tiny.algorithm(axis=axis)
    text = exported(run_rounds, platform, algorithm, tiny.state(algorithm), tiny.data, tiny.hyper).mlir_module()
    assert "stablehlo.convolution" in text
    for host_call in ("callback", "infeed", "outfeed"):
        assert host_call not in text


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_cells_of_a_grid_lower_for_accelerators_with_their_mesh(platform):
    tiny = Tiny()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), (GRID, CLIENTS))
    algorithm = tiny.algorithm(axis=ClientAxis(0, mesh))
    federations = [ragged_federation(), ragged_federation(sizes=(5, 4, 3, 2, 9))]
    data = FederatedData(**train_table(federations, image_size=16, resize_to=20))
    hyper = jax.tree.map(lambda number: jnp.stack([number, number]), tiny.hyper)
    program = exported(run_cells, platform, algorithm, init_cells(algorithm, jnp.arange(2), 5, hyper), data, hyper)
    assert program.nr_devices == 4
    for host_call in ("callback", "infeed", "outfeed"):
        assert host_call not in program.mlir_module()


def test_images_and_numbers_are_arguments_not_constants():
    tiny = Tiny(own={"factor": 2.0})
    # Numbers of faults are arguments as well, of a program that has faults.
    algorithm = dataclasses.replace(tiny.algorithm(), faults=Faults(drops=True, attack=ATTACKS["noise"]))
    lowered = run_rounds.lower(
        algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(1), capacity=2
    )
    text = lowered.as_text()
    signature = text[text.index("@main") : text.index("{\n", text.index("@main"))]
    images = "x".join(map(str, tiny.data.images.shape))
    assert f"tensor<{images}xui32>" in signature
    largest = max((len(line) for line in text.splitlines() if "stablehlo.constant" in line), default=0)
    assert largest < 10_000
    kept = jax.tree.leaves(lowered.args_info[0][3])
    assert len(kept) == len(jax.tree.leaves(tiny.hyper))
    assert signature.count("tensor<f32>") == len(jax.tree.leaves(tiny.hyper)) - 1  # none but the method's own is unused


def operations(jaxpr):
    """All operations of a program, those of its loops and calls counted once."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from operations(inner)


@pytest.mark.parametrize(
    ("method", "views", "products"),
    [
        # The student's two layers forward and three products backward, then the mean of eight tensors.
        (Method(sample=LabeledClients(), views={"student": weak}, teacher="none"), 1, 2 + 3 + 8),
        # The teacher's two layers besides.
        (Method(sample=LabeledClients()), 2, 2 + 2 + 3 + 8),
        # The mean of a subset twice.
        (None, 2, 2 + 2 + 3 + 2 * 8),
    ],
    ids=["without a teacher", "with a teacher", "rscfed"],
)
def test_a_part_that_a_method_does_not_bring_is_not_in_the_program(method, views, products):
    tiny = Tiny()
    algorithm = tiny.algorithm(method=method)
    traced = jax.make_jaxpr(one_round, static_argnums=0)(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    found = list(operations(traced.jaxpr))
    count = Counter(operation.primitive.name for operation in found)
    assert count["while"] == 1  # over the batches of a client
    assert count["scan"] == 2  # over the clients and over the epochs
    assert count["dot_general"] == products
    images = [op for op in found if op.primitive.name == "gather" and op.invars[0].aval.shape == tiny.data.images.shape]
    assert len(images) == views
