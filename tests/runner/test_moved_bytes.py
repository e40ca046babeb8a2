"""Bytes that a program moves, counted in a compiler's text."""

import jax
import jax.numpy as jnp

from rscfed_jax.runner.moved_bytes import moved_bytes, shape_bytes

TEXT = """
HloModule made_up

%inside (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %big = f32[8]{0} negate(%p)
}

ENTRY %main (a: f32[2,3], b: bf16[4]) -> (f32[2,3]) {
  %a = f32[2,3]{1,0} parameter(0)
  %b = bf16[4]{0} parameter(1)
  %both = (f32[2,3]{1,0}, s8[5]{0}) fusion(%a, %b), kind=kLoop, calls=%inside
  %one = f32[2,3]{1,0} get-tuple-element(%both), index=0
  %sum = f32[2,3]{1,0} add(%one, %a)
  ROOT %out = (f32[2,3]{1,0}) tuple(%sum)
}
"""


def test_kernels_read_their_operands_and_write_their_results():
    assert moved_bytes(TEXT) == (24 + 5 + 24 + 8) + (24 + 24 + 24)


def test_shapes():
    assert shape_bytes("f32[]") == 4
    assert shape_bytes("(f32[2,3]{1,0}, pred[7]{0}, u8[0]{0})") == 31


def test_a_program_of_this_jax_can_be_read():
    program = jax.jit(lambda x: jnp.sin(x) + 1).lower(jnp.zeros((3, 5))).compile()
    assert moved_bytes(program.as_text()) == 2 * 60
