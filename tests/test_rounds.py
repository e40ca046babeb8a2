"""A round: batched training equals a loop over clients, a scan equals a loop over rounds, nothing leaks."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rscfed_jax.clients import CLIENTS, GRID, ClientAxis
from rscfed_jax.config import Config
from rscfed_jax.data.table import cells_to_host, to_device
from rscfed_jax.faults import ATTACKS, NO_FAULTS, Faults
from rscfed_jax.local.objective import Bulletin
from rscfed_jax.local.training import draw_batch, ema, ema_keep, random_order, sgd
from rscfed_jax.methods import METHODS
from rscfed_jax.methods.base import Method, by_data_amount
from rscfed_jax.repeat import REPEATS, retrain, sequential, share
from rscfed_jax.rounds import (
    Algorithm,
    init_cells,
    init_state,
    one_round,
    run_cells,
    run_rounds,
    scan_rounds,
    train_slot,
)
from rscfed_jax.sampling import AllClients
from tests.conftest import BATCH, LABELED, SIZES, Tiny, assert_trees_close, assert_trees_equal, ragged_federation

once = jax.jit(one_round, static_argnames="algorithm")
CHUNKS = {"one": ClientAxis(1), "two": ClientAxis(2), "all": ClientAxis(0)}


def two_devices(chunk=1):
    return ClientAxis(chunk, Mesh(np.array(jax.devices()[:2])[None], (GRID, CLIENTS)))


@dataclasses.dataclass(frozen=True)
class FixedSubsets:
    """A sampler that always draws the same."""

    subsets: tuple

    def __call__(self, key, data):
        """[M, K] client ids."""
        return jnp.asarray(self.subsets, jnp.int32)


@partial(jax.jit, static_argnames=("network", "labeled"))
def reference_gradient(network, labeled, params, student_view, teacher_view, labels, teacher, hyper):
    """The gradient of a batch without padding: plain means and sums."""

    def loss(params):
        logits = network.apply({"params": params}, student_view, train=True)
        if labeled:
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))
        target = jax.nn.softmax(network.apply(teacher, teacher_view, train=False)) ** (1 / hyper.tau)
        target /= target.sum(axis=1, keepdims=True)
        return hyper.lambda_u * jnp.sum((target - jax.nn.softmax(logits)) ** 2) / BATCH

    return jax.grad(loss)(params)


def reference_training(tiny, key, model, initial, subset, client):
    """One client's epoch as a Python loop; the last batch holds only the samples that are there."""
    data, hyper, local = tiny.data, tiny.hyper, tiny.local
    size, start, labeled = SIZES[client], int(data.starts[client]), LABELED[client]
    rate = hyper.lr_labeled if labeled else hyper.lr_unlabeled
    slot_key = jax.random.fold_in(jax.random.fold_in(key, subset), client)
    order_key, batch_key = jax.random.split(jax.random.fold_in(slot_key, 0))
    order = np.asarray(random_order(order_key, data.positions, size))[:size]
    params, teacher = model["params"], initial
    optimizer = sgd(hyper, rate)
    memory = optimizer.init(params)

    for number, first in enumerate(range(0, size, BATCH)):
        rows = order[first : first + BATCH]
        padded = start + np.concatenate([rows, np.zeros(BATCH - len(rows), int)])
        batch = draw_batch(jax.random.fold_in(batch_key, number), local, data, jnp.asarray(padded), None, hyper)
        views = (batch.student_view[..., : len(rows)], batch.teacher_view[..., : len(rows)])
        labels = data.labels[start + rows]
        grads = reference_gradient(local.network, labeled, params, *views, labels, teacher, hyper)
        updates, memory = optimizer.update(grads, memory, params)
        params = jax.tree.map(jnp.add, params, updates)
        teacher = ema(teacher, params, ema_keep(jnp.int32(number), hyper))
    return {"params": params}, teacher


@pytest.fixture(scope="module")
def looped():
    """What a Python loop over clients gives, in float64, for subsets that share clients."""
    with jax.enable_x64(True):
        tiny = Tiny(conv="matmul")
        subsets = np.array([[0, 1, 3], [3, 4, 2]])
        algorithm = tiny.algorithm()
        state = tiny.state(algorithm)
        key = jax.random.key(11)
        trained = [
            [reference_training(tiny, key, state.model, state.initial_model, m, int(c)) for c in row]
            for m, row in enumerate(subsets)
        ]
        return tiny, state, key, subsets, trained


