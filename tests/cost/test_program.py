"""Lowering: what becomes one value, one step, one copy."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost.backend import GENERIC
from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.layout import dot_operand_order
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.rules import Kind

HARDWARE = hardware_for("cpu", "cpu")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def program(fun, *args, model=GENERIC):
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=HARDWARE), model))


def names(fun, *args, model=GENERIC):
    return [s.primitive for s in program(fun, *args, model=model).steps]


def test_aliases_are_one_value():
    made = program(lambda x: jnp.sin(jax.ad_checkpoint.checkpoint_name(x.reshape(4, 8), "x")), f32(32))
    (step,) = made.steps
    assert set(step.reads) == made.inputs


def test_calls_are_inlined_and_dead_steps_dropped():
    @jax.jit
    def fun(x):
        jnp.tanh(x)
        return jnp.sin(x)

    assert names(fun, f32(32)) == ["sin"]


def test_equal_steps_are_one_and_both_are_counted():
    made = program(lambda x: jnp.sin(x) + jnp.sin(x), f32(32))
    assert [(s.primitive, s.equations) for s in made.steps] == [("sin", 2), ("add", 1)]


def test_steps_of_other_parameters_are_not_merged():
    assert names(lambda x: (x[1:], x[:-1]), f32(32)).count("slice") == 2


def test_nothing_is_merged_across_a_barrier():
    def fun(x):
        y = lax.optimization_barrier(x)
        return jnp.sin(x) + jnp.sin(y)

    made = program(fun, f32(32))
    assert [s.primitive for s in made.steps].count("sin") == 2
    (barrier,) = [s for s in made.steps if s.kind == Kind.BARRIER]
    assert made.storage[barrier.writes[0]] == barrier.reads[0]  # one buffer, two values


def test_checkpoint_has_a_barrier_only_where_it_is_differentiated():
    block = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    assert "barrier" not in names(block, f32(32))
    assert "barrier" in names(jax.grad(lambda x: block(x).sum()), f32(32))


def test_barrier_lets_dead_values_go():
    made = program(lambda x, y: lax.optimization_barrier((x, y))[0] + 1, f32(32), f32(32))
    (barrier,) = [s for s in made.steps if s.kind == Kind.BARRIER]
    assert len(barrier.reads) == len(barrier.writes) == 1


def test_implicit_broadcasts_are_steps_of_their_own():
    made = program(lambda x, b: x * b, f32(64, 128), f32(64, 1))
    assert [s.primitive for s in made.steps] == ["broadcast_in_dim", "mul"]
    assert made.sizes[made.steps[0].writes[0]] == 64 * 128 * 4


@pytest.mark.parametrize(
    ("shape", "batch", "contract", "last", "order"),
    [
        ((8, 512, 768), (), (2,), True, None),  # x @ w
        ((768, 3072), (), (1,), False, None),  # w.T on the right: folded into the product
        ((8, 512, 768), (), (0, 1), True, (2, 0, 1)),  # dy.T @ x
        ((8, 512, 768), (), (0, 1), False, None),
        ((8, 512, 12, 64), (0, 2), (3,), True, (0, 2, 1, 3)),  # queries of attention
        ((8, 512, 12, 64), (0, 2), (3,), False, (0, 2, 3, 1)),  # keys
        ((8, 12, 512, 512), (0, 1), (2,), True, None),  # scores: batch leads, one dimension of each kind
        ((1, 512, 768), (), (0, 1), True, (2, 0, 1)),  # a batch of one, contracted, is a second dimension
        ((512, 768), (), (0,), True, None),  # without it there is one
        ((1, 512, 768), (0,), (1,), True, None),  # dimensions of one that are not contracted do not count
    ],
)
def test_dot_operand_order(shape, batch, contract, last, order):
    assert dot_operand_order(shape, batch, contract, last) == order


@pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")
@pytest.mark.parametrize(("expression", "shape"), [("bsd,bsf->df", (1, 64, 128)), ("bsd,bsf->bdf", (1, 64, 128)),
                                                   ("bsd,bsf->df", (2, 64, 128)), ("sd,sf->df", (64, 128))])  # fmt: skip
def test_the_compiler_copies_operands_where_it_is_said(expression, shape):
    def product(a, b):
        return jnp.einsum(expression, jnp.sin(a), jnp.cos(b))

    compiled = jax.jit(product).lower(f32(*shape), f32(*shape)).compile().as_text()
    made = program(product, f32(*shape), f32(*shape), model=CPU)
    assert ("copy_bitcast_fusion = " in compiled) == any(s.primitive == "layout_copy" for s in made.steps)


@pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize(
    ("expression", "left", "right", "copies"),
    [
        ("bhqk,bqhd->bhkd", (6, 128, 160), (128, 6, 48), [2, 1]),  # scores' gradient and queries: that of keys
        ("bkhd,bhqk->bhdq", (160, 6, 48), (6, 128, 160), [2, 1]),  # values and weights, as Flax multiplies them
        ("bhqk,bhqd->bhkd", (6, 128, 160), (6, 128, 48), [0, 0]),  # heads lead in both
        ("bhqk,bkhd->bhqd", (6, 128, 160), (160, 6, 48), [1, 1]),  # the weights are in order
    ],
)
def test_a_batch_of_one_is_transposed_for_a_product_whose_other_operand_is(expression, left, right, copies, examples):
    def product(a, b):
        return jnp.einsum(expression, 2 * jnp.sin(a), 2 * jnp.cos(b))

    args = f32(examples, *left), f32(examples, *right)
    made = program(product, *args, model=CPU)
    assert sum(s.primitive == "layout_copy" for s in made.steps) == copies[examples - 1]
    text = jax.jit(product).lower(*args).compile().as_text()
    kernels = re.findall(r"^ +(?:ROOT )?%\S+ = \S+ fusion\(%[ab].*calls=%([\w.]+)", text[text.index("ENTRY") :], re.M)
    bodies = [text[text.index(f"%{name} (") :].partition("\n}")[0] for name in kernels]
    assert sum(" transpose(" in body for body in bodies) == copies[examples - 1]


def test_gradient_of_convolution_copies_both_operands_on_cpu():
    def loss(w, x):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()

    args = (f32(3, 3, 32, 32), f32(8, 16, 16, 32))
    assert names(jax.grad(loss), *args, model=CPU).count("layout_copy") == 3  # images, cotangent, result
    assert names(jax.grad(loss), *args, model=GENERIC).count("layout_copy") == 0


@pytest.mark.parametrize(("is_body", "copies", "work"), [(False, 3, "kernel-gradient"), (True, 0, "reordered")])
def test_in_loops_convolutions_are_not_put_in_order_on_cpu(is_body, copies, work):
    """XLA's ``ConvCanonicalization`` looks at the main computation only."""

    def loss(w, x):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()

    book = FactBook(partial(region_cost, hardware=HARDWARE), CPU, is_body=is_body)
    steps = lower(jax.make_jaxpr(jax.grad(loss))(f32(3, 3, 32, 32), f32(8, 16, 16, 32)), book).steps
    assert sum(s.primitive == "layout_copy" for s in steps) == copies
    assert [s.work for s in steps if s.primitive == "conv_general_dilated"] == [f"convolution {work} float32"]


