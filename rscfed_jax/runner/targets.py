"""Devices that programs can be compiled for without having one. JAX is not imported: the environment is set first."""

import os
from typing import NamedTuple

GIB = 2**30


class Target(NamedTuple):
    """A kind of device. Peaks are the data sheet's, for the precision that products have there by default."""

    platform: str
    package: str  # brings the compiler
    limit: int  # bytes of memory that JAX takes: all that a TPU's compiler has, 3/4 of a GPU's
    flops: float  # a second
    bandwidth: float  # bytes a second
    topologies: tuple[str, ...] = ()  # of TPUs: the smallest first


TARGETS = {
    # 16 GB, 197 TFLOP/s in bfloat16, 819 GB/s: https://cloud.google.com/tpu/docs/v5e
    "v5e": Target("tpu", "jax[tpu]", int(15.75 * GIB), 197e12, 819e9, ("v5e:2x2", "v5e:2x4")),
    # Each of a chip's two cores: 8 GB, 22.5 TFLOP/s in bfloat16, 300 GB/s: https://cloud.google.com/tpu/docs/v2
    "v2": Target("tpu", "jax[tpu]", int(7.48 * GIB), 22.5e12, 300e9, ("v2:2x2",)),
    # 40 GB, 156 TFLOP/s in TF32, 1,555 GB/s: NVIDIA A100 data sheet
    "a100": Target("gpu", "jax[cuda12]", 42331013120 * 3 // 4, 156e12, 1555e9),
    # 16 GB, of which 15 are usable with ECC, 8.1 TFLOP/s, 320 GB/s: NVIDIA T4 data sheet
    "t4": Target("gpu", "jax[cuda12]", 15843721216 * 3 // 4, 8.1e12, 320e9),
    # 80 GB, 494.5 TFLOP/s in TF32, 3,350 GB/s: NVIDIA H100 data sheet, SXM5, without sparsity
    "h100": Target("gpu", "jax[cuda12]", 84942979072 * 3 // 4, 494.5e12, 3350e9),
}


def prepare() -> None:
    """What the environment must say before JAX starts: that this machine computes on CPU, and is no TPU's host."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
