"""How many clients fit into a device's memory, with compilers and limits that are made up."""

from types import SimpleNamespace

import jax
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.runner.fit import client_bytes, fit, need_of, usable

FIXED, EACH = 1000, 50  # bytes of the arguments, and of each client at once


def compiler(tried, *, fixed=FIXED, each=EACH, constant=0):
    def compile_(chunk):
        tried.append(chunk)
        memory = SimpleNamespace(
            argument_size_in_bytes=fixed,
            output_size_in_bytes=fixed // 2,
            alias_size_in_bytes=fixed // 2,
            temp_size_in_bytes=constant + each * chunk,
        )
        return SimpleNamespace(memory_analysis=lambda: memory)

    return compile_


def fitting(compile_, *, budget, slots=64, largest=64, each=EACH, fixed=FIXED, **known):
    return fit(compile_, slots=slots, largest=largest, budget=budget, each=each, fixed=fixed, **known)


def test_the_largest_chunk_is_taken_if_it_fits():
    tried = []
    fitted = fitting(compiler(tried), budget=FIXED + 64 * EACH)
    assert (fitted.chunk, fitted.compilations, tried) == (64, 1, [64])
    assert fitted.need.total == FIXED + 64 * EACH


@pytest.mark.parametrize("left", [EACH, 3 * EACH, 20 * EACH, 63 * EACH])
def test_else_the_first_compilation_has_the_largest_that_does_if_a_client_takes_what_is_thought(left):
    tried = []
    fitted = fitting(compiler(tried), budget=FIXED + left)
    assert (fitted.chunk, tried) == (left // EACH, [left // EACH])
    tried = []
    fitted = fitting(compiler(tried, constant=500), budget=FIXED + 500 + left, constant=500)
    assert (fitted.chunk, tried) == (left // EACH, [left // EACH])


def test_the_second_compilation_has_the_largest_chunk_if_a_client_takes_less():
    tried = []
    fitted = fitting(compiler(tried), budget=FIXED + 30 * EACH, each=3 * EACH)
    assert (fitted.chunk, fitted.compilations, tried) == (30, 2, [10, 30])


def test_a_larger_chunk_is_compiled_only_if_it_leaves_fewer_of_them():
    tried = []
    assert fitting(compiler(tried), slots=64, budget=FIXED + 30 * EACH, each=1.2 * EACH).chunk == 25
    assert fitting(compiler(tried), slots=60, budget=FIXED + 30 * EACH, each=1.2 * EACH).chunk == 30
    assert tried == [25, 25, 30]


def test_a_larger_chunk_that_does_not_fit_after_all_leaves_the_first():
    def compile_(chunk):
        return compiler([], each=EACH if chunk <= 10 else 4 * EACH)(chunk)

    fitted = fitting(compile_, budget=FIXED + 30 * EACH, each=3 * EACH)
    assert (fitted.chunk, fitted.compilations, fitted.need.temporary) == (10, 2, 10 * EACH)


@pytest.mark.parametrize("known", [0, 100, 5000])
@pytest.mark.parametrize("unknown", [0, 100, 500, 5000])
@pytest.mark.parametrize("thought", [0.5, 0.8, 1, 1.3, 2])
def test_two_compilations_find_a_chunk_however_much_memory_is_constant(known, unknown, thought):
    """As long as a client takes at least half of what is thought."""
    for clients in range(1, 80):
        tried = []
        compile_ = compiler(tried, constant=known + unknown)
        budget = FIXED + known + unknown + clients * EACH
        fitted = fitting(compile_, budget=budget, constant=known, each=thought * EACH)
        assert fitted.need.total <= budget
        assert fitted.compilations == len(tried) <= 2
        if unknown == 0 and thought >= 1:  # the best there is
            assert -(-64 // fitted.chunk) == -(-64 // min(clients, 64))


def test_one_client_is_the_last_resort():
    tried = []
    fitted = fitting(compiler(tried, each=1, constant=5000), budget=FIXED + 5000 + 2)
    assert (fitted.chunk, fitted.compilations) == (1, 3)
    assert tried[0] > tried[1] > tried[2]


def test_arrays_besides_the_programs_own_count():
    assert need_of(compiler([])(1), resident=7) == (FIXED + 7, EACH)
    assert fitting(compiler([]), budget=FIXED + 10 * EACH, resident=5 * EACH).chunk == 5


def test_a_chunk_that_was_asked_for_fits_or_is_refused_with_the_figures():
    tried = []
    assert fitting(compiler(tried), budget=FIXED + 8 * EACH, only=8).chunk == 8
    gib = 2**30
    with pytest.raises(SettingError, match=r"--chunk 9: 9 clients at once take 10.00 GiB.* has 9.00 GiB.* --chunk"):
        fitting(compiler(tried, fixed=gib, each=gib), budget=9 * gib, only=9)
    assert tried == [8, 9]


def test_a_round_that_never_fits_is_refused():
    with pytest.raises(SettingError, match=r"one client take .* more devices"):
        fitting(compiler([]), budget=FIXED)


@pytest.mark.parametrize(
    ("said", "second"),
    [
        ("Ran out of memory in memory space hbm. Used 18.00G of 15.75G hbm.", 48),
        ("the total memory required for HLO temporaries (22.00G) exceeds available HBM (15.75G)", 16),
        ("no figure", 16),
    ],
)
def test_a_compiler_that_gives_up_for_want_of_memory_counts_as_too_large(said, second):
    tried = []

    def compile_(chunk):
        if chunk == 64:
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {said}")
        return compiler(tried)(chunk)

    each = 2**28  # all clients at once are thought to take 16 GiB
    assert fitting(compile_, budget=16 * 2**30 + FIXED, each=each).chunk == second


def test_other_errors_of_the_compiler_are_not_hidden():
    def compile_(chunk):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        fitting(compile_, budget=1)


def test_cudnn_gets_a_workspace():
    assert usable(16, "gpu") == 14
    assert 15 < usable(16, "tpu") < 16


def test_a_client_takes_a_part_of_what_its_step_saves():
    assert 0 < client_bytes(1000, "gpu") < client_bytes(1000, "tpu") < 1000
