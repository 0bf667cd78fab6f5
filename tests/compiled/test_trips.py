"""How often loops run: as XLA says, or as their counters say."""

import pytest

from remat_plan.compiled.hlo import parse
from remat_plan.compiled.trips import steps_of
from tests.compiled.modules import TPU

LOOP = """%step (p: s32[]) -> s32[] {{
  %p = s32[] parameter(0)
  %by = s32[] constant({step})
  ROOT %next = s32[] add(%p, %by)
}}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %arg = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %copy = s32[] copy(%i)
  %fused = s32[] fusion(%copy), kind=kLoop, calls=%step
  %x = f32[4]{{0}} get-tuple-element(%arg), index=1
  ROOT %out = (s32[], f32[4]{{0}}) tuple(%fused, %x)
}}

%condition (arg.1: (s32[], f32[4])) -> pred[] {{
  %arg.1 = (s32[], f32[4]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %limit = s32[] constant({limit})
  ROOT %test = pred[] compare({sides}), direction={direction}
}}

ENTRY %main (x.1: f32[4]) -> f32[4] {{
  %x.1 = f32[4]{{0}} parameter(0)
  %first = s32[] constant({start})
  %start = (s32[], f32[4]{{0}}) tuple(%first, %x.1)
  %loop = (s32[], f32[4]{{0}}) while(%start), condition=%condition, body=%body{more}
  ROOT %result = f32[4]{{0}} get-tuple-element(%loop), index=1
}}
"""


def count(start, limit, step, direction, sides="%i.1, %limit", more=""):
    text = LOOP.format(start=start, limit=limit, step=step, direction=direction, sides=sides, more=more)
    module = parse(text)
    return steps_of(module, module.entry, module.entry.instructions["loop"], {})[0]


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction", "steps"),
    [
        (0, 6, 1, "LT", 6),
        (2, 9, 3, "LT", 3),
        (0, 6, 1, "LE", 7),
        (6, 0, -1, "GT", 6),
        (6, 0, -2, "GE", 4),
        (0, 6, 2, "NE", 3),
        (9, 6, 1, "LT", 0),
        (0, 6, -1, "LT", None),
        (0, 5, 2, "NE", None),
        (0, 6, 0, "LT", None),
    ],
)
def test_counters(start, limit, step, direction, steps):
    assert count(start, limit, step, direction) == steps
    turned = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}[direction]
    assert count(start, limit, step, turned, "%limit, %i.1") == steps


@pytest.mark.parametrize(
    "told",
    [
        ', backend_config={"known_trip_count":{"n":"11"},"known_init_step":{"init":"0"}}',
        ', backend_config="{\\"known_trip_count\\":{\\"n\\":\\"11\\"}}"',
    ],
)
def test_what_xla_says_counts(told):
    assert count(0, 6, 1, "LT", more=told) == 11


def test_a_limit_that_is_carried_unchanged():
    module = parse(TPU)
    assert steps_of(module, module.entry, module.entry.instructions["while.1"], {})[0] == 8
    changed = parse(
        TPU.replace("tuple(%add.1, %fusion.1, %stack, /*index=3*/%limit)", "tuple(%add.1, %fusion.1, %stack, %i)")
    )
    assert steps_of(changed, changed.entry, changed.entry.instructions["while.1"], {})[0] is None
