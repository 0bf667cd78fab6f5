"""What a kernel of XLA:TPU makes beside its own result."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest

from remat_plan.cost.backends.tpu import TPU, further_results, narrowed_stacks, softmax_sums
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import Kernel, fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.rules import READ_ROW, Kind
from remat_plan.cost.steps import Step
from tests.cost.tpu_programs import attention

V5E = hardware_for("tpu:v5e:1x1", "tpu")
X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)


def made_by(fun, *args, rule=further_results):
    """Pairs of the primitive that a kernel is named for and that of what it makes too."""
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=V5E), TPU))
    kernels = fuse(program)
    found = rule(kernels, program.sizes)
    return [(kernels[host].step.primitive, kernels[made].step.primitive) for host in found for made in found[host]]


def test_a_product_sums_its_rows_and_its_columns():
    def fun(x, w):
        y = x @ w
        return y, y.sum(0), y.max(1)

    assert made_by(fun, X, X) == [("dot_general", "reduce_sum"), ("dot_general", "reduce_max")]


def test_a_reduction_of_several_arrays_is_made_by_the_last_of_them():
    def fun(x, w):
        y, z = x @ w, jnp.sin(x) @ w
        return y, z, (y * z).sum(0)

    assert made_by(fun, X, X) == [("dot_general", "reduce_sum")]


def test_what_depends_on_a_reduction_is_a_kernel_of_its_own():
    def fun(x, w):
        y = x @ w
        return y, jnp.exp(y - y.max(1, keepdims=True)).sum(1)

    assert made_by(fun, X, X) == [("dot_general", "reduce_max")]


def softmax_made_by(fun):
    return made_by(fun, *[jax.ShapeDtypeStruct((2, 256, 4, 64), jnp.bfloat16)] * 3, rule=softmax_sums)


def weighed(narrow, softmax, q, k, v):
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", softmax(logits).astype(narrow), v.astype(narrow))


def test_the_sums_of_a_softmax_are_made_with_its_logits_where_its_weights_are_divided_and_narrowed():
    assert softmax_made_by(partial(attention, True)) == [("div", "reduce_sum")]
    assert softmax_made_by(partial(attention, False)) == [], "the product computes the exponentials"
    assert softmax_made_by(partial(weighed, jnp.bfloat16, jax.nn.softmax)) == [("dot_general", "reduce_sum")]
    assert softmax_made_by(partial(weighed, jnp.float32, jax.nn.softmax)) == [], "so does each reader in one type"
    by_logarithms = partial(weighed, jnp.bfloat16, lambda x: jnp.exp(x - jax.nn.logsumexp(x, -1, keepdims=True)))
    assert softmax_made_by(by_logarithms) == [], "that is another exponential than the one that is summed"


def test_exponentials_of_constants_are_summed_of_nothing_that_is_read():
    assert made_by(lambda: jnp.exp(jnp.arange(4096.0)).sum(), rule=softmax_sums) == []


def test_what_the_chip_holds_of_narrowed_stacks_is_taken_off_all_of_them():
    assert narrowed_stacks([300, 100], 200) == [150, 50]
    assert narrowed_stacks([100], 200) == [0]
    assert narrowed_stacks([0], 200) == [0], "rows without elements"


def test_the_sums_of_a_loss_are_a_kernel():
    def loss(x, w, targets):
        return optax.softmax_cross_entropy_with_integer_labels((x @ w).astype(jnp.float32), targets).mean()

    x, targets = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((1024,), jnp.int32)
    assert made_by(jax.grad(loss, (0, 1)), x, x, targets, rule=softmax_sums) == []


def test_kernels_side_by_side_that_read_the_same_array_are_one():
    assert made_by(lambda x: (x.sum(0), x * 2), X) == [("reduce_sum", "mul")]
    assert made_by(lambda x, y: (x.sum(0), y * 2), X, X) == []
    four = made_by(lambda x, y: (x.sum(0), (x * x).sum(0), (x * y).sum(0), (2 * y).sum(0)), X, X)
    assert four == [("reduce_sum", "reduce_sum")] * 3


def test_a_product_writes_an_activation_beside_itself():
    def fun(x, w):
        y = x @ w
        return y, jnp.tanh(y)

    assert made_by(fun, X, X) == [("dot_general", "tanh")]


def test_what_reads_a_smaller_array_too_late_is_a_kernel_of_its_own():
    def fun(x):
        total = x.sum(0)
        return x * 2, x * total

    assert made_by(fun, X) == [("reduce_sum", "mul")], "the other waits for all of the sum"


def test_a_further_result_takes_no_second_read():
    def seconds(fun):
        return evaluate(jax.make_jaxpr(fun)(X, X), V5E).seconds

    plain = seconds(lambda x, w: x @ w)
    summed = seconds(lambda x, w: ((y := x @ w), y.sum(0)))
    read = X.size * 4 / V5E.cache_bytes_per_second
    work = V5E.work_seconds("reduce columns float32", X.size)
    assert summed - plain == pytest.approx(work, rel=0.05)
    assert summed - plain < read + work


def test_what_only_moves_has_no_equation_of_its_own_and_is_a_kernel_by_itself():
    """Rows are read out of stacks in planned loops, and out of the weights where a loop runs in stretches."""
    double = jax.make_jaxpr(lambda x: x * 2.0)(X).eqns[0]
    doubled = Step((1,), Kind.CHEAP, "mul", double, (2,), 1.0)
    for name, eqn in ((READ_ROW, None), ("rows", double)):
        row = Step((0,), Kind.CHEAP, name, eqn, (1,), unary=True)
        kernels = [Kernel(step, step.reads, frozenset(), {}) for step in (row, row, doubled)]
        assert further_results(kernels, [6 * 4 * X.size, 4 * X.size, 4 * X.size]) == {}
