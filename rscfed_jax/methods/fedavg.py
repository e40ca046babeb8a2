"""FedAvg on the labeled clients: the bounds that the paper compares with.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. https://arxiv.org/abs/1602.05629

The lower bound has the federation's labeled clients alone; with all clients labeled it is the upper bound.
Clients that hold labels in part train on their labeled samples alone.
"""

from rscfed_jax.config import Config
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Labeled, Method

SAMPLES = "labeled"


def method(config: Config) -> Method:
    """One subset of the labeled clients, averaged by data amount."""
    del config
    return Method(views={"student": weak}, teacher="none", batches=Labeled())
