"""What `benchmarks/accelerators.py` reads out of a compiler's text, on one that is made up."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = """HloModule jit_run_cells

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %g = u32[8,1,1]{2,1,0} gather(%p, %p), offset_dims={}, slice_sizes={1,1,1}
  ROOT %n = f32[4]{0} negate(%p)
}

%step (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %f = f32[4]{0} fusion(%i), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"70"}
  %c = (f32[4]{0}) custom-call(%f), window={size=5x5}, target="__cudnn$conv", CONV, "estimated_cycles":"30"
  %d = f32[4]{0} convolution(%f), window={size=64x64}, metadata={op_name="fc1/dot_general"}
  ROOT %out = (s32[], f32[4]{0}) tuple(%i, %f)
}

%outer (arg.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg.1 = (s32[], f32[4]{0}) parameter(0)
  %many = f32[4]{0} negate(%arg.1)
  %many.1 = f32[4]{0} negate(%arg.1)
  %many.2 = f32[4]{0} negate(%arg.1)
  %many.3 = f32[4]{0} negate(%arg.1)
  ROOT %w = (s32[], f32[4]{0}) while(%arg.1), condition=%cond, body=%step
}

%sorting (arg.2: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg.2 = (s32[], f32[4]{0}) parameter(0)
  ROOT %s = (s32[], f32[4]{0}) tuple(%arg.2)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %w.1 = (s32[], f32[4]{0}) while(%a), condition=%cond, body=%outer
  %w.2 = (s32[], f32[4]{0}) while(%a), condition=%cond, body=%sorting
  ROOT %r = f32[4]{0} get-tuple-element(%w.1), index=1
}
""".replace("CONV", 'metadata={op_name="conv1/conv_general_dilated"}')


@pytest.fixture(scope="module")
def compiled_step():
    spec = importlib.util.spec_from_file_location("compiled_step", BENCHMARKS / "compiled_step.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["compiled_step"] = module
    spec.loader.exec_module(module)
    return module


def test_the_local_step_is_the_innermost_loop_that_multiplies(compiled_step):
    step = compiled_step.local_step(TEXT, tpu=True)
    assert step.kernels == 3
    assert step.largest_window == 5  # a product of matrices is no convolution of the network
    assert step.pixel_gathers == 1
    assert step.cycles == 100


def test_a_gpu_has_no_cycles(compiled_step):
    assert compiled_step.local_step(TEXT, tpu=False).cycles is None
