"""What is differentiated is known where a gradient is being taken, and nothing else counts."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import remat_plan as rp
from remat_plan import _compat
from tests.helpers import assert_trees_close, few

pytestmark = pytest.mark.usefixtures("quick_search")

W, V, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s) / 4, jnp.float32)
    for i, s in enumerate([(16, 16)] * 2 + [(256, 16)])
)


def loss(w, v, x):
    for _ in range(4):
        x = jnp.tanh(x @ w) @ v
    return jnp.mean(x**2)


def moving(take):
    """What ``perturbed`` says of three arguments where a derivative of a function of them is taken."""
    noted = []

    def fn(*args):
        noted.append(_compat.perturbed(args))
        return loss(*args)

    take(fn)
    return noted[0]


GRADIENTS = {
    "grad": (lambda f: jax.grad(f)(W, V, X), (True, False, False)),
    "argnums": (lambda f: jax.grad(f, argnums=(0, 2))(W, V, X), (True, False, True)),
    "jit of grad": (lambda f: jax.jit(jax.value_and_grad(f, argnums=1))(W, V, X), (False, True, False)),
    "partial": (lambda f: jax.grad(lambda p: f(p["w"], V, X))({"w": W}), (True, False, False)),
    "stopped": (lambda f: jax.grad(lambda w: f(w, jax.lax.stop_gradient(w), X))(W), (True, False, False)),
    "jvp": (lambda f: jax.jvp(lambda x: f(W, V, x), (X,), (X,)), (False, False, True)),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f), (None, None, 0))(W, V, X[None]), (True, False, False)),
    "grad of vmap": (
        lambda f: jax.grad(lambda w: jax.vmap(lambda x: f(w, V, x))(X[None]).sum())(W),
        (True, False, False),
    ),
    "hessian": (lambda f: jax.hessian(f)(W[:1, :1], V[:1, :1], X[:1, :1]), (True, False, False)),
    "eager": (lambda f: f(W, V, X), None),
    "jit": (lambda f: jax.jit(f)(W, V, X), None),
    "grad of jit": (lambda f: jax.grad(jax.jit(f))(W, V, X), None),
}


@pytest.mark.parametrize("how", few(GRADIENTS, [how for how in GRADIENTS if how != "hessian"]))
def test_what_is_differentiated_is_seen_from_inside(how):
    take, want = GRADIENTS[how]
    assert moving(take) == want


def test_looking_leaves_nothing_in_the_program():
    def looking(*args):
        _compat.perturbed(args)
        return loss(*args)

    for transform in (lambda f: f, jax.grad, jax.jit):
        texts = [str(jax.make_jaxpr(transform(f))(W, V, X)) for f in (loss, looking)]
        assert texts[0] == texts[1].replace("looking", "loss")


def test_a_planned_loss_is_evaluated_whatever_its_first_argument_is():
    """Integers, a key, nothing that is traced, or no argument by position: ``argnums`` were not given."""
    make = functools.partial(rp.remat, budget="100%", verify=False)
    rows, key = jnp.arange(64), jax.random.key(0)

    def of_rows(rows, w):
        return loss(w, V, X[rows])

    def by_depth(depth, w):
        return loss(w, V, X) * depth["scale"]

    def noisy(key, w):
        return loss(w, V, X + jax.random.normal(key, X.shape))

    def counted(params, x):
        return loss(params["w"], V, x) * params["count"]

    assert_trees_close(make(of_rows)(rows, W), of_rows(rows, W))
    assert_trees_close(make(noisy)(key, W), noisy(key, W))
    assert_trees_close(make(by_depth, static_argnums=0)({"scale": 2}, W), by_depth({"scale": 2}, W))
    assert_trees_close(make(counted)({"w": W, "count": 2}, X), 2 * loss(W, V, X))
    assert_trees_close(make(loss)(w=W, v=V, x=X), loss(W, V, X))
    gradients = [jax.grad(jax.jit(f), argnums=1)(rows, W) for f in (make(of_rows), of_rows)]
    assert_trees_close(*gradients, 2e-4, 1e-6)


@pytest.mark.parametrize("door", ["remat", "checkpoint"])
def test_frozen_arguments_cost_no_gradients(door):
    """Every weight is an argument, one is trained: a plan for it alone, with the gradient of that one."""
    frozen = jnp.zeros((512, 512))

    def model(params, x):
        return loss(params["w"], params["v"], x) + jnp.sum(params["frozen"] @ params["frozen"]) * 0

    def value_and_grad(fn):
        return jax.value_and_grad(lambda w, v, x: fn({"w": w, "v": v, "frozen": frozen}, x))

    planned = getattr(rp, door)(model, budget="100%", verify=False)
    want = value_and_grad(model)(W, V, X)
    assert_trees_close(jax.jit(value_and_grad(planned))(W, V, X), want, 2e-4, 1e-5)
    (plan,) = planned.plans.values()
    assert plan.is_identity
    assert plan.plain_peak_bytes < 3 * frozen.nbytes  # it, its product, and not its gradient
    jax.grad(planned)({"w": W, "v": V, "frozen": frozen}, X)
    first, second = planned.plans.values()
    assert second.plain_peak_bytes > first.plain_peak_bytes + frozen.nbytes / 2


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.LoRALinear(32, 32, lora_rank=2, rngs=rngs) for _ in range(4)])
        self.norm = nnx.BatchNorm(32, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.gelu(layer(x))
        return self.norm(x)


@pytest.mark.parametrize("has_aux", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_loss_of_nnx_modules_is_one(has_aux):
    def net_loss(net, x):
        out = net(x)
        value = jnp.mean((out - 1.0) ** 2)
        return (value, out[0]) if has_aux else value

    def run(fn):
        net = Net(nnx.Rngs(0))
        trained = nnx.DiffState(0, nnx.LoRAParam)
        value, grads = nnx.jit(nnx.value_and_grad(fn, argnums=trained, has_aux=has_aux))(net, jnp.ones((256, 32)) / 3)
        return value, nnx.to_pure_dict(nnx.state(grads)), net.norm.mean[...]

    planned = rp.remat(net_loss, budget="100%", has_aux=has_aux)
    got, want = run(planned), run(net_loss)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)
    assert float(jnp.abs(got[2]).max()) > 0, "statistics are updated"
    (plan,) = planned.plans.values()
    weights = 4 * 32 * 32 * 4
    assert plan.is_identity
    assert plan.program.inputs.count("float32[32,32]") == 4
    assert plan.planned_timeline.owned_bytes < 256 * 32 * 4 + 2 * weights, (
        "frozen weights are neither results nor moved"
    )


def pooled(key, pool):
    layers = [
        eqx.nn.Conv2d(1, 4, 3, padding=1, key=key),
        pool,
        eqx.nn.Lambda(jnp.ravel),
        eqx.nn.Linear(144, 3, key=key),
    ]
    return eqx.nn.Sequential(layers)


POOLS = {
    "average": eqx.nn.AvgPool2d(2, 2),
    "dropout and max": eqx.nn.Sequential([eqx.nn.Dropout(0.0, inference=True), eqx.nn.MaxPool2d(2, 2)]),
}


def image_loss(model, x):
    return jnp.mean((jax.vmap(model)(x) - 1.0) ** 2)


def train(fn):
    return lambda model, x: eqx.filter_grad(fn)(model, x)


EQUINOX_DOORS = {
    "remat": lambda fn, *args: eqx.filter_jit(train(rp.remat(fn, budget="200%", verify=False)))(*args),
    "mark": lambda fn, *args: eqx.filter_jit(train(rp.remat(fn)))(*args),
    "checkpoint": lambda fn, *args: eqx.filter_jit(train(rp.checkpoint(fn)))(*args),
    "policy": lambda fn, *args: train(rp.remat(fn, policy=jax.checkpoint_policies.dots_saveable))(*args),
    "strategy": lambda fn, *args: train(rp.checkpoint(fn, strategy="each_block", verify=False))(*args),
    "plan": lambda fn, *args: train(rp.plan(fn, *args, budget="200%", verify=False).apply(fn))(*args),
    "fit": lambda fn, *args: rp.fit(train(rp.remat(fn)), *args, budget="200%")(*args),
    "jit outside": lambda fn, *args: eqx.filter_grad(eqx.filter_jit(rp.remat(fn, budget="200%", verify=False)))(*args),
}


EVERY = [(door, pool) for door in EQUINOX_DOORS for pool in POOLS]
FEW = [(door, "average") for door in EQUINOX_DOORS if door != "policy"]


@pytest.mark.parametrize(("door", "pool"), few(EVERY, FEW))
def test_numbers_in_equinox_models_stay_numbers(door, pool):
    model, x = (
        pooled(jax.random.key(0), POOLS[pool]),
        jnp.asarray(np.random.default_rng(3).normal(size=(4, 1, 12, 12)), jnp.float32),
    )
    want = eqx.filter(eqx.filter_grad(image_loss)(model, x), eqx.is_inexact_array)
    got = eqx.filter(EQUINOX_DOORS[door](image_loss, model, x), eqx.is_inexact_array)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)


@pytest.mark.slow
def test_equinox_models_in_the_other_reports():
    model, x = pooled(jax.random.key(0), POOLS["dropout and max"]), jnp.ones((4, 1, 12, 12))
    assert rp.analyze(image_loss, model, x).residuals
    assert rp.tradeoff(image_loss, model, x, points=3).points
    assert rp.compare(image_loss, model, x, budgets="200%", verify=False).rows[0].plan is not None
    value, grads = rp.accumulate(eqx.filter_value_and_grad(rp.remat(image_loss)), 2)(model, x)
    assert_trees_close(value, image_loss(model, x), 1e-5, 1e-6)


class Scaled(eqx.Module):
    w: jax.Array
    buffer: jax.Array
    scale: float
    act: object
    name: str = eqx.field(static=True)

    def loss(self, x):
        for _ in range(4):
            x = self.act(x @ self.w) * self.scale + self.buffer
        return jnp.mean(x**2)


@pytest.mark.slow
def test_another_number_in_a_model_is_another_program_and_never_a_stale_one():
    """Buffers of integers are no obstacle; a rate that changes counts from the next call on."""
    model = Scaled(W, jnp.arange(16), 0.5, jnp.tanh, "a")
    planned = rp.remat(Scaled.loss, budget="200%", verify=False)
    plan = rp.plan(Scaled.loss, model, X, budget="200%", verify=False)
    fitted = rp.fit(eqx.filter_grad(rp.remat(Scaled.loss)), model, X, budget="200%")
    for scale in (0.5, 2.0, 1, 0.5):
        now = eqx.tree_at(lambda m: m.scale, model, scale)
        want = eqx.filter_grad(Scaled.loss)(now, X).w
        for step in (eqx.filter_grad(planned), eqx.filter_jit(eqx.filter_grad(planned)), fitted):
            assert_trees_close(step(now, X).w, want, 2e-4, 1e-5)
    assert_trees_close(
        eqx.filter_grad(plan.apply(Scaled.loss))(model, X).w, eqx.filter_grad(Scaled.loss)(model, X).w, 2e-4
    )


def test_numbers_in_containers_are_data_and_another_one_is_no_other_plan():
    def cooled(w, settings, x):
        return loss(w, w, x) / settings["temperature"]

    planned = rp.remat(cooled, budget="200%", verify=False)
    plan = rp.plan(cooled, W, {"temperature": 1.0}, X, budget="200%", verify=False).apply(cooled)
    for temperature in (0.5, 2.0, 4, jnp.float32(3.0)):
        want = jax.grad(cooled)(W, {"temperature": temperature}, X)
        settings = {"temperature": temperature}
        assert_trees_close(jax.grad(planned)(W, settings, X), want, 2e-4, 1e-6)
        assert_trees_close(jax.jit(jax.grad(planned))(W, settings, X), want, 2e-4, 1e-6)
        if isinstance(temperature, float):
            assert_trees_close(jax.grad(plan)(W, settings, X), want, 2e-4, 1e-6)
            assert_trees_close(jax.jit(jax.grad(plan))(W, settings, X), want, 2e-4, 1e-6)
    assert len(planned.plans) == 3, "of a weakly typed float, an integer, an array"


def test_numbers_whose_value_a_function_needs_stay_numbers():
    def repeated(w, x, times, config):
        for _ in range(times):
            x = jnp.tanh(x @ w)
        return jnp.mean(jnp.reshape(x, (config["groups"], -1)) ** 2) * config["scale"]

    args = W, X, 3, {"groups": 4, "scale": 2.0}
    want = jax.grad(repeated)(*args)
    for fn in (
        rp.remat(repeated),
        rp.remat(repeated, budget="200%", verify=False),
        rp.plan(repeated, *args, budget="200%", verify=False).apply(repeated),
    ):
        assert_trees_close(jax.grad(fn)(*args), want, 2e-4, 1e-6)
        assert_trees_close(jax.jit(lambda w, x, fn=fn: jax.grad(fn)(w, x, *args[2:]))(W, X), want, 2e-4, 1e-6)
    with pytest.raises(TypeError, match="unsupported operand"):
        jax.grad(rp.remat(lambda w, n: jnp.sum(w) + n + "text"))(W, 3)


def test_an_argument_that_is_differentiated_may_be_a_number():
    for fn in (rp.remat(lambda x: jnp.sin(x) * x), rp.remat(lambda x: jnp.sin(x) * x, budget="200%", verify=False)):
        assert_trees_close(jax.hessian(fn)(1.0), jax.hessian(lambda x: jnp.sin(x) * x)(1.0), 1e-5)
    assert rp.plan(lambda p: jnp.sin(p["a"]), {"a": 1.0}, budget="200%", verify=False).apply(jnp.sin) is not None
