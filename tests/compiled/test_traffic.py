"""Transfers to the host's memory and back in the text of a module, as XLA writes them for GPUs and TPUs."""

import pytest

from remat_plan.compiled.hlo import parse
from remat_plan.compiled.seconds import compiled_seconds
from remat_plan.compiled.traffic import Transfer, transfer
from remat_plan.cost.hardware import Hardware

STORE_ON_GPU = """
  %stack = f32[6,8]{1,0:S(5)} parameter(0)
  %row = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %x = ((f32[6,8]{1,0:S(5)}, f32[1,8]{1,0}, s32[]), f32[6,8]{1,0:S(5)}, u32[]) fusion-start(%stack, %row, %i), calls=%f
"""
STORE_ON_TPU = """
  %stack = f32[6,8]{1,0:T(8,128)S(5)} parameter(0)
  %row = f32[1,8]{1,0:T(8,128)} parameter(1)
  %i = s32[]{:T(128)} parameter(2)
  %x = ((f32[6,8]{1,0:T(8,128)S(5)}, f32[1,8]{1,0:T(8,128)}, s32[]{:T(128)}), f32[6,8]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) dynamic-update-slice-start(%stack, %row, %i)
"""
FETCH = """
  %stack = f32[6,8]{1,0:S(5)} parameter(0)
  %i = s32[] parameter(1)
  %x = ((f32[6,8]{1,0:S(5)}, s32[]), f32[1,8]{1,0}, u32[]) dynamic-slice-start(%stack, %i)
"""
COPY = """
  %y = f32[8]{0} parameter(0)
  %x = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%y)
"""
COPY_BACK = """
  %y = f32[8]{0:S(5)} parameter(0)
  %x = f32[8]{0} copy(%y)
"""
ON_CHIP = """
  %y = f32[8]{0} parameter(0)
  %x = (f32[8]{0:S(1)}, f32[8]{0}, u32[]) copy-start(%y)
"""
ON_DEVICE = """
  %y = f32[8]{0} parameter(0)
  %x = f32[8]{0} copy(%y)
"""


def module(body):
    return f"ENTRY %main (y: f32[8]) -> f32[8] {{{body}  ROOT %r = f32[8]{{0}} bitcast(%x)\n}}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (STORE_ON_GPU, Transfer(32.0, False)),
        (STORE_ON_TPU, Transfer(32.0, False)),
        (FETCH, Transfer(32.0, True)),
        (COPY, Transfer(32.0, False)),
        (COPY_BACK, Transfer(32.0, True)),
        (ON_CHIP, None),
        (ON_DEVICE, None),
    ],
)
def test_what_moves_and_where_to(body, found):
    entry = parse(module(body)).entry
    assert transfer(entry, entry.instructions["x"]) == found


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_transfer_takes_the_seconds_of_the_link(platform):
    slow = Hardware("toy", 1e12, 1e12, 1e12, link_bytes_per_second=1.0)
    estimated = module(STORE_ON_GPU).replace("bitcast(%x)", 'negate(%row), backend_config={"estimated_cycles":"1"}')
    assert compiled_seconds(estimated, platform, slow).seconds == pytest.approx(32.0)
