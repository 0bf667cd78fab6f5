"""Flax NNX modules that plan themselves: state and results are those of the plain modules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import remat_plan as rp
from tests.helpers import assert_trees_close, count_equations

pytestmark = pytest.mark.usefixtures("quick_search")

nnx = pytest.importorskip("flax.nnx")

WIDTH, BATCH = 8, 64
X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, WIDTH)), jnp.float32)

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
nothing = functools.partial(rp.nnx.remat, strategy="nothing", verify=False)
DOORS = {
    "plain": lambda f: f,
    "flax": nnx.remat,
    "whole": rp.nnx.remat,
    "policy": functools.partial(rp.nnx.remat, policy=jax.checkpoint_policies.dots_saveable),
    "nothing": nothing,
    "memory": functools.partial(rp.nnx.remat, strategy="memory", verify=False),
    "budget": functools.partial(rp.nnx.remat, budget="95%", verify=False),
}


def block_class(door):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up, self.norm = nnx.Linear(WIDTH, 32, rngs=rngs), nnx.BatchNorm(32, rngs=rngs)
            self.drop, self.down = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(32, WIDTH, rngs=rngs)

        @door
        def __call__(self, x):
            return x + self.down(nnx.gelu(self.drop(self.norm(self.up(x)))))

    return Block


class Stack(nnx.Module):
    def __init__(self, block, rngs):
        self.blocks = nnx.List([block(rngs) for _ in range(3)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def loss(model, x):
    return jnp.mean(model(x) ** 2)


def steps(door):
    """Two steps under jit and one without: losses, gradients, and all of the state afterwards."""
    model = Stack(block_class(door), nnx.Rngs(0))
    jitted = nnx.jit(lambda model, x: nnx.value_and_grad(loss)(model, x))
    seen = [jitted(model, X), jitted(model, X), nnx.value_and_grad(loss)(model, X)]
    return [(value, jax.tree.leaves(gradient)) for value, gradient in seen], jax.tree.leaves(nnx.state(model))


@functools.cache
def wanted():
    return steps(DOORS["plain"])


@pytest.mark.parametrize(
    "door", [slow("flax"), slow("whole"), slow("policy"), "nothing", slow("memory"), slow("budget")]
)
def test_steps_are_those_of_the_plain_module(door):
    """Losses (so dropout masks), gradients, batch statistics, counters of random streams."""
    assert_trees_close(steps(DOORS[door]), wanted(), 2e-4, 1e-5)


def dots(door):
    model = Stack(block_class(door), nnx.Rngs(0))
    model.eval()
    graph, state = nnx.split(model)
    jaxpr = jax.make_jaxpr(lambda state: jax.tree.leaves(nnx.grad(loss)(nnx.merge(graph, state), X)))(state)
    return count_equations(jaxpr.jaxpr, "dot_general")


def test_a_planned_loss_is_evaluated_without_a_gradient():
    """Random streams have counters, which have no gradient."""
    model, plain = (Stack(block_class(DOORS["plain"]), nnx.Rngs(0)) for _ in range(2))
    planned = rp.remat(loss, budget="100%", verify=False)
    assert_trees_close([planned(model, X), nnx.jit(planned)(model, X)], [loss(plain, X), loss(plain, X)])
    assert_trees_close(*(jax.tree.leaves(nnx.state(m)) for m in (model, plain)))


def test_it_really_recomputes():
    assert dots(DOORS["plain"]) < dots(nothing) == dots(nnx.remat)


def test_plans_are_made_once_for_all_blocks():
    planned = nothing(lambda block, x: x + block.down(jnp.tanh(block.up(x))))
    blocks = [block_class(DOORS["plain"])(nnx.Rngs(n)) for n in range(3)]
    for block in blocks:
        nnx.jit(nnx.grad(lambda block, x: jnp.sum(planned(block, x))))(block, X)
    assert len(planned.remat_plans) == 1
    planned(blocks[0], X[:8])
    assert len(planned.remat_plans) == 2


def test_functions_of_several_modules_and_keywords():
    def run(first, second, x, scale=1.0, train=True):
        y = jnp.tanh(first(x)) * scale
        return second(y) if train else y

    first, second = nnx.Linear(WIDTH, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, WIDTH, rngs=nnx.Rngs(1))
    planned = nothing(run)
    assert planned.__name__ == "run"
    for call in (
        lambda f: f(first, second, X),
        lambda f: f(first, second, x=X, scale=2.0),
        lambda f: f(first, second, X, train=False),
    ):
        assert_trees_close(call(planned), call(run))
    got = nnx.grad(lambda m, n: jnp.sum(planned(m, n, X, scale=3.0)), argnums=(0, 1))(first, second)
    want = nnx.grad(lambda m, n: jnp.sum(run(m, n, X, scale=3.0)), argnums=(0, 1))(first, second)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)


def test_keyword_only_arguments():
    def scaled(model, x, *, scale=1.0, train=True):
        return jnp.mean(model(x) ** 2) * scale if train else 0.0

    planned = rp.remat(scaled, strategy="memory", verify=False)
    for options in ({"scale": 2.0}, {"train": False}, {"scale": jnp.float32(3.0), "train": True}):
        models = [Stack(block_class(DOORS["plain"]), nnx.Rngs(0)) for _ in range(2)]
        steps = [nnx.value_and_grad(functools.partial(f, **options)) for f in (planned, scaled)]
        got, want = (jax.tree.leaves(step(model, X)) for step, model in zip(steps, models, strict=True))
        assert_trees_close(got, want, 2e-4, 1e-5)
        assert_trees_close(*(jax.tree.leaves(nnx.state(model)) for model in models))


def test_shared_modules_stay_shared():
    shared = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))

    def run(first, second, x):
        return jnp.tanh(second(jnp.tanh(first(x))))

    got = nnx.grad(lambda m: jnp.sum(nothing(run)(m, m, X)))(shared)
    want = nnx.grad(lambda m: jnp.sum(run(m, m, X)))(shared)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)


@pytest.mark.slow
def test_scan_over_layers():
    def run(door):
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(key):
            return block_class(door)(nnx.Rngs(key))

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def layers(block, x):
            return block(x)

        model = make(jax.random.split(jax.random.key(0), 4))
        value, gradient = nnx.value_and_grad(lambda m: jnp.mean(layers(m, X) ** 2))(model)
        return value, jax.tree.leaves(gradient), jax.tree.leaves(nnx.state(model, nnx.BatchStat))

    assert_trees_close(run(nothing), run(DOORS["plain"]), 2e-4, 1e-5)


def test_whole_model_in_a_loss():
    model = Stack(block_class(DOORS["plain"]), nnx.Rngs(0))
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def pure(params, x):
        return loss(nnx.merge(graph, params, rest), x)

    planned = rp.remat(pure, budget="90%", verify=False)
    assert_trees_close(
        jax.tree.leaves(jax.jit(jax.grad(planned))(params, X)), jax.tree.leaves(jax.grad(pure)(params, X)), 2e-4, 1e-5
    )


@pytest.mark.parametrize(
    "door",
    [
        slow(lambda f: rp.remat(f, strategy="memory", verify=False)),
        slow(lambda f: rp.remat(f, budget="95%", verify=False)),
        slow(lambda f: rp.checkpoint(f, strategy="memory", verify=False)),
        lambda f: rp.checkpoint(f, budget="95%", verify=False),
    ],
)
def test_doors_for_any_function_carry_updates_out(door):
    models = [Stack(block_class(DOORS["plain"]), nnx.Rngs(0)) for _ in range(2)]
    for _ in range(2):
        found, wanted = (nnx.value_and_grad(f)(m, X) for f, m in zip((door(loss), loss), models, strict=True))
        assert_trees_close(jax.tree.leaves(found), jax.tree.leaves(wanted), 2e-4, 1e-5)
    assert_trees_close(*(jax.tree.leaves(nnx.state(m)) for m in models), 1e-4, 1e-5)


def test_a_plan_of_a_loss_that_would_lose_updates_is_refused():
    model = Stack(block_class(DOORS["plain"]), nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"writes to its flax\.nnx module Stack .* Use rp\.remat"):
        rp.plan(loss, model, X, budget="90%")
    counting = nnx.BatchNorm(WIDTH, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"writes to its flax\.nnx module BatchNorm .* Use rp\.remat"):
        rp.plan(lambda m, x: jnp.sum(m(x) ** 2), counting, X, budget="90%")


def test_a_plan_of_a_loss_that_updates_nothing():
    """Counters of its random streams are integers, which have no gradient."""
    model = Stack(block_class(DOORS["plain"]), nnx.Rngs(0))
    model.eval()
    plan = rp.plan(loss, model, X, strategy="memory", verify=False)
    got, want = (nnx.jit(nnx.grad(f))(model, X) for f in (plan.apply(loss), loss))
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)
    assert rp.analyze(loss, model, X).residuals


@pytest.mark.slow
def test_a_training_step_of_modules():
    def make():
        model = Stack(block_class(DOORS["plain"]), nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step_with(wrap):
        def train_step(model, optimizer, x):
            value, grads = nnx.value_and_grad(wrap(loss))(model, x)
            optimizer.update(model, grads)
            return value

        return train_step

    x = jnp.tile(X, (64, 1))
    (model, optimizer), (model2, optimizer2) = make(), make()
    step = rp.fit(nnx.jit(step_with(rp.remat)), model, optimizer, x, budget="80%", donate_argnums=(0, 1))
    assert step.report.planned.peak_bytes <= step.report.budget_bytes < step.report.plain.peak_bytes
    plain = nnx.jit(step_with(lambda f: f))
    for _ in range(2):
        assert_trees_close(step(model, optimizer, x), plain(model2, optimizer2, x), 1e-4)
    states = [jax.tree.leaves(nnx.state(both)) for both in ((model, optimizer), (model2, optimizer2))]
    assert_trees_close(*states, 1e-3, 1e-4)


def test_a_loss_beside_new_state_is_a_loss():
    model = Stack(block_class(DOORS["plain"]), nnx.Rngs(0))

    def train_step(model, x):
        return nnx.value_and_grad(rp.mark(loss))(model, x)[0]

    assert rp.fit(train_step, model, X, budget="100%").report.name == "train_step"
    with pytest.raises(rp.BudgetError) as caught:
        rp.fit(train_step, model, X, budget="1%")
    assert "marking the whole loss" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: rp.nnx.remat(3), TypeError, "needs a function, not int"),
        (lambda: rp.nnx.remat(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), TypeError, "decorate the method in its class"),
        (lambda: rp.nnx.remat(nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__), TypeError, "decorate the method in its"),
        (lambda: rp.nnx.remat(loss, verify=False), ValueError, "verify is only for planning"),
        (lambda: rp.nnx.remat(loss, strategy="memory", policy=jnp.sin), ValueError, "either policy or strategy"),
        (lambda: rp.nnx.remat(loss, strategy="magic"), ValueError, "strategy='magic'"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()
