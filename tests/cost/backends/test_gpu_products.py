"""Products of XLA:GPU that have an operand in common, and those that read or write rows of a loop."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost import platforms
from remat_plan.cost.backends import gpu_products
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, fact_book
from remat_plan.cost.program import lower
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import CUDA

H100 = hardware_for("gpu:h100", "gpu")
MIB = 2**20


def floats(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(fun, *args):
    return lower(jax.make_jaxpr(fun)(*args), fact_book(H100))


def products(fun, *args):
    """How many arrays each product is merged of, in the order in which they run; 1 for those that are none."""
    steps = lowered(fun, *args).steps
    parts = {step.writes[0]: len(step.reads) for step in steps if step.primitive == "concatenate"}
    return [max([parts.get(v, 1) for v in s.reads]) for s in steps if s.primitive == "dot_general"]


def peak(fun, *args, hardware=H100):
    return evaluate(jax.make_jaxpr(fun)(*args), hardware).peak_bytes


X, W = floats(64, 32), floats(32, 32)


def test_products_of_one_array_are_one():
    program = lowered(lambda x, a, b, c: jnp.tanh(x @ a) * (x @ b) - (c @ x.T).T, X, W, W, W)
    names = [step.primitive for step in program.steps]
    assert names.count("dot_general") == 2, "a transpose is another array"
    joined = program.steps[names.index("concatenate")]
    product = program.steps[names.index("dot_general")]
    parts = [step for step in program.steps if step.primitive == "slice"]
    assert [program.sizes[step.writes[0]] for step in (joined, product)] == [2 * 4 * 32 * 32, 2 * 4 * 64 * 32]
    assert [program.sizes[step.writes[0]] for step in parts] == 2 * [4 * 64 * 32]
    assert product.flops == 2 * 2 * 64 * 32 * 32
    result = next(kernel for kernel in fuse(program) if product.writes[0] in kernel.reads)
    assert result.step.primitive != "slice", "parts are read where they are"


def test_a_part_that_a_product_reads_is_an_array():
    kernels = fuse(lowered(lambda x, a, b: jnp.tanh(x @ a) @ (x @ b).T, X, W, W))
    assert [k.step.primitive for k in kernels].count("slice") == 1


def batches(x, y, z, first="bmk,bkn->bmn", second="bmk,bkn->bmn"):
    return jnp.sin(jnp.einsum(first, x, y)).sum() + jnp.cos(jnp.einsum(second, x, z)).sum()


@pytest.mark.parametrize(
    ("fun", "args", "merged"),
    [
        (lambda x, a, b: [x @ a, jnp.tanh(x @ b)], (X, W, W), [2]),
        (lambda x, y, a: [x @ a, jnp.tanh(y @ a)], (X, X, W), [2]),  # of one matrix
        (lambda x, a, b: jnp.tanh(x @ a).sum() + x @ b, (X, W, W), [2]),
        (lambda x, a: (x @ a) @ a, (X, W), [1, 1]),  # the second depends on the first
        (lambda x, a, b: x @ (b + (x @ a).sum()), (X, W, W), [1, 1]),
        (lambda x, a, b: [x @ a, x.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16)], (X, W, W), [1, 1]),
        (lambda x, a, b: [x @ a, lax.dot(x, b, precision="highest")], (X, W, W), [1, 1]),
        (lambda x, a, b: [x @ a, x.T @ b], (W, W, W), [1, 1]),
        (batches, (floats(4, 8, 8), floats(4, 8, 8), floats(4, 8, 8)), [2]),
    ],
)
def test_what_is_merged(fun, args, merged):
    assert products(fun, *args) == merged


def test_groups_that_would_wait_for_each_other_are_not_both_made():
    def fun(x, y, a, b):
        p, q = x @ a, y @ b
        return x @ jnp.sin(q), y @ jnp.sin(p)

    assert sorted(products(fun, *[floats(32, 32)] * 4)) == [1, 1, 2]


def widths(*columns):
    """Products of one array of 4 MiB, and as many more for each 64 columns."""
    return products(lambda x, *w: [jnp.tanh(x @ v) for v in w], floats(16384, 64), *[floats(64, n) for n in columns])


def test_they_grow_to_64_mib():
    """As XLA:GPU merges them: until there are more, the smallest first; what is larger by itself takes in nothing."""
    assert widths(*[256] * 6) == [4, 2]
    assert widths(*[128] * 9) == [8, 1]
    assert widths(*[992] * 3) == [2, 1]
    assert widths(1024, 1024) == [1, 1]
    assert widths(1100, 64, 64) == [3]
    assert sorted(widths(64, 900, 900, 64)) == [1, 3]


def test_a_chain_that_shares_a_matrix_is_left(monkeypatch):
    """Nothing is compared: each product depends on the one before."""
    monkeypatch.setattr(gpu_products, "_may_join", None)

    def fun(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x

    assert products(fun, X, W) == [1] * 4


def gated(x, gate, up, down):
    return ((jax.nn.silu(x @ gate) * (x @ up)) @ down).sum()


GATED = floats(4096, 512), floats(512, 1024), floats(512, 1024), floats(1024, 512)
GRADIENTS = jax.grad(gated, argnums=(1, 2, 3))


def test_every_step_runs_after_what_it_reads():
    assert products(GRADIENTS, *GATED).count(2) == 2
    program = lowered(GRADIENTS, *GATED)
    there = set(program.inputs)
    for step in program.steps:
        assert there.issuperset(step.reads)
        there.update(step.writes)
    assert there.issuperset(program.outputs)


def one_after_the_other(x, gate, up, down):
    return (jnp.tanh(x @ gate) @ down).sum() + jnp.sin(x @ up).sum()


@pytest.mark.parametrize("fun", [one_after_the_other, GRADIENTS], ids=["forward", "gradients"])
def test_the_compiler_has_one_array_of_all_parts(fun, monkeypatch):
    with_rule = peak(fun, *GATED)
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("merges_products"))
    assert abs(with_rule / peak(fun, *GATED) - 1) > 0.15
    pytest.importorskip(CUDA)
    assert compile_memory(fun, GATED, resolve("gpu:h100")).total_bytes == pytest.approx(with_rule, rel=0.001)


def lstm(x, inputs, states):
    def cell(carry, row):
        h, s = carry
        i, f, g, o = [row @ w + h @ u for w, u in zip(inputs, states, strict=True)]
        s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(s)
        return (h, s), h

    zeros = jnp.zeros(x.shape[1:])
    return (lax.scan(cell, (zeros, zeros), x)[1] ** 2).sum()


def rows(x, w):
    return lax.scan(lambda h, row: (jnp.tanh(row @ w + h), None), jnp.zeros(x.shape[1:], x.dtype), x)[0].sum()


def layers(x, matrices):
    return (lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, matrices)[0] ** 2).sum()


LSTM = floats(16, 64, 512), [floats(512, 512)] * 4, [floats(512, 512)] * 4
LAYERS = floats(1024, 512), floats(16, 512, 512)
LOOPS = {
    "lstm": (jax.grad(lstm, argnums=(0, 1, 2)), LSTM),
    "rows": (rows, (floats(32, 64, 512, dtype=jnp.bfloat16), floats(512, 512, dtype=jnp.bfloat16))),
    "layers": (jax.grad(layers, argnums=1), LAYERS),
}


@pytest.mark.parametrize("name", LOOPS)
def test_products_of_rows_have_a_workspace_of_32_mib(name, monkeypatch):
    """A tenth is for copies of rows, which are read in place where they are compiled."""
    fun, args = LOOPS[name]
    with_rule = peak(fun, *args)
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("row_workspace"))
    assert with_rule - peak(fun, *args) > 20 * MIB
    pytest.importorskip(CUDA)
    compiled = compile_memory(fun, args, resolve("gpu:h100")).total_bytes
    assert compiled == pytest.approx(with_rule, rel=0.03)


def test_older_gpus_have_none(monkeypatch):
    older = hardware_for("gpu:a100", "gpu")
    with_rule = peak(layers, *LAYERS, hardware=older)
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("row_workspace"))
    assert peak(layers, *LAYERS, hardware=older) == with_rule


def between_products(x, w, narrow):
    return (jnp.tanh(x @ w) @ narrow).sum()


def test_nothing_is_written_over_what_a_library_hands_out_in_a_tuple(monkeypatch):
    args = floats(8192, 2048), floats(2048, 2048), floats(2048, 64)
    with_rule = peak(between_products, *args)
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("tuples"))
    assert with_rule - peak(between_products, *args) == pytest.approx(4 * 8192 * 2048, rel=0.04)
    pytest.importorskip(CUDA)
    assert compile_memory(between_products, args, resolve("gpu:h100")).total_bytes == pytest.approx(with_rule, rel=1e-3)


@pytest.mark.parametrize(("made", "arrays"), [(lambda x: lax.sort(x), 2), (lambda x: x @ x, 3)])
def test_what_is_no_call_of_a_library_is_written_over(made, arrays):
    """exp is read by two products, so it is written: over what is sorted, and beside a product."""

    def fun(x):
        y = jnp.exp(made(x))
        return (y @ x[:, :8]).sum() + (x[:8] @ y).sum()

    x = floats(2048, 2048)
    assert peak(fun, x) // (4 * x.size) == arrays


def test_of_rows_and_what_is_made_of_them_the_latter_is_common():
    """The gradients of two matrices that a gate has are one product; those of all gates for one row are not."""

    def body(carry, row):
        h, total = carry
        gates = [jnp.sin(h), jnp.cos(h)]
        return (h, total + sum(jnp.einsum("bk,bn->kn", v, g).sum() for g in gates for v in row)), None

    def fun(x, y):
        return lax.scan(body, (jnp.ones(x.shape[1:]), 0.0), (x, y))[0]

    eqn = jax.make_jaxpr(fun)(floats(8, 64, 32), floats(8, 64, 32)).eqns[-1]
    program = lower(eqn.params["jaxpr"], fact_book(H100), eqn)
    made = {value: step.primitive for step in program.steps for value in step.writes}
    common = [made.get(v) for s in program.steps if s.primitive == "dot_general" for v in s.reads]
    assert sorted(name for name in common if name != "concatenate") == ["cos", "sin"]
