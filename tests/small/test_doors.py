"""Calls that do not fit a public function say how it is called; what has no gradient names what has one."""

import importlib
import inspect
import pydoc
import re

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.small.doors import WHILE_NOTE, door

pytestmark = pytest.mark.usefixtures("quick_search")


def loss(w, x):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


W, X = jnp.ones((16, 16)) / 16, jnp.ones((256, 16))


def step(w, x):
    return w - jax.grad(rp.mark(loss))(w, x)


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda: rp.remat(loss, "60%"), ["rp.remat: too many positional arguments", "Write rp.remat(fn, budget=...)."]),
        (lambda: rp.remat(loss, "60%", verify=False), ["Write rp.remat(fn, budget=...)."]),
        (lambda: rp.checkpoint(loss, jnp.sin), ["Write rp.checkpoint(fun, policy=...)."]),
        (lambda: rp.plan(), ["missing a required argument: 'fn'", "Write rp.plan(fn, *args, budget=...)."]),
        (lambda: rp.plan(loss, W, x=X, budget="60%"), ["'x' is not an argument of rp.plan", "kwargs={'x': ...}"]),
        (lambda: rp.plan(loss, W, X, bugdet="60%"), ["of rp.plan. Did you mean 'budget'?"]),
        (lambda: rp.fit(budget="60%"), ["'train_step'", "Write rp.fit(train_step, *args, budget=...)."]),
        (lambda: rp.fit(step, W, X), ["missing a required argument: 'budget'", "Write rp.fit("]),
        (lambda: rp.mark(), ["Write rp.mark(fn)."]),
        (lambda: rp.compare(loss, W, X, budget="60%"), ["of rp.compare. Did you mean 'budgets'?"]),
        (lambda: rp.max_batch(step, budget="1GB"), ["Write rp.max_batch(train_step, make_args, budget=...)."]),
        (lambda: rp.accumulate(loss, slices=3), ["'slices' is not an argument of rp.accumulate."]),
        (lambda: rp.remat(loss, bugdet="60%"), ["'bugdet' is not an argument here. Did you mean 'budget'?"]),
        (lambda: rp.checkpoint(loss, polcy=None), ["of rp.checkpoint. Did you mean 'policy'?"]),
    ],
)
def test_a_call_that_does_not_fit_says_how_to_call(call, texts):
    with pytest.raises(TypeError) as caught:
        call()
    for text in texts:
        assert text in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_doors_of_flax_have_their_own_names():
    pytest.importorskip("flax")
    with pytest.raises(TypeError, match=re.escape("Write rp.linen.remat(module, budget=...).")):
        rp.linen.remat(loss, "60%")
    with pytest.raises(TypeError, match=re.escape("Write rp.nnx.remat(f, budget=...).")):
        rp.nnx.remat(loss, "60%")
    with pytest.raises(TypeError, match="rp.mark needs a function, not a module"):
        rp.mark(importlib.import_module("flax.linen").Dense(3))


def test_type_errors_from_inside_stay_what_they_are():
    error = TypeError("the user's own")

    @door
    def raising(x, *, budget=None):
        raise error

    with pytest.raises(TypeError) as caught:
        raising(1)
    assert caught.value is error
    assert str(inspect.signature(raising)) == "(x, *, budget=None)"


@pytest.mark.parametrize("name", sorted(rp.__all__))
def test_help_shows_signatures_that_can_be_read(name):
    thing = getattr(rp, name)
    signature = str(inspect.signature(thing))
    assert max(map(len, signature.splitlines())) <= 90
    assert ": '" not in signature
    assert "-> '" not in signature


def test_help_has_one_parameter_a_line_where_one_line_is_too_short():
    text = pydoc.plain(pydoc.render_doc(rp.plan))
    assert "\nplan(\n    fn: Callable[..., Any],\n    *args: Any,\n" in text
    assert "\n    budget: int | str | float | None = None,\n" in text
    assert "\n) -> Plan\n    Plan what to save" in text
    assert "\n    *,\n    budget: int" in str(inspect.signature(rp.remat))
    assert str(inspect.signature(rp.mark)).count("\n") == 0
    assert inspect.signature(rp.plan).replace(return_annotation="Plan").parameters["budget"].default is None


def test_a_plan_that_is_called_says_what_to_call():
    plan = rp.plan(loss, W, X, strategy="memory", verify=False)
    with pytest.raises(TypeError, match=re.escape("Write plan.apply(fn)(*args).")):
        plan(W, X)
    with pytest.raises(TypeError, match="a plan is not the planned function"):
        jax.grad(plan)(W, X)


def doubled(w):
    return jnp.sum(jax.lax.while_loop(lambda c: jnp.sum(c) < 10, lambda c: c * 2 + w, w))


@pytest.mark.parametrize(
    "call",
    [
        lambda w: rp.plan(doubled, w, budget="60%"),
        lambda w: jax.grad(rp.remat(doubled, budget="60%"))(w),
        lambda w: rp.fit(lambda w: w - jax.grad(rp.mark(doubled))(w), w, budget="60%"),
    ],
    ids=["plan", "remat", "fit"],
)
def test_a_while_loop_without_a_gradient_has_a_note(call):
    with pytest.raises(ValueError, match="while_loop") as caught:
        call(jnp.ones(3))
    assert caught.value.__notes__.count(WHILE_NOTE) == 1
    assert "rp.while_loop(cond, body, init, max_steps=...)" in WHILE_NOTE
    assert [*inspect.signature(rp.while_loop).parameters][:4] == ["cond", "body", "init", "max_steps"]


def test_a_mark_outside_the_gradient_is_told_where_it_goes():
    def outside(w, x):
        return w - rp.mark(jax.grad(loss))(w, x)

    with pytest.raises(ValueError, match="no gradient is taken through a marked function in outside") as caught:
        rp.fit(outside, W, X, budget="60%")
    assert "write jax.value_and_grad(rp.mark(loss_fn)), not rp.mark(jax.value_and_grad(loss_fn))" in str(caught.value)

    def scanned(w, x):
        return jax.lax.scan(lambda c, _: (outside(c, x), None), w, None, length=3)[0]

    with pytest.raises(ValueError, match="The mark goes on the loss"):
        rp.fit(scanned, W, X, budget="60%")
    with pytest.raises(ValueError, match="rp.fit plans functions marked by rp.mark") as caught:
        rp.fit(lambda w, x: w - jax.grad(loss)(w, x), W, X, budget="60%")
    assert "The mark goes on" not in str(caught.value), "there is none"


def test_a_warning_is_of_the_users_line(monkeypatch):
    """Not of one in here, nor in JAX, which traced the function."""
    monkeypatch.setattr("remat_plan.cost.rules._warned", set())

    def until_small(w, x):
        return jnp.sum(
            jax.lax.while_loop(lambda x: jnp.max(x) > 1, lambda x: jnp.tanh(x @ w), jax.lax.stop_gradient(x))
        )

    with pytest.warns(UserWarning, match="no known trip count") as caught:
        rp.plan(lambda w, x: loss(w, x) + until_small(jax.lax.stop_gradient(w), x), W, X, budget="100%", verify=False)
    assert [warning.filename for warning in caught] == [__file__]
