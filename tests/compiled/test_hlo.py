"""The text of modules is taken apart."""

import pytest

from remat_plan.compiled.hlo import Instruction, arrays_of, parse
from remat_plan.compiled.operations import work_of
from tests.compiled.modules import GPU, TPU


def test_instructions_are_read_with_types_operands_and_attributes():
    module = parse(GPU)
    assert set(module.computations) == {"gemm_computation", "fused_slice", "fused_update", "main"}
    assert module.entry.name == "main"
    gemm = module.entry.instructions["gemm"]
    assert (gemm.opcode, gemm.operands, gemm.called("calls")) == ("fusion", ("x", "w"), ("gemm_computation",))
    (dot,) = [i for i in module.computations["gemm_computation"].instructions.values() if i.opcode == "dot"]
    assert dot.numbers("lhs_contracting_dims") == (1,)
    assert dot.bytes == 512 * 128 * 2
    call = module.entry.instructions["cublas"]
    assert call.word("custom_call_target") == "__cublas$lt$matmul"
    assert [array.shape for array in call.arrays] == [(512, 512), (4194304,)]
    assert module.entry.root.opcode == "tuple"


def test_layouts_of_a_tpu_do_not_confuse():
    module = parse(TPU)
    loop = module.entry.instructions["while.1"]
    assert loop.opcode == "while"
    assert loop.operands == ("tuple",)
    assert [c.name for c in module.called(loop, "body", "condition")] == ["body", "condition"]
    assert module.entry.instructions["tuple"].operands == ("copy.1", "copy-done", "w", "eight")
    assert module.computations["body"].root.name == "tuple.1"


def test_operands_with_types_and_nested_parentheses():
    text = """ENTRY main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0:T(128)} parameter(0)
  ROOT %y = f32[4]{0} add(f32[4]{0:T(128)} %x, f32[4]{0:T(128)(2,1)} %x), metadata={op_name="jit(f)/add (twice)"}
}
"""
    root = parse(text).entry.root
    assert root.operands == ("x", "x")
    assert root.attributes.startswith(", metadata")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("pred[3]", [3.0]),
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}", [12.0]),
        ("f8e4m3fn[8]{0}", [8.0]),
        ("s4[8]{0}", [4.0]),
        ("c64[]", [8.0]),
        ("f32[<=7]", [28.0]),
        ("((f32[2]{0}, token[]), /*index=1*/u8[0]{0})", [8.0, 0.0]),
    ],
)
def test_bytes_of_types(text, sizes):
    assert [array.bytes for array in arrays_of(text)] == sizes


@pytest.mark.parametrize("text", ["", "HloModule jit_f", "ENTRY %main () -> f32[] {", "no module at all {\n}\n"])
def test_what_is_no_module(text):
    assert parse(text) is None


def test_branches_are_named_in_braces():
    found = Instruction("c", "conditional", "f32[]", (), "", ", branch_computations={%a.1, %b}, metadata={}")
    assert found.called("branch_computations") == ("a.1", "b")


def test_what_an_author_says_of_a_kernel_may_go_over_several_lines():
    module = parse("""ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %y = f32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block\\": 512}"
}}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"64"}}}
  ROOT %z = f32[4]{0} negate(%y)
}""")
    assert module is not None
    assert list(module.entry.instructions) == ["x", "y", "z"]
    found = module.entry.instructions["y"]
    assert work_of(module.entry, found, 4, 4)[1] == 64.0
    assert found.word("custom_call_target") == "tpu_custom_call"
