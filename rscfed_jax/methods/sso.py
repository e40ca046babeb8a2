"""Basic + SSO: RSCFed's random subsets without its distance factor, the ablation of the paper's Table 2.

Liang, Lin, Fu, Zhu, Li. CVPR 2022. https://arxiv.org/abs/2203.13993

Choice where the paper is silent: the labeled weight is applied once.
"""

from rscfed_jax.config import Config
from rscfed_jax.core.method import Method

SAMPLES = "subsets"


def method(config: Config) -> Method:
    """M random subsets of K clients, each averaged by data amount."""
    del config
    return Method()
