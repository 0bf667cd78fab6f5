"""Steps whose peak is outside of all marks: the error names what is there."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from tests.helpers import few

pytestmark = pytest.mark.usefixtures("quick_search")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def sorts(w, x, pool):
    value, grads = jax.value_and_grad(rp.remat(loss))(w, x)
    order = jnp.argsort(pool, axis=1)
    return w - grads, value, jnp.take_along_axis(pool, order, 1).mean()


def evaluates(w, x, pool):
    value, grads = jax.value_and_grad(rp.remat(loss))(w, x)
    logits = jnp.einsum("ij,kj->ik", pool, pool)
    return w - grads, value, jnp.max(jax.nn.softmax(logits), 1)


def augments(w, x, pool):
    images = jax.image.resize(pool.reshape(16, 64, 64, 16), (16, 256, 256, 16), "bilinear")
    value, grads = jax.value_and_grad(rp.remat(loss))(w, x + images.mean())
    return w - grads, value


POOL = f32(64, 64), f32(1024, 64), f32(2048, 512)
STEPS = {
    "sort": (sorts, POOL, "jnp.argsort"),
    "evaluation": (evaluates, POOL, "einsum|softmax"),
    "augmentation": (augments, POOL, "resize|mean"),
}


CASES = [*((name, False) for name in STEPS), ("sort", True)]


@pytest.mark.parametrize(("name", "jitted"), few(CASES, [("sort", True)]))
def test_what_is_outside_is_named(name, jitted):
    step, args, wanted = STEPS[name]
    with pytest.raises(rp.BudgetError, match=r"outside of the marks \((all|none) of their schedules") as caught:
        rp.fit(jax.jit(step) if jitted else step, *args, budget="60%", donate_argnums=0)
    assert "in slices" in str(caught.value)
    line = int(caught.value.where.split("test_fit_outside.py:")[1].split(",")[0])
    source, first = inspect.getsourcelines(step)
    assert any(word in source[line - first] for word in wanted.split("|")), caught.value.where


@pytest.mark.slow
def test_a_peak_in_a_mark_is_not():
    with pytest.raises(rp.BudgetError) as caught:
        rp.fit(lambda w, x: w - jax.grad(rp.remat(loss))(w, x), f32(64, 64), f32(8192, 64), budget="10%")
    assert "outside of" not in str(caught.value)


def test_a_loop_around_a_mark_is_not_outside_of_it():
    def step(w, x):
        return rp.accumulate(jax.value_and_grad(rp.mark(loss)), 4)(w, x)

    with pytest.raises(rp.BudgetError, match="rp.accumulate") as caught:
        rp.fit(step, f32(64, 64), f32(1024, 64), budget=100_000)
    assert "outside of the marks" not in str(caught.value)


def test_what_is_no_longer_shared_with_a_mark_is_told():
    """XLA merges a forward pass for metrics with that of the gradient, but not with segments that save values."""

    def net(w, x):
        for _ in range(6):
            x = x + jax.nn.gelu(x @ w) @ w.T
        return x

    def step(w, x, shares=False):
        def own(w, x):
            y = net(w, x)
            return jnp.mean(y**2), y

        grads, y = jax.grad(rp.mark(own, has_aux=True), has_aux=True)(w, x)
        return w - grads, jnp.abs(y if shares else net(w, x)).max()

    def notes(**kwargs):
        fitted = rp.fit(step, f32(64, 256), f32(1024, 64), budget="80%", kwargs=kwargs, static_argnames="shares")
        return [note for note in fitted.report.notes if "more FLOPs than its plans say" in note]

    (note,) = notes()
    assert "(has_aux=True)" in note
    assert not notes(shares=True)
