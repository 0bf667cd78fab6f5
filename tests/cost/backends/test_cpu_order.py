"""The order in which kernels run."""

from functools import partial

import jax
import jax.numpy as jnp

from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.backends.cpu_order import breadth_first
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower

HARDWARE = hardware_for("cpu", "cpu")

X = jax.ShapeDtypeStruct((128, 128), jnp.float32)


def order(fun, *args):
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=HARDWARE), CPU))
    return [k.step.primitive for k in breadth_first(fuse(program), program.sizes)]


def test_what_needs_arguments_only_runs_first():
    """The last line of the program is ready before the chain is done."""
    got = order(lambda x: (jnp.linalg.matrix_power(x, 4), x.T @ jnp.sin(x) @ x), X)
    assert got.index("sin") < 3


def test_a_barrier_holds_recomputation_back():
    block = jax.checkpoint(lambda x: jnp.sin(x @ x) @ x)
    got = order(jax.grad(lambda x: (block(block(x)) ** 2).sum()), X)
    forward, barrier = got[: got.index("barrier")], got.index("barrier")
    assert forward.count("dot_general") == 4
    assert "dot_general" in got[barrier:]


def test_every_kernel_runs_once_and_after_its_makers():
    def loss(x):
        return (jnp.tanh(x @ x) @ jax.nn.softmax(x)).sum()

    program = lower(jax.make_jaxpr(jax.grad(loss))(X), FactBook(partial(region_cost, hardware=HARDWARE), CPU))
    kernels = fuse(program)
    ordered = breadth_first(kernels, program.sizes)
    assert sorted(map(id, kernels)) == sorted(map(id, ordered))
    there = set(program.inputs)
    for kernel in ordered:
        assert set(kernel.reads) <= there
        there.update(kernel.step.writes)
