"""Programs whose bytes are all in one ``custom_vjp``: nothing can be planned, which is said before anything is compiled."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from tests.compiles import counting_compiles

pytestmark = pytest.mark.usefixtures("quick_search")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


W, X = f32(32, 32), f32(512, 32)


def solve(w, x):
    def step(x, _):
        return x + 0.1 * jnp.tanh(jnp.tanh(x @ w) @ w), None

    return jax.lax.scan(step, x, None, length=16)[0]


@jax.custom_vjp
def keeping(w, x):
    return solve(w, x)


@jax.custom_vjp
def repeating(w, x):
    return solve(w, x)


keeping.defvjp(lambda w, x: jax.vjp(solve, w, x), lambda pull, ct: pull(ct))
repeating.defvjp(lambda w, x: (solve(w, x), (w, x)), lambda args, ct: jax.vjp(solve, *args)[1](ct))


def loss_of(solver, layers=0, times=1):
    def loss(w, x):
        for _ in range(layers):
            x = jnp.tanh(x @ w)
        for _ in range(times):
            x = solver(w, x)
        return jnp.mean(x**2)

    return loss


TOLD = r"one equation, custom_vjp_call test_opaque\.py:\d+.*with its own residuals.*adjoint.*without its custom_vjp"


@pytest.mark.parametrize("loss", [loss_of(keeping), loss_of(repeating), loss_of(keeping, layers=1)])
def test_a_share_is_refused_before_anything_is_compiled(loss):
    def step(w, x):
        return w - jax.grad(rp.remat(loss))(w, x)

    with counting_compiles() as compiles:
        for door in (lambda: rp.plan(loss, W, X, budget="60%"), lambda: rp.fit(step, W, X, budget="60%")):
            with pytest.raises(rp.BudgetError, match=TOLD):
                door()
        with pytest.raises(rp.BudgetError, match=TOLD):
            jax.eval_shape(jax.grad(rp.remat(loss, budget="60%")), W, X)
        assert compiles() == 0


def test_bytes_are_refused_after_one_compile():
    with counting_compiles() as compiles, pytest.raises(rp.BudgetError, match=TOLD) as error:
        rp.plan(loss_of(keeping), W, X, budget="500kB")
    assert compiles() == 1
    assert rp.plan(loss_of(keeping), W, X, budget=error.value.minimum_bytes).overhead == 0


@pytest.mark.parametrize("loss", [loss_of(solve), pytest.param(loss_of(keeping, layers=24), marks=pytest.mark.slow)])
def test_what_can_be_planned_is(loss):
    plan = rp.plan(loss, W, X, budget="80%")
    assert plan.compiled_peak_bytes <= plan.budget_bytes


def test_a_budget_that_is_met_is_no_matter():
    assert rp.plan(loss_of(keeping), W, X, budget="100%").overhead == 0
