"""Models with the names and layouts of the published PyTorch code.

The simple CNN names its layers (`features.conv1.weight`). ResNet-18 numbers them in a sequence: `features.0` is the
stem and `features.1` its batch-norm, then come a ReLU, a max-pool if the stem has one, and the four stages; ResNet-8
follows it. The layers of any other network keep the names that flax gives them; their tensors are named and laid out by
PyTorch's rules.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.core.types import Model

COUNTER = ".num_batches_tracked"  # of batch-norm in PyTorch; nothing here uses the number
OF_THE_PAPER = re.compile(r"conv1|conv2|fc1|fc2|l1|l2|l3|stem_conv|stem_bn|layer\d_\d")

LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


class Tensor(NamedTuple):
    """Where a tensor of the PyTorch model lies in the flax variables."""

    path: tuple[str, ...]
    shape: tuple[int, ...]  # in flax
    axes: tuple[int, ...]  # PyTorch's axes in terms of flax's: dense layers are transposed, convolutions are OIHW

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """The shape in PyTorch."""
        return tuple(self.shape[axis] for axis in self.axes)


def to_torch_names(variables: Model) -> dict[str, np.ndarray]:
    """The tensors of a model under their PyTorch names, float32; batch counters are 0."""
    tensors = {}
    for name, tensor in _table(variables).items():
        tensors[name] = np.asarray(_at(variables, tensor.path), np.float32).transpose(tensor.axes)
        if name.endswith("running_var"):
            tensors[name.removesuffix(".running_var") + COUNTER] = np.zeros((), np.int64)
    return tensors


def from_torch_names(arrays: dict[str, np.ndarray], like: Model) -> Model:
    """The flax variables, shaped and typed as `like`, out of tensors with PyTorch names.

    A ValueError names the tensor that is missing, unexpected or of another shape.
    """
    table = _table(like)
    for name in sorted(arrays):
        if name not in table and not name.endswith(COUNTER):
            raise ValueError(f"tensor {name} is not part of this model")
    variables: dict[str, Any] = {}
    for name, tensor in table.items():
        if name not in arrays:
            raise ValueError(f"lacks the tensor {name}")
        if arrays[name].shape != tensor.torch_shape:
            raise ValueError(f"tensor {name} has shape {arrays[name].shape}, not {tensor.torch_shape}")
        parent = variables
        for key in tensor.path[:-1]:
            parent = parent.setdefault(key, {})
        values = arrays[name].transpose(np.argsort(tensor.axes))
        parent[tensor.path[-1]] = values.astype(_at(like, tensor.path).dtype)
    return variables


def _table(variables: Model) -> dict[str, Tensor]:
    """Every tensor by its PyTorch name, in the order of the layers."""
    params = variables["params"]
    # In a sequence the stages come after the stem's convolution, batch-norm, ReLU and, in the 7x7 stem, max-pool.
    first_stage = 3 if "stem_conv" not in params or params["stem_conv"]["kernel"].shape[0] == 3 else 4
    found = {}
    of_the_paper = all(map(OF_THE_PAPER.fullmatch, params))
    for path, leaf in _leaves(variables):
        layer = _torch_layer(path[1:-1], first_stage) if of_the_paper else ".".join(path[1:-1])
        name = ".".join(filter(None, (layer, LEAVES.get(path[-1], path[-1]))))
        axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(len(leaf.shape), tuple(range(len(leaf.shape))))
        found[name] = Tensor(path, tuple(leaf.shape), axes)
    return dict(sorted(found.items()))


def _torch_layer(path: tuple[str, ...], first_stage: int) -> str:
    """The PyTorch name of the layer with this flax path."""
    top = path[0]
    if top in ("l1", "l2", "l3"):
        return top
    if top.startswith("layer"):
        stage, block = top.removeprefix("layer").split("_")
        inner = {"downsample_conv": "downsample.0", "downsample_bn": "downsample.1"}.get(path[1], path[1])
        return f"features.{first_stage + int(stage) - 1}.{block}.{inner}"
    return f"features.{ {'stem_conv': '0', 'stem_bn': '1'}.get(top, top) }"


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(tree, "items"):
        yield path, tree
        return
    for key, value in tree.items():
        yield from _leaves(value, (*path, key))


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
