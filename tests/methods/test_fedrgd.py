"""FedRGD's groups."""

import jax
import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.methods.fedrgd import DisjointGroups
from rscfed_jax.methods.registry import method_of
from tests.helpers import Tiny, ragged_federation


def test_groups_are_disjoint_but_for_the_labeled_clients_which_are_in_each():
    sizes, labeled = (10,) * 9, (False, True, *[False] * 5, True, False)
    data = Tiny(ragged_federation(sizes=sizes, labeled=labeled)).data
    draws = np.asarray(jax.vmap(lambda key: DisjointGroups(3)(key, data))(jax.random.split(jax.random.key(0), 200)))
    assert draws.shape == (200, 3, 4)
    assert (draws[:, :, :2] == [1, 7]).all()
    for dealt in draws[:, :, 2:].reshape(200, -1).tolist():
        assert len(set(dealt)) == 6
        assert not {1, 7} & set(dealt)
    counts = np.bincount(draws[:, :, 2:].ravel(), minlength=9)[[0, 2, 3, 4, 5, 6, 8]]
    np.testing.assert_allclose(counts / 200, 6 / 7, atol=0.1)  # one of seven sits out, another one each time
    np.testing.assert_allclose(DisjointGroups(3).slots(np.array(labeled)), np.where(labeled, 3, 6 / 7))


def test_more_groups_than_clients_are_refused():
    data = Tiny().data
    with pytest.raises(SettingError, match="--fedrgd-groups 4: must be from 1 to 3"):
        DisjointGroups(4)(jax.random.key(0), data)


def test_its_sampler_is_its_own_unless_the_settings_say_otherwise():
    assert method_of(Config(method="fedrgd", fedrgd_groups=3)).sample == DisjointGroups(3)
    other = method_of(Config(method="fedrgd", sampling="all")).sample
    assert not isinstance(other, DisjointGroups)
