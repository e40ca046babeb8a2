"""How many clients fit into a device's memory, with compilers and limits that are made up."""

from types import SimpleNamespace

import jax
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.runner.fit import fit, need_of, usable

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


def test_the_largest_chunk_is_taken_if_it_fits():
    tried = []
    fitted = fit(compiler(tried), largest=64, budget=FIXED + 64 * EACH)
    assert (fitted.chunk, fitted.compilations, tried) == (64, 1, [64])
    assert fitted.need.total == FIXED + 64 * EACH


@pytest.mark.parametrize("left", [EACH, 3 * EACH, 20 * EACH, 63 * EACH])
def test_else_the_second_compilation_has_the_largest_that_does(left):
    tried = []
    fitted = fit(compiler(tried), largest=64, budget=FIXED + left)
    assert (fitted.chunk, tried) == (left // EACH, [64, left // EACH])


def test_what_is_known_not_to_grow_with_the_chunk_is_left_out_of_the_sum():
    tried = []
    fitted = fit(compiler(tried, constant=500), largest=64, budget=FIXED + 500 + 30 * EACH, constant=500)
    assert (fitted.chunk, tried) == (30, [64, 30])


def test_where_it_is_not_known_more_compilations_find_a_chunk_that_fits():
    for constant in (100, 500, 5000):
        tried = []
        fitted = fit(compiler(tried, constant=constant), largest=64, budget=FIXED + constant + 30 * EACH)
        assert 1 <= fitted.chunk <= 30
        assert len(tried) <= 6


def test_arrays_besides_the_programs_own_count():
    assert need_of(compiler([])(1), resident=7) == (FIXED + 7, EACH)
    assert fit(compiler([]), largest=64, budget=FIXED + 10 * EACH, resident=5 * EACH).chunk == 5


def test_a_chunk_that_was_asked_for_fits_or_is_refused_with_the_figures():
    tried = []
    assert fit(compiler(tried), largest=64, budget=FIXED + 8 * EACH, only=8).chunk == 8
    gib = 2**30
    with pytest.raises(SettingError, match=r"--chunk 9: 9 clients at once take 10.00 GiB.* has 9.00 GiB.* --chunk"):
        fit(compiler(tried, fixed=gib, each=gib), largest=64, budget=9 * gib, only=9)
    assert tried == [8, 9]


def test_a_round_that_never_fits_is_refused():
    with pytest.raises(SettingError, match=r"one client take .* more devices"):
        fit(compiler([]), largest=64, budget=FIXED)


@pytest.mark.parametrize(
    ("said", "second"),
    [
        ("Ran out of memory in memory space hbm. Used 32.00G of 15.75G hbm.", 31),
        ("the total memory required for HLO temporaries (48.00G) exceeds available HBM (15.75G)", 21),
        ("no figure", 16),
    ],
)
def test_a_compiler_that_gives_up_for_want_of_memory_counts_as_too_large(said, second):
    tried = []

    def compile_(chunk):
        if chunk == 64:
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {said}")
        return compiler(tried)(chunk)

    assert fit(compile_, largest=64, budget=15.75 * 2**30).chunk == second


def test_other_errors_of_the_compiler_are_not_hidden():
    def compile_(chunk):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        fit(compile_, largest=4, budget=1)


def test_cudnn_gets_a_workspace():
    assert usable(16, "gpu") == 14
    assert 15 < usable(16, "tpu") < 16