def test_a_kernel_gradient_takes_much_longer_in_a_loop_on_a_cpu():
    def gradient(x, dy):
        return lax.conv_general_dilated(x, dy, (1, 1), "SAME", dimension_numbers=("CHWN", "IHWO", "HWNC"))

    args = (f32(64, 16, 16, 32), f32(64, 16, 16, 32))
    rows = [jax.ShapeDtypeStruct((4, 16, *a.shape[1:]), a.dtype) for a in args]
    alone = evaluate(jax.make_jaxpr(gradient)(*args), HARDWARE).seconds
    looped = evaluate(jax.make_jaxpr(lambda *xs: lax.map(lambda x: gradient(*x), xs))(*rows), HARDWARE).seconds
    assert looped > 20 * alone


def test_pooling_gradient_keeps_indices_on_cpu():
    def loss(x):
        pooled = lax.reduce_window(x * x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pooled.sum()

    made = program(jax.grad(loss), f32(4, 16, 16, 8), model=CPU)
    indices = [s for s in made.steps if s.primitive == "concatenate"]
    assert [made.sizes[s.writes[0]] for s in indices] == [4 * 4 * (4 * 8 * 8 * 8)]  # four int32 an output


def test_of_branches_for_platforms_the_one_that_is_compiled_counts():
    def fun(x):
        return lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.tanh, default=jnp.exp)

    found = {}
    for platform in ("cpu", "gpu", "tpu"):
        book = FactBook(partial(region_cost, hardware=HARDWARE), GENERIC, platform)
        steps = lower(jax.make_jaxpr(fun)(f32(32)), book).steps
        found[platform] = [s.primitive for s in steps if s.primitive != "platform_index"]
    assert found == {"cpu": ["sin"], "gpu": ["tanh"], "tpu": ["exp"]}


def test_scatter_into_zeros_then_add_is_one_scatter():
    """A skip connection adds another gradient to the pooling's: no zeros, no addition."""

    def loss(x):
        x = x * x
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pooled.sum() + (x**3).sum()

    steps = names(jax.grad(loss), f32(4, 16, 16, 8), model=CPU)
    assert steps.count("pool_scatter") == 1
    assert steps.count("add_any") == 1  # the one of ``x * x``


