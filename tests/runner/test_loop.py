"""The host's loop: what is evaluated and saved when, and that a run stopped anywhere resumes bit for bit."""

import json
import shutil

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.runner import compiled
from rscfed_jax.runner.build import build_simulation
from rscfed_jax.runner.snapshot import LOG
from rscfed_jax.storage.checkpoint import read_arrays
from tests.helpers import SMALL, StopAfter, assert_same_run, records_of, saved_rounds, untimed

# Evaluations every 4 rounds, checkpoints at rounds of their own; one program serves all of these.
CONFIG = rj.Config(**SMALL | {"rounds": 10, "checkpoint_every": 3})
WARM = CONFIG.replace(rounds=4, warmup_rounds=6, checkpoint_every=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    rj.train(CONFIG, out=out)
    return out


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A run with a warm-up that nothing happened to."""
    out = tmp_path_factory.mktemp("warm") / "run"
    rj.train(WARM, out=out)
    return out


def test_a_program_is_compiled_once_for_all_numbers_seeds_and_lengths(monkeypatch):
    monkeypatch.setattr(compiled, "_COMPILED", {})
    calls, compile_ = [], ClientAxis.compile
    monkeypatch.setattr(ClientAxis, "compile", lambda *given: calls.append(given) or compile_(*given))
    for changes in ({}, {"beta": 3.0, "seed": 5, "rounds": 1}):
        rj.train(CONFIG.replace(rounds=4).replace(**changes))
        assert len(calls) == 1


def test_evaluations_and_checkpoints_have_rounds_of_their_own(whole):
    assert [record["round"] for record in records_of(whole)] == [0, 4, 8, 10]
    assert set(saved_rounds(whole)) >= {6, 9, 10}
    assert set(saved_rounds(whole)) <= {3, 6, 9, 10}
    sent = [record["models_up"] for record in records_of(whole)]
    assert sent == [0, 60, 120, 150]


def test_a_stop_between_evaluations_leaves_no_trace_in_the_resumed_run(tmp_path, whole):
    out = tmp_path / "run"
    for chunks, stopped_at in ((1, 3), (1, 4), (2, 8)):
        with pytest.raises(rj.Stopped, match=f"stopped after round {stopped_at}$"):
            rj.train(CONFIG, out=out, resume=True, stop=StopAfter(chunks))
        assert stopped_at in saved_rounds(out)
    assert [record["round"] for record in records_of(out)] == [0, 4, 8]
    rj.train(CONFIG, out=out, resume=True)
    assert_same_run(out, whole)


def test_pseudo_labels_are_judged_between_evaluations_wherever_the_run_stopped(tmp_path):
    config = CONFIG.replace(method="fedirm", rounds=5, warmup_rounds=0)
    whole = rj.train(config, out=tmp_path / "whole")
    with pytest.raises(rj.Stopped, match=r"stopped after round 3$"):
        rj.train(config, out=tmp_path / "run", stop=StopAfter(1))
    rj.train(config, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert (tmp_path / "run" / "pseudo_labels.png").stat().st_size > 5_000
    assert ["kept_share" in record for record in whole.metrics] == [False, True, True]
    assert {len(whole.metrics[-1][f"{name}_by_class"]) for name in whole.summary["pseudo_labels"]} == {3}


def test_every_evaluation_tells_the_accuracy_of_clients_on_their_own_classes():
    config = CONFIG.replace(gamma=0.5, min_client_size=2, rounds=4)
    result, federation = rj.train(config), rj.build_federation(config)
    confusion, counts = result.confusion, federation.class_counts
    recall = confusion.diagonal() / confusion.sum(axis=1)
    expected = [sum(n / sum(row) * recall[c] for c, n in enumerate(row)) for row in counts.tolist()]
    assert result.metrics[-1]["client_accuracy"] == pytest.approx(expected)
    assert result.metrics[-1]["client_accuracy_min"] == pytest.approx(min(expected))
    assert all("client_accuracy_mean" in record for record in result.metrics)
    assert "kept_share" not in result.metrics[-1]


def test_a_stop_in_the_last_rounds_lets_the_run_come_to_its_end(tmp_path, whole):
    rj.train(CONFIG.replace(rounds=8), out=tmp_path / "run")
    rj.train(CONFIG, out=tmp_path / "run", resume=True, stop=StopAfter(1))
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize(("every", "chunks", "saved"), [(1, 2, [-5, -4]), (3, 1, [-3]), (10, 1, [-2])])
def test_a_run_stopped_in_its_warm_up_is_saved_and_resumes_bit_for_bit(tmp_path, capfd, warm, every, chunks, saved):
    out = tmp_path / "run"
    config = WARM.replace(checkpoint_every=every)
    with pytest.raises(rj.Stopped, match=r"^stopped in the warm-up$"):
        rj.train(config, out=out, stop=StopAfter(chunks))
    assert saved_rounds(out) == saved
    assert records_of(out) == []
    rj.train(config, out=out, resume=True, progress=True)
    assert f"resumed in the warm-up\nwarm-up: {-saved[-1]} rounds on the labeled" in capfd.readouterr().err
    assert_same_run(out, warm)


def test_a_warm_up_is_counted_but_not_evaluated_and_round_0_follows_it(warm):
    assert [record["round"] for record in records_of(warm)] == [0, 4]
    assert [record["models_up"] for record in records_of(warm)] == [6, 6 + 4 * 15]


def test_the_model_after_the_warm_up_is_the_initial_one_of_the_run(tmp_path):
    rj.train(WARM.replace(rounds=1), out=tmp_path / "run")
    for round_, initial in ((-1, False), (0, True), (1, False)):
        state = read_arrays(tmp_path / "run" / "checkpoints" / str(round_) / "state" / "arrays.npz")
        models = [state[f"{name}.params.l3.kernel"] for name in ("model", "initial_model")]
        assert np.array_equal(*models) == initial


def test_a_longer_run_forgets_the_last_evaluation_that_it_would_not_have_made(tmp_path, whole):
    out = tmp_path / "run"
    first = rj.train(CONFIG.replace(rounds=6), out=out)
    assert [record["round"] for record in first.metrics] == [0, 4, 6]
    again = rj.train(CONFIG.replace(rounds=6), out=out, resume=True)
    assert untimed(again.metrics) == untimed(first.metrics)
    rj.train(CONFIG, out=out, resume=True)
    assert_same_run(out, whole)


def test_the_best_model_is_the_one_that_was_the_most_accurate(tmp_path, whole):
    out = shutil.copytree(whole, tmp_path / "run")
    result = rj.train(CONFIG, out=out, resume=True)  # finished: all of it comes from the checkpoint
    simulation = build_simulation(CONFIG, rj.build_federation(CONFIG))
    found, _ = rj.evaluate(simulation.algorithm.network, result.best_model, simulation.test)
    assert float(found.accuracy) == pytest.approx(result.summary["best"]["accuracy"])
    assert result.summary["best"]["accuracy"] == max(record["accuracy"] for record in result.metrics[1:])


def test_a_finished_run_says_so_even_when_quiet(tmp_path, capfd, whole):
    out = shutil.copytree(whole, tmp_path / "run")
    before = (out / "summary.json").read_bytes()
    rj.train(CONFIG, out=out, resume=True)
    assert capfd.readouterr().err == "the run is finished: 10 rounds\n"
    assert (out / "summary.json").read_bytes() == before
    assert_same_run(out, whole)


def test_a_run_of_a_version_that_knew_fewer_metrics_resumes(tmp_path, whole):
    out = tmp_path / "run"
    rj.train(CONFIG.replace(rounds=6), out=out)
    place = out / "checkpoints" / "6" / "state" / "arrays.npz"
    arrays = read_arrays(place)
    content = json.loads(arrays[LOG].tobytes())
    for record in content["history"]["records"]:
        del record["f1"]
    arrays[LOG] = np.frombuffer(json.dumps(content).encode(), np.uint8)
    np.savez(place, **arrays)
    result = rj.train(CONFIG, out=out, resume=True)
    expected = [record["f1"] for record in records_of(whole)]
    assert ["f1" in record for record in result.metrics] == [False, False, True, True]
    assert result.summary["final"]["f1"] == pytest.approx(np.mean(expected[2:]))
