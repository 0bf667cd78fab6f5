"""A plan says what effects keep from being planned: where, why, what to do."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.experimental import io_callback

import remat_plan as rp
from remat_plan.report.text import WIDTH

pytestmark = [
    pytest.mark.usefixtures("quick_search"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive 'io_callback'"),
]

W, X = jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((512, 16), "float32")
LAYERS = 6


def layer(w, x):
    jax.debug.print("{}", x[0, 0])
    return jnp.tanh(jnp.sin(x @ w))


LINE = f"test_effects.py:{layer.__code__.co_firstlineno + 1}"


def unrolled(w, x):
    for _ in range(LAYERS):
        x = layer(w, x)
    return jnp.mean(x)


def scanned(w, x):
    return jnp.mean(jax.lax.scan(lambda c, _: (layer(w, c), None), x, None, length=LAYERS)[0])


def of_effects(notes):
    return [note for note in notes if "effect" in note]


def answered(w, x):
    scale = io_callback(lambda v: v, jax.ShapeDtypeStruct((), x.dtype), jax.lax.stop_gradient(x[0, 0]))
    return jnp.tanh(jnp.sin(x @ w) * scale)


ASKS = f"test_effects.py:{answered.__code__.co_firstlineno + 1}"


def asking(w, x):
    for _ in range(LAYERS):
        x = answered(w, x)
    return jnp.mean(x)


def test_a_loop_with_an_effect_is_named_with_the_line_of_the_effect():
    (note,) = of_effects(rp.plan(scanned, W, X, strategy="memory", verify=False).notes)
    assert note.startswith("planned step by step, without groups of steps: scan test_effects.py:")
    assert LINE in note
    assert "Take it out, or return the value and use it outside" in note


def test_effects_that_are_read_are_named_once():
    (note,) = of_effects(rp.plan(asking, W, X, budget="95%", verify=False).notes)
    assert note.startswith("no segment crosses io_callback")
    assert note.count(ASKS) == 1


def test_what_only_tells_is_in_nobodys_way():
    assert not of_effects(rp.plan(unrolled, W, X, budget="80%", verify=False).notes)


def test_nothing_is_said_where_nothing_is_lost():
    def silent(w, x):
        return jnp.mean(jnp.tanh(x @ w))

    assert not of_effects(rp.plan(silent, W, X, strategy="memory", verify=False).notes)
    assert not of_effects(rp.plan(asking, W, X, budget="300%", verify=False).notes)  # met without recomputing


def test_the_whole_note_is_printed():
    plan = rp.plan(scanned, W, X, strategy="memory", verify=False)
    printed = str(plan)
    assert f"note: {plan.notes[-1]}" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= WIDTH


@pytest.mark.parametrize("budget", ["99%", "200%"])
def test_a_fitted_step_says_it_too(budget):
    def step(w, x):
        loss, gradient = jax.value_and_grad(rp.remat(scanned))(w, x)
        return loss, optax.apply_updates(w, gradient)

    report = rp.fit(step, W, X, budget=budget, donate_argnums=0).report
    assert bool(of_effects(report.notes)) == (report.planned.peak_bytes < report.plain.peak_bytes)


def test_the_error_names_what_is_read():
    def loss(w, x):
        for _ in range(4):
            x = jnp.tanh(x @ w)
            x = x * io_callback(lambda v: v, jax.ShapeDtypeStruct((), x.dtype), jax.lax.stop_gradient(x.mean()))
        return x.sum()

    struct = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    with pytest.raises(rp.BudgetError, match=r"must happen exactly once .*io_callback"):
        rp.plan(loss, struct, struct, budget="30%", verify=False)