@pytest.mark.parametrize("axis", [*CHUNKS, "two devices"])
def test_batched_training_of_ragged_clients_equals_a_loop_over_clients(x64, looped, axis):
    tiny, state, key, subsets, expected = looped
    axis = two_devices() if axis == "two devices" else CHUNKS[axis]

    @jax.jit
    def train(ids, subset, clients, *shared):
        slot = partial(train_slot, tiny.local, NO_FAULTS)
        slots = (subset, jnp.ones(len(ids), bool), jnp.zeros(len(ids), bool))
        return axis.run(slot, tiny.data.sizes[ids], ids, slots, clients, shared)

    ids, subset = jnp.asarray(subsets.ravel(), jnp.int32), jnp.repeat(jnp.arange(2), 3)
    rows = [(0, axis.rows(tiny.data.clients) - tiny.data.clients)]
    clients = jax.tree.map(lambda leaf: jnp.pad(leaf, rows + [(0, 0)] * (leaf.ndim - 1)), state.clients)
    shared = (key, state.model, state.initial_model, tiny.data, tiny.hyper, Bulletin(state.round, None))
    ours, clients = train(ids, subset, clients, *shared)
    for slot, (model, teacher) in enumerate([slot for row in expected for slot in row]):
        assert_trees_close(jax.tree.map(lambda leaf, s=slot: leaf[s], ours.model), model, atol=1e-9)
        if slot == np.flatnonzero(subsets.ravel() == subsets.ravel()[slot])[-1]:
            kept = jax.tree.map(lambda leaf, s=slot: leaf[ids[s]], clients.teacher)
            assert_trees_close(kept, teacher, atol=1e-9)
    assert ours.healthy.all()


@pytest.mark.parametrize(
    ("precision", "atol"), [("float64", 1e-9), pytest.param("float32", 1e-5, marks=pytest.mark.slow)]
)
def test_five_rounds_by_scan_equal_five_by_a_python_loop(precision, atol):
    with jax.enable_x64(precision == "float64"):
        tiny = Tiny(conv="matmul")
        algorithm = tiny.algorithm(axis=CHUNKS["two"])
        start = tiny.state(algorithm)
        scan = jax.jit(scan_rounds, static_argnames=("algorithm", "rounds"))
        scanned, reports = scan(algorithm, start, tiny.data, tiny.hyper, rounds=5)
        looped = start
        for number in range(5):
            looped, report = once(algorithm, looped, tiny.data, tiny.hyper)
            np.testing.assert_array_equal(report.subsets, reports.subsets[number])
        assert_trees_close(scanned._replace(key=0), looped._replace(key=0), atol=atol)
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), looped.model, start.model)
        assert max(jax.tree.leaves(moved)) > 1e-3


def test_a_cut_does_not_change_a_bit_and_one_compilation_serves_every_length():
    tiny = Tiny()
    algorithm = tiny.algorithm()
    chex.clear_trace_counter()
    # As many traces as programs: the round inside run_rounds is traced for its shapes and for the loop.
    counted = jax.jit(chex.assert_max_traces(n=1)(run_rounds.__wrapped__), static_argnames=("algorithm", "capacity"))
    whole, _ = counted(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(4), capacity=5)
    parts = tiny.state(algorithm)
    for rounds in (1, 2, 1):
        parts, _ = counted(algorithm, parts, tiny.data, tiny.hyper, jnp.int32(rounds), capacity=5)
    assert_trees_equal(parts._replace(key=0), whole._replace(key=0))
    faster = tiny.hyper._replace(lr_labeled=tiny.hyper.lr_labeled * 2, beta=tiny.hyper.beta * 0)
    other, _ = counted(algorithm, tiny.state(algorithm), tiny.data, faster, jnp.int32(4), capacity=5)
    assert int(other.round) == 4
    assert float(jnp.abs(other.model["params"]["l3"]["kernel"] - whole.model["params"]["l3"]["kernel"]).max()) > 0


