"""``rp.checkpoint`` and ``rp.remat`` without a budget: any function, with JAX's arguments or planned."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan._compat import barriers_hold_cotangents, checkpointed_jaxpr, high_parameters
from tests.helpers import assert_trees_close, count_equations, few

pytestmark = pytest.mark.usefixtures("quick_search")

LAYERS, BATCH, WIDTH = 8, 256, 16


def array(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


W, X = array(LAYERS, WIDTH, WIDTH, seed=1) / 4, array(BATCH, WIDTH, seed=2)


def layers(w, x):
    for i in range(LAYERS):
        x = jnp.tanh(x @ w[i])
    return x


def text(fn, *args):
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(jax.make_jaxpr(fn)(*args)))


def gradient_dots(fn, *args):
    return count_equations(jax.make_jaxpr(jax.grad(lambda *a: jnp.sum(fn(*a))))(*args).jaxpr, "dot_general")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": jax.checkpoint_policies.dots_saveable},
        {"prevent_cse": False},
        {"prevent_cse": False, "policy": jax.checkpoint_policies.everything_saveable},
    ],
    ids=["plain", "dots", "no_barrier", "everything"],
)
def test_with_jaxs_arguments_it_is_jaxs(options):
    if options.get("prevent_cse", True) and not barriers_hold_cotangents():
        pytest.skip("the barrier of jax.checkpoint does not wait for cotangents, so it is not JAX's")
    for transform in (lambda f: f, jax.grad, lambda f: jax.jit(jax.value_and_grad(f))):
        want = text(transform(lambda w, x: jnp.sum(jax.checkpoint(layers, **options)(w, x))), W, X)
        assert text(transform(lambda w, x: jnp.sum(rp.checkpoint(layers, **options)(w, x))), W, X) == want
    if "policy" in options:
        got = text(jax.grad(lambda w, x: jnp.sum(rp.remat(layers, **options)(w, x))), W, X)
        assert got == text(jax.grad(lambda w, x: jnp.sum(jax.checkpoint(layers, **options)(w, x))), W, X)


def test_decorators_with_and_without_arguments():
    @rp.checkpoint
    def one(x):
        return jnp.sin(x)

    @rp.checkpoint(policy=jax.checkpoint_policies.everything_saveable, static_argnums=(1,))
    def two(x, power):
        return jnp.sin(x) ** power if power > 1 else x

    @rp.checkpoint(strategy="memory", verify=False, static_argnums=1)
    def three(x, power):
        return jnp.sin(x) ** power if power > 1 else x

    assert "checkpoint" in text(one, 1.0) or "remat" in text(one, 1.0).lower()
    assert one.__name__ == "one"
    assert_trees_close(jax.grad(two)(2.0, 3), jax.grad(lambda x: jnp.sin(x) ** 3)(2.0))
    assert three.__name__ == three.__wrapped__.__name__ == "three"
    assert jax.grad(three)(2.0, 1) == 1.0


def test_whatever_else_the_installed_jax_takes():
    if "concrete" in inspect.signature(jax.checkpoint).parameters:
        with pytest.raises(NotImplementedError):
            rp.checkpoint(jnp.sin, concrete=True)(1.0)
    else:
        with pytest.raises(TypeError, match="concrete"):
            rp.checkpoint(jnp.sin, concrete=True)


def mixed(params, key, step, x, *, scale):
    """Two outputs of floating point, an integer, a key; inputs of all kinds."""
    for i in range(4):
        keep = jax.random.bernoulli(jax.random.fold_in(key, step + i), 0.8, x.shape)
        x = jnp.where(keep, jnp.tanh(x @ params["w"][i]) * scale, 0.0)
    return {"x": x, "mean": jnp.mean(x, 0)}, jnp.argmax(x), jax.random.fold_in(key, step)


MIXED = ({"w": W}, jax.random.key(3), 2, X)


def total(fn):
    def loss(params, x, scale):
        out, _, _ = fn(params, MIXED[1], 2, x, scale=scale)
        return jnp.sum(out["x"] ** 2) + jnp.sum(out["mean"])

    return loss


PLANNED = {
    "memory": functools.partial(rp.checkpoint, strategy="memory", verify=False),
    "each_block": functools.partial(rp.checkpoint, strategy="each_block", verify=False),
    "budget": functools.partial(rp.checkpoint, budget="90%", verify=False),
    "remat": functools.partial(rp.remat, verify=False),
}


@pytest.mark.parametrize("how", few(["budget", "remat", "memory", "each_block"], ["remat"]))
def test_any_function_is_planned(how):
    planned = PLANNED[how](mixed)
    assert_trees_close(planned(*MIXED, scale=2.0), mixed(*MIXED, scale=2.0))
    want = jax.grad(total(mixed), argnums=(0, 1, 2))({"w": W}, X, 2.0)
    for transform in (lambda f: f, jax.jit):
        got = transform(jax.grad(total(planned), argnums=(0, 1, 2)))({"w": W}, X, 2.0)
        assert_trees_close(got, want, 2e-4, 1e-5)
    (plan,) = planned.plans.values()
    assert plan.argnums == ()
    assert plan.strategy == {"budget": "auto", "remat": "memory"}.get(how, how)
    assert how != "each_block" or plan.step_flops > plan.plain_flops


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.vmap(f, (None, 0))(W, jnp.stack([X, 2 * X])),
        lambda f: jax.jvp(f, (W, X), (jnp.cos(W), jnp.ones_like(X))),
        lambda f: jax.vjp(f, W, X)[1](jnp.cos(X)),
        lambda f: jax.grad(lambda w: jnp.sum(jax.grad(lambda v: jnp.sum(f(v, X) ** 2))(w) * jnp.cos(w)))(W),
        lambda f: jax.grad(lambda w: jnp.sum(jax.lax.scan(lambda c, _: (f(w, c), None), X, None, length=2)[0]))(W),
    ],
    ids=["vmap", "jvp", "vjp", "grad of grad", "in a scan"],
)
def test_transforms_of_a_planned_function(transform):
    planned = rp.checkpoint(layers, strategy="each_block", verify=False)
    assert_trees_close(transform(planned), transform(layers), 2e-4, 1e-5)


def test_it_really_recomputes_and_saves_memory():
    assert gradient_dots(layers, W, X) < gradient_dots(rp.remat(layers, verify=False), W, X)

    def peak(fn):
        step = jax.jit(jax.grad(lambda w, x: jnp.sum(fn(w, x))), compiler_options=rp.compiler_options())
        return step.lower(jnp.tile(W, (4, 1, 1)), X).compile().memory_analysis().temp_size_in_bytes

    def long(w, x):
        for i in range(4 * LAYERS):
            x = jnp.tanh(x @ w[i])
        return x

    assert peak(rp.remat(long, verify=False)) < 0.6 * peak(long)


def test_a_budget_for_a_function_holds_for_its_own_step():
    planned = rp.checkpoint(layers, budget="75%")

    def step(w, x, cotangent):
        y, pull = jax.vjp(planned, w, x)
        return y, pull(cotangent)

    compiled = jax.jit(step, compiler_options=rp.compiler_options()).lower(W, X, X).compile()
    stats = compiled.memory_analysis()
    peak = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    (plan,) = planned.plans.values()
    assert not plan.is_identity
    assert plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes
    assert peak <= 1.001 * plan.budget_bytes
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    assert_trees_close(again.apply(layers)(W, X), layers(W, X))
    with pytest.raises(ValueError, match="another program"):
        again.apply(lambda w, x: layers(w, x) + 1)(W, X)


def test_below_the_minimum():
    with pytest.raises(rp.BudgetError) as caught:
        rp.checkpoint(layers, budget=1000, verify=False)(W, X)
    assert rp.checkpoint(layers, budget=caught.value.minimum_bytes, verify=False)(W, X).shape == X.shape


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda n: n + 1, (jnp.arange(3),)),
        (lambda x: jnp.argmax(x), (X,)),
        (lambda: jnp.ones(3), ()),
        (lambda x: (x, 2.0, None, np.arange(2)), (X,)),
        (lambda x, n: n * 2, (X, jnp.arange(3))),
        (lambda k: jax.random.normal(k, (2,)), (jax.random.key(0),)),
    ],
)
def test_functions_with_nothing_to_plan(fn, args):
    got = rp.checkpoint(fn, strategy="memory", verify=False)(*args)
    assert_trees_close(got, jax.tree.map(jnp.asarray, fn(*args)))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(got))


def test_functions_without_a_reverse_derivative():
    def fn(x):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]

    planned = rp.checkpoint(fn, strategy="memory", verify=False)
    assert_trees_close(planned(X), fn(X))
    assert_trees_close(jax.jvp(planned, (X,), (X,)), jax.jvp(fn, (X,), (X,)))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda x: jnp.sum(planned(x)))(X)


def test_in_the_place_of_jaxs(monkeypatch):
    """Third-party code that calls ``jax.checkpoint`` can be planned as it is."""
    monkeypatch.setattr(jax, "checkpoint", functools.partial(rp.checkpoint, strategy="nothing", verify=False))

    def loss(w, x):
        return jnp.sum(jax.checkpoint(layers)(w, x))

    assert_trees_close(jax.grad(loss)(W, X), jax.grad(lambda w, x: jnp.sum(layers(w, x)))(W, X), 2e-4, 1e-5)


def test_static_arguments():
    def fn(x, name, times, *, power):
        for _ in range(times):
            x = getattr(jnp, name)(x) ** power
        return x

    planned = rp.checkpoint(fn, strategy="memory", verify=False, static_argnums=(1, -1), static_argnames=("power",))
    assert_trees_close(planned(X, "tanh", 2, power=2), fn(X, "tanh", 2, power=2))
    assert_trees_close(planned(X, "sin", 3, power=1), fn(X, "sin", 3, power=1))
    assert len(planned.plans) == 2
    with pytest.raises(ValueError, match="the function gets 3 positional"):
        rp.checkpoint(fn, strategy="memory", static_argnums=7)(X, "tanh", 2, power=1)


def test_methods():
    class Model:
        w = W

        @rp.remat(verify=False)
        def run(self, x, training):
            return layers(self.w, x) if training else x

    assert_trees_close(
        jax.grad(lambda x: jnp.sum(Model().run(x, True)))(X), jax.grad(lambda x: jnp.sum(layers(W, x)))(X)
    )
    assert_trees_close(Model().run(X, False), X)


def test_prevent_cse_reaches_the_segments():
    def params(fn):
        jaxpr = jax.make_jaxpr(fn)(W, X).jaxpr
        rows = [
            high_parameters(e.params.get("_prim")) or e.params for e in jaxpr.eqns if checkpointed_jaxpr(e) is not None
        ]
        return {row.get("prevent_cse", True) for row in rows}  # a checkpoint of our own always has a barrier

    make = functools.partial(rp.checkpoint, layers, strategy="each_block", verify=False)
    assert params(make()) == {True}
    assert params(make(prevent_cse=False)) == {False}


@pytest.mark.parametrize(
    ("door", "options", "error", "message"),
    [
        (rp.checkpoint, {"budget": "1GB", "policy": jnp.sin}, ValueError, "pass either policy or budget"),
        (rp.remat, {"strategy": "memory", "policy": jnp.sin}, ValueError, "pass either policy or strategy"),
        (rp.checkpoint, {"verify": False}, ValueError, "verify is only for planning: pass a budget or a strategy too"),
        (rp.remat, {"policy": jnp.sin, "target": "cpu"}, ValueError, "target is only for planning"),
        (rp.checkpoint, {"strategy": "magic"}, ValueError, "strategy='magic' is unknown"),
        (rp.checkpoint, {"strategy": "memory", "buget": 1}, TypeError, "'buget' is not an argument here"),
        (rp.checkpoint, {"strategy": "memory", "concrete": True}, TypeError, "'concrete' is not an argument here"),
        (rp.checkpoint, {"strategy": "memory", "prevent_cse": (True,)}, TypeError, "True or False where a budget"),
        (rp.remat, {"strategy": "auto"}, ValueError, "needs a budget"),
        (rp.remat, {"argnums": ()}, ValueError, "name at least one"),
        (rp.remat, {"existing": "drop"}, ValueError, "existing='drop'"),
        (rp.checkpoint, {"budget": "much"}, ValueError, "budget='much'"),
        (rp.checkpoint, {"strategy": "memory", "static_argnums": "x"}, TypeError, "static_argnums='x'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_traced(door, options, error, message):
    with pytest.raises(error, match=message):
        door(layers, **options)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="rp.checkpoint needs a function, not int"):
        rp.checkpoint(3, strategy="memory")
    with pytest.raises(TypeError, match="rp.remat needs a function, not str"):
        rp.remat("loss")
