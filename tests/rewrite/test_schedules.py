"""Every program of the zoo under schedules of every kind: same values, outputs and derivatives."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import assert_trees_close, check_schedules, few, halved, random_schedule, traced, under, whole
from tests.zoo import ZOO

pytestmark = [
    pytest.mark.usefixtures("quick_search"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive"),  # tests/cost looks after these two
    pytest.mark.filterwarnings("ignore:remat_plan. a while loop"),
]


PLANNED = ("custom_jvp", "own_checkpoint", "scan_inside", "static_arguments", "u_net")
"""Of these the planner's schedules too, of the others with ``slow``: planning takes more time than all the rest."""

FEW = (
    *("scan_inside", "custom_jvp", "literal_keys", "stop_gradient"),
    *("mutable_arrays_without_gradient", "callbacks_without_effects", "keywords", "sparse_argument"),
)
"""A loop, a custom rule, random numbers, effects, and arguments of each kind."""


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_values_and_gradients_are_those_of_the_function(name):
    case = ZOO[name]
    check_schedules(
        case.fn, *case.args, seeds=range(1), limit=int(name in PLANNED), rtol=2e-4, atol=2e-5, **case.options
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_many_more_schedules(name):
    case = ZOO[name]
    check_schedules(case.fn, *case.args, seeds=range(20), limit=12, rtol=2e-4, atol=2e-5, **case.options)


def losses(name):
    """The plain loss of a case and its loss under three schedules, all as functions of differentiated leaves."""
    case = ZOO[name]
    program = traced(case.fn, *case.args, **case.options)
    moving = program.call.differentiated
    fixed = [x for x, d in zip(program.call.leaves, moving, strict=True) if not d]
    primal = [x for x, d in zip(program.call.leaves, moving, strict=True) if d]

    def of(run):
        def loss(*xs):
            sources = iter(fixed), iter(xs)
            out = run(*(next(sources[d]) for d in moving))
            return jax.tree.leaves(out)[0]

        return loss

    schedules = [whole(program), halved(program), random_schedule(program, 7)]
    return primal, of(program.call.flat_fn), [of(under(program, s)) for s in schedules]


def hvp(loss, primal, direction):
    """Hessian-vector product, reverse over forward."""
    return jax.grad(lambda *xs: jax.jvp(loss, xs, direction)[1], argnums=tuple(range(len(primal))))(*primal)


def grad_of_grad(loss, primal, direction):
    numbers = tuple(range(len(primal)))

    def along(*xs):
        gradients = jax.grad(loss, argnums=numbers)(*xs)
        return sum(jnp.vdot(g, d) for g, d in zip(gradients, direction, strict=True)).real

    return jax.grad(along, argnums=numbers)(*primal)


def per_example(loss, primal, direction):
    numbers = tuple(range(len(primal)))
    many = [jnp.stack([x, x + d, 2 * x]) for x, d in zip(primal, direction, strict=True)]
    return jax.vmap(jax.value_and_grad(loss, argnums=numbers))(*many)


TWICE = [name for name, case in ZOO.items() if case.second_order]


DERIVATIVES = (hvp, grad_of_grad, per_example)
QUICK = [("custom_jvp", derivative) for derivative in DERIVATIVES]


@pytest.mark.parametrize(("name", "derivative"), QUICK)
def test_higher_derivatives_and_maps(name, derivative):
    primal, plain, planned = losses(name)
    direction = tuple(jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in primal)
    want = derivative(plain, primal, direction)
    coarse = any(x.dtype == jnp.bfloat16 for x in primal)
    for loss in planned:
        assert_trees_close(derivative(loss, primal, direction), want, 0.1 if coarse else 1e-3, 0.02 if coarse else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("derivative", DERIVATIVES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", TWICE)
def test_higher_derivatives_and_maps_of_everything(name, derivative):
    test_higher_derivatives_and_maps(name, derivative)