def test_equal_algorithms_share_one_program():
    config = Config(subset_size=3)
    one, other = (Algorithm(METHODS["rscfed"](config), Tiny().local) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("repeat", REPEATS)
def test_labels_of_unlabeled_samples_cannot_influence_training(repeat):
    """Changing them changes nothing, to the bit."""
    federation = ragged_federation()
    hidden = ~np.concatenate(federation.label_visible)
    rows = np.concatenate(federation.members)[hidden]
    labels = federation.dataset.train_labels.copy()
    labels[rows] = (labels[rows] + 1) % 4
    changed = federation._replace(dataset=federation.dataset._replace(train_labels=labels))
    assert (to_device(changed, image_size=16)[0].labels[np.flatnonzero(hidden)] == -1).all()
    states = []
    for each in (federation, changed):
        tiny = Tiny(each)
        algorithm = tiny.algorithm(repeat=REPEATS[repeat])
        state, _ = run_rounds(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(2), capacity=2)
        states.append(state._replace(key=0))
    assert_trees_equal(*states)


def test_visible_labels_do_influence_training():
    """The counterpart: the test above can fail."""
    federation = ragged_federation()
    shifted = (federation.dataset.train_labels + 1) % 4
    other = federation._replace(dataset=federation.dataset._replace(train_labels=shifted))
    models = []
    for each in (federation, other):
        tiny = Tiny(each)
        algorithm = tiny.algorithm()
        state, _ = run_rounds(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(2), capacity=2)
        models.append(state.model["params"]["l3"]["bias"])
    assert float(jnp.abs(models[0] - models[1]).max()) > 1e-4


def test_a_client_in_two_subsets_keeps_the_state_of_its_last_slot():
    tiny = Tiny()
    aggregate = by_data_amount
    both = tiny.algorithm(method=Method(FixedSubsets(((0, 3), (3, 1))), aggregate))
    state = tiny.state(both)
    # The same slots, with client 3 out of the first subset: its last slot is the only one.
    last_only = tiny.algorithm(method=Method(FixedSubsets(((0, 2), (3, 1))), aggregate))
    after_both, _ = once(both, state, tiny.data, tiny.hyper)
    after_last, _ = once(last_only, state, tiny.data, tiny.hyper)
    for client in (0, 1, 3):
        ours, expected = (jax.tree.map(lambda leaf, c=client: leaf[c], s.clients) for s in (after_both, after_last))
        assert_trees_equal(ours, expected)
    assert int(after_both.clients.step[3]) == 4  # 25 samples in batches of 8: trained twice, kept once
    assert int(after_both.clients.step[2]) == 0


def test_sequential_moves_a_client_on_between_subsets_and_share_trains_it_once():
    tiny = Tiny()
    method = Method(FixedSubsets(((0, 3), (3, 1))), by_data_amount)
    steps = {}
    for repeat in (retrain, sequential, share):
        algorithm = tiny.algorithm(method=method, repeat=repeat)
        state, _ = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        steps[repeat] = int(state.clients.step[3])
        assert (int(state.models_down), int(state.models_up)) == (3, 3 if repeat is share else 4)
    assert steps == {retrain: 4, sequential: 8, share: 4}


def test_share_serves_every_subset_with_the_same_model():
    tiny = Tiny()
    method = Method(FixedSubsets(((0, 3), (3, 0))), by_data_amount)
    algorithm = tiny.algorithm(method=method, repeat=share)
    _, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    np.testing.assert_array_equal(report.distances[0], report.distances[1][::-1])


def test_one_subset_of_one_client_gives_that_clients_model(looped):
    tiny, state, _, _, _ = looped
    with jax.enable_x64(True):
        algorithm = tiny.algorithm(method=Method(FixedSubsets(((1,),)), by_data_amount))
        after, report = once(algorithm, state, tiny.data, tiny.hyper)
        round_key = jax.random.fold_in(jax.random.fold_in(state.key, 1), 0)
        expected, _ = reference_training(tiny, jax.random.split(round_key)[1], state.model, state.initial_model, 0, 1)
        assert_trees_close(after.model, expected, atol=1e-9)
        assert float(report.weights[0, 0]) == 1


def test_a_broken_client_is_replaced_and_keeps_its_earlier_state():
    tiny = Tiny()
    method = Method(FixedSubsets(((0, 3), (2, 1))), by_data_amount)
    algorithm = tiny.algorithm(method=method)
    state = tiny.state(algorithm)
    teacher = jax.tree.map(lambda leaf: leaf.at[3].set(jnp.nan), state.clients.teacher)
    state = state._replace(clients=state.clients._replace(teacher=teacher, step=state.clients.step.at[3].set(1)))
    after, report = once(algorithm, state, tiny.data, tiny.hyper)
    assert int(report.broken.sum()) == 1
    assert float(report.weights[0, 1]) == 0
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after.model))
    assert int(after.clients.step[3]) == 1
    assert float(after.clients.optimizer[2][0].trace["l3"]["bias"][3].sum()) == 0


def test_all_broken_clients_leave_the_global_model_alone():
    tiny = Tiny()
    method = Method(FixedSubsets(((0, 3),)), by_data_amount)
    algorithm = tiny.algorithm(method=method)
    state = tiny.state(algorithm)
    teacher = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.clients.teacher)
    state = state._replace(clients=state.clients._replace(teacher=teacher, step=jnp.ones_like(state.clients.step)))
    after, _ = once(algorithm, state, tiny.data, tiny.hyper)
    assert_trees_equal(after.model, state.model)


