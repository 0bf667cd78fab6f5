"""Collectives of a module by pass: in loops, started and awaited, and in the fusions of a TPU's compiler."""

from remat_plan.compiled.collectives import AGAIN, BACKWARD, FORWARD, Collective, collectives

MODULE = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (x: f32[8]) -> f32[2] {
  %x = f32[8]{0} parameter(0)
  %all-reduce = f32[8]{0} all-reduce(%x), to_apply=%add
  %zero = s32[] constant(0)
  ROOT %part = f32[2]{0} dynamic-slice(%all-reduce, %zero), dynamic_slice_sizes={2}
}

%body (state: (s32[], f32[2])) -> (s32[], f32[2]) {
  %state = (s32[], f32[2]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %part = f32[2]{0} get-tuple-element(%state), index=1
  %start = (f32[2]{0}, f32[8]{0}) all-gather-start(%part), metadata={op_name="jit(f)/jvp()/mul"}
  %whole = f32[8]{0} all-gather-done(%start)
  %again = f32[8]{0} all-gather(%part), metadata={op_name="transpose(jvp())/checkpoint/rematted_computation/mul"}
  %scattered = f32[2]{0} fusion(%whole), calls=%all-reduce-scatter.1, metadata={op_name="transpose(jvp())/dot"}
  ROOT %result = (s32[], f32[2]{0}) tuple(%next, %scattered)
}

%condition (state: (s32[], f32[2])) -> pred[] {
  %state = (s32[], f32[2]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[2]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[2]{0}) while(%start), condition=%condition, body=%body
  %done = f32[2]{0} get-tuple-element(%loop), index=1
  ROOT %moved = f32[2]{0} collective-permute(%done), source_target_pairs={{0,1}}
}
"""


def test_collectives_are_told_by_pass_and_kind():
    assert collectives(MODULE) == (
        Collective(FORWARD, "all-gather", 3, 3 * 32),
        Collective(FORWARD, "collective-permute", 1, 8),
        Collective(AGAIN, "all-gather", 3, 3 * 32),
        Collective(BACKWARD, "reduce-scatter", 3, 3 * 32),
    )


def test_a_module_of_one_device_has_none():
    assert collectives("ENTRY %main (x: f32[4]) -> f32[4] {\n  ROOT %x = f32[4]{0} parameter(0)\n}") == ()
    assert collectives("no module") == ()
