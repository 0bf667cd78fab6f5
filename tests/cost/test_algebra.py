"""What XLA makes of arithmetic before it makes kernels: seen in peaks of loss heads, and in what kernels read."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, fact_book
from remat_plan.cost.program import lower
from tests.helpers import few

CPU = hardware_for("cpu", "cpu")
ROWS, WIDTH, CLASSES = 512, 64, 4000

as_read = pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")


def picked(values, labels):
    return jnp.take_along_axis(values, labels[..., None], -1)[..., 0]


def one_hot(labels):
    return jax.nn.one_hot(labels, CLASSES)


def log_sum(logits):
    return jax.nn.logsumexp(logits, axis=-1)


HEADS = {
    "log-sum less picked": lambda z, t: (log_sum(z) - picked(z, t)).mean(),
    "z-loss": lambda z, t: (log_sum(z) - picked(z, t) + 1e-4 * log_sum(z) ** 2).mean(),
    "ignored labels": lambda z, t: jnp.where(t > 0, log_sum(z) - picked(z, t), 0.0).sum() / (t > 0).sum(),
    "soft cap": lambda z, t: (log_sum(30 * jnp.tanh(z / 30)) - picked(30 * jnp.tanh(z / 30), t)).mean(),
    "picked log-softmax": lambda z, t: -picked(jax.nn.log_softmax(z), t).mean(),
    "one-hot": lambda z, t: -(jax.nn.log_softmax(z) * one_hot(t)).sum() / ROWS,
    "one-hot einsum": lambda z, t: -jnp.einsum("...v,...v->", jax.nn.log_softmax(z), one_hot(t)) / ROWS,
    "smoothed": lambda z, t: -(jax.nn.log_softmax(z) * (0.9 * one_hot(t) + 0.1 / CLASSES)).sum() / ROWS,
}


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@as_read
@pytest.mark.parametrize("shape", [(ROWS,), pytest.param((8, ROWS // 8), marks=pytest.mark.slow)], ids=["2-D", "3-D"])
@pytest.mark.parametrize("head", few(HEADS, ["log-sum less picked", "ignored labels", "soft cap", "one-hot einsum"]))
def test_heads_of_losses_are_predicted_within_five_per_cent(head, shape):
    def loss(params, x, labels):
        return HEADS[head]((x + jnp.tanh(x @ params[0])) @ params[1], labels)

    args = (struct(WIDTH, WIDTH), struct(WIDTH, CLASSES)), struct(*shape, WIDTH), struct(*shape, dtype=jnp.int32)
    assert predicted(jax.value_and_grad(loss), *args) == pytest.approx(
        compiled(jax.value_and_grad(loss), *args), rel=0.05
    )


@as_read
def test_so_are_tied_embeddings():
    def loss(params, tokens, labels):
        x = params[1].T[tokens]
        return HEADS["log-sum less picked"]((x + jnp.tanh(x @ params[0])) @ params[1], labels)

    tokens = struct(ROWS, dtype=jnp.int32)
    args = (struct(WIDTH, WIDTH), struct(WIDTH, CLASSES)), tokens, tokens
    assert predicted(jax.value_and_grad(loss), *args) == pytest.approx(
        compiled(jax.value_and_grad(loss), *args), rel=0.05
    )


def predicted(fun, *args):
    return evaluate(jax.make_jaxpr(fun)(*args), CPU).peak_bytes


def compiled(fun, *args):
    memory = jax.jit(fun).lower(*args).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


@as_read
def test_what_is_scattered_into_is_written_over_no_operand():
    """What is there before and behind a scatter is one buffer; a third value is not put into it."""

    def fun(x, rows, where):
        return (jnp.sin(x @ x).at[where].add(rows) @ x).sum()

    args = struct(512, 512), struct(8, 512), struct(8, dtype=jnp.int32)
    assert predicted(fun, *args) == pytest.approx(compiled(fun, *args), rel=0.02)


X = struct(256, 256)
INDICES = struct(64, dtype=jnp.int32)


def kernels(fun, *args):
    """The primitive of each kernel, with the sizes of what it reads in units of ``X``."""
    program = lower(jax.make_jaxpr(fun)(*args), fact_book(CPU))
    unit = 4 * 256 * 256
    return [(k.step.primitive, sorted(program.sizes[v] / unit for v in k.reads)) for k in fuse(program)]


def named(name, fun, *args):
    return [reads for primitive, reads in kernels(fun, *args) if primitive.startswith(name)]


def scattered(rows, where):
    return jnp.zeros((256, 256)).at[where].add(rows)


def test_a_sum_is_scattered_into_its_other_summand():
    args = X, struct(64, 256), INDICES
    assert named("scatter", lambda x, rows, where: jnp.sin(x) + scattered(rows, where), *args) == [
        [1 / 1024, 0.25, 1.0]
    ]
    assert not named("add", lambda x, rows, where: jnp.sin(x) + scattered(rows, where), *args)


@pytest.mark.parametrize(("rows", "made"), [(64, 1), (127, 1), (128, 2)])
def test_two_scatters_are_added_as_one_of_fewer_rows(rows, made):
    """Of all their rows, which is as many bytes as one after the other; the sum of others is left as it is."""

    def fun(x, rows, where):
        return scattered(rows, where) + scattered(2 * rows, where + 1) + jnp.sin(x)

    args = X, struct(rows, 256), struct(rows, dtype=jnp.int32)
    assert len(named("scatter", fun, *args)) == 2
    assert len(named("add", fun, *args)) == made - 1
    assert len(re.findall(r" scatter\(", jax.jit(fun).lower(*args).compile().as_text())) == made


def test_what_others_read_of_a_scatter_is_added():
    def fun(x, rows, where):
        gradient = scattered(rows, where)
        return gradient.sum(1), gradient + jnp.sin(x)

    assert len(named("add", fun, X, struct(64, 256), INDICES)) == 1


def test_a_product_with_a_condition_reads_the_condition():
    """A library call would read the converted condition from memory; a selection it does not take in."""

    def fun(x, y):
        mask = (y > 0).astype(jnp.float32)
        return (x * mask).sum(1), mask @ x

    assert named("reduce_sum", fun, X, X) == [[1.0]]
    assert [1.0, 1.0] in named("mul", fun, X, X)


def test_a_product_of_negations_needs_neither():
    """The negation of a number, as in a cross-entropy with the label 1.0, reads no array and stays."""
    assert not named("neg", lambda x, y: (x @ y) @ (lax.neg(x) * lax.neg(y)), X, X)
    assert named("mul", lambda x: lax.neg(1.0) * lax.neg((x @ x).sum()), X)


def test_a_sum_of_products_by_rows_is_no_product_of_matrices():
    assert named("reduce_sum", lambda x, y: jnp.einsum("ij,ij->i", x, y), X, X) == [[1.0, 1.0]]
    assert not named("dot_general", lambda x, y: jnp.einsum("ij,ij->i", x, y), X, X)
    assert not named("dot_general", lambda x, y: jnp.einsum("ij,i->ij", x, y), X, struct(256))
    assert named("dot_general", lambda x, y: jnp.einsum("ij,i->j", x, y), X, struct(256))


@pytest.mark.parametrize("spec", ["ij,ij->i", "ij,ij->", "i,j->ij", "bij,bj->bij", "bi,bj->bij", "bij,bij->b"])
def test_it_is_the_same_product(spec):
    left, right, _ = spec.replace("->", ",").split(",")
    sizes = {"b": 2, "i": 3, "j": 4}
    args = [
        jnp.sin(jnp.arange(1.0, 25.0))[: len_of(side, sizes)].reshape([sizes[d] for d in side])
        for side in (left, right)
    ]
    jaxpr = jax.make_jaxpr(lambda a, b: jnp.einsum(spec, a, b))(*args)
    (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "dot_general")
    inner = fact_book(CPU).of(eqn).inner
    operands = [args[[v is a for a in jaxpr.jaxpr.invars].index(True)] for v in eqn.invars]
    (got,) = jax.core.eval_jaxpr(inner.jaxpr, inner.consts, *operands)
    want = lax.dot_general(*operands, eqn.params["dimension_numbers"])
    assert got.shape == want.shape
    assert jnp.allclose(got, want)


def len_of(side, sizes):
    count = 1
    for d in side:
        count *= sizes[d]
    return count


def test_a_library_call_ends_at_a_small_reciprocal():
    """So the exponentials of a softmax over few rows are an array, and those of many are not."""

    def fun(x):
        return jax.nn.softmax(x, -1).max(1)

    few, many = struct(256, 8192), struct(8192, 256)
    assert len(kernels(fun, few)) > len(kernels(fun, many)) == 1