def test_teachers_start_from_the_initial_or_the_first_selected_model():
    starts = {}
    for rule in ("initial", "first-selected"):
        tiny = Tiny(teacher_init=rule, ema=1.0, ema_warmup=False)  # a teacher that never moves
        algorithm = tiny.algorithm(method=Method(FixedSubsets(((0, 3),)), by_data_amount))
        state = tiny.state(algorithm)
        other = jax.tree.map(lambda leaf: leaf + 1, state.model)
        state = state._replace(model=other)
        after, _ = once(algorithm, state, tiny.data, tiny.hyper)
        starts[rule] = after.clients.teacher["params"]["l3"]["bias"][3] - state.initial_model["params"]["l3"]["bias"]
    np.testing.assert_allclose(starts["initial"], 0, atol=1e-6)
    np.testing.assert_allclose(starts["first-selected"], 1, atol=1e-6)


def test_batch_statistics_travel_with_the_parameters():
    tiny = Tiny()
    algorithm = tiny.algorithm(method=Method(AllClients(), by_data_amount))
    state = tiny.state(algorithm)
    after, report = once(algorithm, state, tiny.data, tiny.hyper)
    assert int(report.broken.sum()) == 0
    before, now = (s.model["batch_stats"]["BatchNorm_0"]["mean"] for s in (state, after))
    assert float(jnp.abs(now - before).max()) > 1e-3
    # The teacher keeps the statistics that it started with.
    np.testing.assert_array_equal(after.clients.teacher["batch_stats"]["BatchNorm_0"]["mean"][0], before)


def test_randomness_does_not_depend_on_how_the_clients_are_executed():
    tiny = Tiny()
    results = []
    for axis in (CHUNKS["one"], CHUNKS["all"], two_devices(), two_devices(2)):
        algorithm = tiny.algorithm(axis=axis)
        state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        results.append((state.model, report))
    for model, report in results[1:]:
        assert_trees_close(model, results[0][0], atol=1e-5)
        np.testing.assert_array_equal(report.subsets, results[0][1].subsets)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("axis", ["all", "two devices"])
def test_the_round_lowers_for_accelerators(platform, axis):
    tiny = Tiny(conv="auto")
    algorithm = tiny.algorithm(axis=two_devices(0) if axis == "two devices" else CHUNKS[axis])
    state = tiny.state(algorithm)
    exported = jax.export.export(
        jax.jit(run_rounds.__wrapped__, static_argnames=("algorithm", "capacity")), platforms=[platform]
    )(algorithm, state, tiny.data, tiny.hyper, jnp.int32(1), capacity=2)
    text = exported.mlir_module()
    assert "stablehlo.convolution" in text
    for host_call in ("callback", "infeed", "outfeed"):
        assert host_call not in text


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_cells_of_a_grid_lower_for_accelerators_with_their_mesh(platform):
    tiny = Tiny()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), (GRID, CLIENTS))
    algorithm = tiny.algorithm(axis=ClientAxis(0, mesh))
    cells = [ragged_federation(), ragged_federation(sizes=(5, 4, 3, 2, 9))]
    data, _ = cells_to_host(cells, image_size=16, resize_to=20)
    hyper = jax.tree.map(lambda number: jnp.stack([number, number]), tiny.hyper)
    state = init_cells(algorithm, jnp.arange(2), 5, hyper)
    exported = jax.export.export(
        jax.jit(run_cells.__wrapped__, static_argnames=("algorithm", "capacity")), platforms=[platform]
    )(algorithm, state, data, hyper, jnp.int32(1), capacity=2)
    assert exported.nr_devices == 4
    for host_call in ("callback", "infeed", "outfeed"):
        assert host_call not in exported.mlir_module()


def test_images_and_hyper_parameters_are_arguments_not_constants():
    tiny = Tiny(conv="matmul")
    # Numbers of faults are arguments as well, of a program that has faults.
    algorithm = dataclasses.replace(tiny.algorithm(), faults=Faults(drops=True, attack=ATTACKS["noise"]))
    lowered = run_rounds.lower(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper, jnp.int32(1), capacity=2)
    text = lowered.as_text()
    signature = text[text.index("@main") : text.index("{\n", text.index("@main"))]
    images = "x".join(map(str, tiny.data.images.shape))
    assert f"tensor<{images}xui32>" in signature
    scalars = signature.count("tensor<f32>")
    assert scalars == len(tiny.hyper)
    largest = max((len(line) for line in text.splitlines() if "stablehlo.constant" in line), default=0)
    assert largest < 10_000


def test_init_state_is_the_same_for_every_method_of_a_seed():
    tiny = Tiny()
    models = [
        init_state(Algorithm(METHODS[name](Config(subset_size=3)), tiny.local), tiny.key, 5, tiny.hyper).model
        for name in METHODS
    ]
    for model in models[1:]:
        assert_trees_equal(model, models[0])
