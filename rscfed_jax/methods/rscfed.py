"""RSCFed: random sampling consensus federated semi-supervised learning.

Liang, Lin, Fu, Zhu, Li. CVPR 2022. https://arxiv.org/abs/2203.13993

Choices where the paper is silent: a client drawn by several subsets of a round is trained once for each, all from the
same state, and the state of the last is kept (`--repeat`); the labeled clients of a subset share half of its weight
before the distance factor (`--labeled-share`); momentum is kept per client between selections; a teacher that begins
as the initial model (`--teacher-init`) normalises with the batch statistics of the global model, which its client just
received.
"""

from rscfed_jax.config import Config
from rscfed_jax.core.aggregation import DISTANCES, SubConsensus
from rscfed_jax.core.method import Method

SAMPLES = "subsets"


def method(config: Config) -> Method:
    """M random subsets of K clients, each averaged by distance."""
    return Method(aggregate=SubConsensus(DISTANCES[config.distance]))