@pytest.mark.parametrize(
    "fun",
    [
        lambda v: (v.reshape(8, 8)[0:2, 0:4], v.reshape(4, 16)[0:2, 0:4]),
        lambda v: (v.reshape(8, 8).T, v.reshape(2, 32)[:, :8].T, v.reshape(8, 8)[:, :2].T),
        lambda v: (v.reshape(2, 8, 4).sum((0, 2)), v.reshape(4, 8, 2).sum((0, 2))),
        lambda v: (jnp.ones((64, 64)) * v[:, None], jnp.ones((64, 64)) * v[None, :]),
        lambda v: (jnp.broadcast_to(v[:, None], (64, 64)), jnp.broadcast_to(v[None, :], (64, 64))),
        lambda v: (1.0 - v, v - 1.0),
    ],
    ids=["slice", "transpose", "sum", "implicit", "broadcast", "literals"],
)
def test_one_value_read_in_two_shapes_is_two_inputs(fun):
    made = program(fun, f32(64))
    assert len(set(made.outputs)) == len(made.outputs), "no two are the same"


def test_a_value_read_twice_in_one_shape_is_one_input():
    made = program(lambda v: (v.reshape(8, 8)[0:2], v.reshape(4, 16).reshape(8, 8)[0:2]), f32(64))
    assert len(set(made.outputs)) == 1


def test_a_reshape_that_transposes_first_moves_data():
    made = program(lambda x: jnp.sin(jnp.ravel(x, order="F")), f32(16, 32))
    assert [s.primitive for s in made.steps] == ["reshape", "sin"]
    assert made.steps[0].reads[0] in made.inputs


N = 64
READERS = {
    "plain": (lambda x, w: x.T @ w, (N, 4096), True),
    "degenerate": (lambda x, w: jnp.einsum("abc,cd->abd", x.T[:, None, :], w), (N, 4096), True),
    "split": (lambda x, w: jnp.einsum("abc,cd->abd", x.T.reshape(64, 64, N), w), (N, 4096), True),
    "columns": (lambda x, w: w.T @ x.T[None].reshape(N, 4096), (4096, N), True),
    "merged": (lambda x, w: x.transpose(1, 2, 0).reshape(4096, N) @ w, (N, 64, 64), False),
    "equal_rank": (lambda x, w: x.T.reshape(4096, N) @ w, (4 * N, 1024), False),
    "batches": (lambda x, w: jnp.einsum("abc,acd->abd", x.T.reshape(64, 64, N), w[None] * X64), (N, 4096), False),
}
X64 = jnp.ones((64, 1, 1))


@pytest.mark.parametrize("name", READERS)
def test_a_transpose_folds_into_a_product_if_no_reshape_stays_between(name):
    fun, shape, folds = READERS[name]
    made = program(lambda x, w: fun(jnp.tanh(x), w), f32(*shape), f32(N, N), model=CPU)
    makers = {w: s.primitive for s in made.steps for w in s.writes}
    (dot,) = [s for s in made.steps if s.primitive == "dot_general"]
    read = {makers.get(r) for r in dot.reads}
    assert ("tanh" in read) == folds, "it reads what was transposed"
    assert ("transpose" in read) == (not folds)


@pytest.mark.parametrize(
    ("fun", "folds"),
    [
        (lambda x, w: (x @ w).T, True),
        (lambda x, w: jnp.sin((x @ w).T).T, True),
        (lambda x, w: jnp.einsum("abc,cd->abd", x.reshape(8, 32, N), w).reshape(256, N).T, True),
        (lambda x, w: (x @ w).reshape(64, 4 * N).T, False),
        (lambda x, w: (x @ w).reshape(N, 256).T, False),
        (lambda x, w: lax.dot_general(x.reshape(N, 4, N), w, (((2,), (1,)), ((0,), (0,)))).T, False),
    ],
    ids=["matrix", "sine", "rows", "reshaped", "rows_for_columns", "batches"],
)
def test_a_transpose_of_a_product_is_its_other_order(fun, folds):
    steps = names(fun, f32(256, N), f32(N, N), model=CPU)
    assert ("transpose" in steps[: steps.index("dot_general") + 2]) == (not folds)


def test_a_product_turned_twice_is_itself():
    """The gradient of ``w`` in ``x @ w.T``: JAX transposes it for the product and back for ``w.T``."""
    steps = names(jax.grad(lambda w, x: jnp.sum((x @ w.T) ** 2)), f32(N, 2 * N), f32(256, 2 * N), model=CPU)
    assert "transpose" not in steps


@pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")
@pytest.mark.parametrize(
    ("fun", "shape"),
    [
        (lambda w, x: jnp.tanh((x.T @ w).reshape(64, 64 * N).T), (N, 4096)),
        (lambda w, x: jnp.tanh(jnp.einsum("abc,cd->abd", x, w).reshape(4096, N).T), (64, 64, N)),
        (lambda w, x: jnp.tanh((jnp.tanh(x).transpose(0, 2, 1).reshape(4096, N)) @ w), (64, N, 64)),
    ],
    ids=["reshaped_product", "rows", "merged"],
)
def test_peaks_with_reshapes_and_transposes(fun, shape):
    step = jax.grad(lambda w, x: jnp.sum(fun(w, x) ** 2), argnums=(0, 1))
    args = f32(N, N), f32(*shape)
    found = jax.jit(step).lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert evaluate(jax.make_jaxpr(step)(*args), HARDWARE).peak_bytes == pytest.approx(compiled, rel=0.02)
