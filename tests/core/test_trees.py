"""Small operations on whole models."""

import chex
import jax.numpy as jnp
import pytest

from rscfed_jax.core.trees import added, all_finite, choose

YES, NO = {"a": jnp.ones(2), "b": jnp.int32(1)}, {"a": jnp.zeros(2), "b": jnp.int32(0)}


def test_one_tree_or_the_other_is_chosen_as_a_whole():
    chex.assert_trees_all_equal(choose(jnp.array(True), YES, NO), YES)
    chex.assert_trees_all_equal(choose(jnp.array(False), YES, NO), NO)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_one_number_that_is_not_finite_is_found(bad):
    assert all_finite(YES)
    assert not all_finite(YES | {"c": jnp.zeros(3).at[1].set(bad)})


def test_sums_keep_their_type_and_refuse_what_was_not_declared():
    total = added({"a": jnp.float32(1), "b": jnp.float32(2)}, {"a": jnp.int32(3)})
    chex.assert_trees_all_equal(total, {"a": jnp.float32(4), "b": jnp.float32(2)})
    with pytest.raises(ValueError, match="the news c, d are not declared by the method"):
        added(total, {"d": jnp.float32(0), "c": jnp.float32(0)})
