"""Rounds as a program: what is inside it, what its arguments are, and that cutting it changes nothing."""

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


def test_five_rounds_by_scan_equal_five_by_a_python_loop(x64):
    tiny = Tiny()
    algorithm = tiny.algorithm()
    start = looped = tiny.state(algorithm)
    scan = jax.jit(scan_rounds, static_argnames=("algorithm", "rounds"))
    scanned, reports = scan(algorithm, start, tiny.data, tiny.hyper, rounds=5)
    for number in range(5):
        looped, report = once(algorithm, looped, tiny.data, tiny.hyper)
        np.testing.assert_array_equal(report.subsets, reports.subsets[number])
    chex.assert_trees_all_close(scanned._replace(key=0), looped._replace(key=0), atol=1e-9)
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


def state_like(tiny, algorithm):
    """Shapes and types of the state before round 0."""
    return jax.eval_shape(lambda: tiny.state(algorithm))


def exported(program, platform, *arguments):
    """A program for a platform that is not here; none calls the host."""
    jitted = jax.jit(program.__wrapped__, static_argnames=("algorithm", "capacity"))
    found = jax.export.export(jitted, platforms=[platform])(*arguments, jnp.int32(1), capacity=2)
    for host_call in ("callback", "infeed", "outfeed"):
        assert host_call not in found.mlir_module()
    return found


def test_the_round_lowers_for_accelerators():
    tiny = Tiny(conv="auto")
    algorithm = tiny.algorithm(axis=two_devices(0))
    program = exported(run_rounds, "tpu", algorithm, state_like(tiny, algorithm), tiny.data, tiny.hyper)
    assert "stablehlo.convolution" in program.mlir_module()
    assert program.nr_devices == 2


def test_the_cells_of_a_grid_lower_for_accelerators_with_their_mesh():
    tiny = Tiny()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), (GRID, CLIENTS))
    algorithm = tiny.algorithm(axis=ClientAxis(0, mesh))
    federations = [ragged_federation(), ragged_federation(sizes=(5, 4, 3, 2, 9))]
    data = FederatedData(**train_table(federations, image_size=16, resize_to=20))
    hyper = jax.tree.map(lambda number: jnp.stack([number, number]), tiny.hyper)
    state = jax.eval_shape(lambda: init_cells(algorithm, jnp.arange(2), 5, hyper))
    assert exported(run_cells, "cuda", algorithm, state, data, hyper).nr_devices == 4


def test_images_and_numbers_are_arguments_not_constants():
    tiny = Tiny()
    # Numbers of faults are arguments as well, of a program that has faults.
    algorithm = tiny.algorithm(faults=Faults(drops=True, attack=ATTACKS["noise"]))
    state = state_like(tiny, algorithm)
    text = run_rounds.lower(algorithm, state, tiny.data, tiny.hyper, jnp.int32(1), capacity=2).as_text()
    signature = text[text.index("@main") : text.index("{\n", text.index("@main"))]
    images = "x".join(map(str, tiny.data.images.shape))
    assert f"tensor<{images}xui32>" in signature
    assert signature.count("tensor<f32>") == len(jax.tree.leaves(tiny.hyper))
    largest = max((len(line) for line in text.splitlines() if "stablehlo.constant" in line), default=0)
    assert largest < 10_000


def operations(jaxpr):
    """All operations of a program, those of its loops and calls counted once."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from operations(inner)


@pytest.mark.parametrize(
    ("method", "products"),
    [
        # The student's two layers forward and three products backward, the mean of eight tensors, and for each view the
        # two products by which a TPU crops it.
        (Method(sample=LabeledClients(), views={"student": weak}, teacher="none"), 2 + 3 + 8 + 2),
        # The teacher's two layers besides.
        (Method(sample=LabeledClients()), 2 + 2 + 3 + 8 + 4),
        # The mean of a subset twice.
        (None, 2 + 2 + 3 + 2 * 8 + 4),
    ],
    ids=["without a teacher", "with a teacher", "rscfed"],
)
def test_a_part_that_a_method_does_not_bring_is_not_in_the_program(method, products):
    tiny = Tiny()
    algorithm = tiny.algorithm(method=method)
    traced = jax.make_jaxpr(one_round, static_argnums=0)(algorithm, state_like(tiny, algorithm), tiny.data, tiny.hyper)
    found = list(operations(traced.jaxpr))
    count = Counter(operation.primitive.name for operation in found)
    assert count["while"] == 1  # over the batches of a client
    assert count["scan"] == 2  # over the clients and over the epochs
    assert count["dot_general"] == products
    images = [op for op in found if op.primitive.name == "gather" and op.invars[0].aval.shape == tiny.data.images.shape]
    assert len(images) == 1  # of whole images: for all views, or for a TPU
