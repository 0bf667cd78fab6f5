"""What objects of other libraries are: models, whose numbers are part of the program, and what is no function."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx, struct

import remat_plan as rp
from remat_plan.graph.frameworks import check_function, is_for_jax, is_nnx_module, sort_leaves

W, X = jnp.ones((4, 4)), jnp.ones((8, 4))


@struct.dataclass
class State:
    step: int
    w: jax.Array


@struct.dataclass
class Layer:
    rate: float
    w: jax.Array

    def __call__(self, x):
        return x @ self.w * self.rate


def test_numbers_are_data_unless_they_are_in_a_model():
    tree = {"a": 1.0, "state": State(3, W), "layer": Layer(0.5, W)}
    assert sort_leaves(tree) == [(True, False), (False, True), (True, True), (True, False), (True, False)]
    assert sort_leaves([True, "text", None, jnp.tanh, 2j]) == [
        (False, False),
        (False, False),
        (False, True),
        (True, False),
    ]
    assert is_for_jax({"a": 1.0, "b": True, "state": State(3, W)})
    assert not is_for_jax({"layer": Layer(0.5, W)})
    assert not is_for_jax([W, "text"])


def test_numbers_in_nnx_variables_are_data():
    assert sort_leaves(nnx.Param(2.0)) == [(True, False)]
    assert is_nnx_module(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


class Module(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


MODULE = Module(nnx.Rngs(0))
REFUSED = [
    (Dense, "rp.linen.remat"),
    (Dense(), "rp.linen.remat"),
    (Dense().__call__, "rp.linen.remat"),
    (Dense.__call__, "rp.linen.remat"),
    (functools.partial(Dense(), X), "rp.linen.remat"),
    (Module, "rp.nnx.remat"),
    (MODULE, "rp.nnx.remat"),
    (MODULE.__call__, "rp.nnx.remat"),
    (State, "the class State"),
]
DOORS = {
    "rp.remat": lambda fn: rp.remat(fn, budget="80%"),
    "rp.remat mark": rp.remat,
    "rp.checkpoint": rp.checkpoint,
    "rp.checkpoint planned": lambda fn: rp.checkpoint(fn, strategy="memory"),
    "rp.plan": lambda fn: rp.plan(fn, W, X, budget="80%"),
    "rp.analyze": lambda fn: rp.analyze(fn, W, X),
    "rp.tradeoff": lambda fn: rp.tradeoff(fn, W, X),
    "rp.compare": lambda fn: rp.compare(fn, W, X, budgets="80%"),
    "rp.fit": lambda fn: rp.fit(fn, W, X, budget="80%"),
    "rp.max_batch": lambda fn: rp.max_batch(fn, lambda n: (W, X), budget="1MB"),
    "rp.accumulate": lambda fn: rp.accumulate(fn, 2),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("fn", "told"), REFUSED)
def test_every_door_refuses_what_is_no_function_at_once_and_names_the_right_one(door, fn, told):
    with pytest.raises(TypeError, match=told):
        DOORS[door](fn)


@pytest.mark.parametrize("door", ["rp.remat", "rp.remat mark", "rp.checkpoint", "rp.checkpoint planned"])
def test_methods_of_linen_modules_are_told_the_right_door(door):
    class Setup(nn.Module):
        def setup(self):
            self.layer = nn.Dense(4)

        @DOORS[door]
        def __call__(self, x):
            return self.layer(x)

    with pytest.raises(TypeError, match=r"rp\.linen\.remat"):
        Setup().init(jax.random.key(0), X)

    with pytest.raises(TypeError, match=r"rp\.linen\.remat"):

        class Compact(nn.Module):
            @DOORS[door]
            @nn.compact
            def __call__(self, x):
                return nn.Dense(4)(x)


def test_functions_of_linen_modules_are_functions():
    model = Dense()
    for fn in (model.apply, functools.partial(model.apply, mutable=["batch_stats"]), lambda p, x: model.apply(p, x)):
        check_function(fn, "rp.remat needs")
    loss = rp.remat(lambda model, p, x: jnp.sum(model.apply(p, x)), budget="200%", argnums=1, verify=False)
    variables = model.init(jax.random.key(0), X)
    assert jax.grad(loss, argnums=1)(model, variables, X).keys() == variables.keys()


MUTABLE = {
    "rp.remat": lambda fn: rp.remat(fn),
    "budget": lambda fn: rp.remat(fn, budget="90%"),
    "checkpoint": lambda fn: rp.checkpoint(fn, strategy="memory"),
    "rp.plan": lambda fn: lambda *args: rp.plan(fn, *args, budget="90%"),
    "rp.analyze": lambda fn: lambda *args: rp.analyze(fn, *args),
}


@pytest.mark.parametrize("door", MUTABLE)
@pytest.mark.parametrize("under", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_mutable_arrays_are_refused_in_words(door, under):
    count = jax.new_ref(jnp.ones(()))

    def loss(w, x, count):
        count[...] = count[...] + 1
        return jnp.sum(jnp.tanh(x @ w))

    with pytest.raises(
        NotImplementedError, match=r"mutable arrays \(jax.new_ref\) cannot be planned, and argument \[2\]"
    ):
        under(lambda w, x: MUTABLE[door](loss)(w, x, count))(W, X)
    with pytest.raises(NotImplementedError, match=r"cannot be planned, and the function closes over one"):
        under(lambda w, x: MUTABLE[door](lambda w, x: loss(w, x, count))(w, x))(W, X)
    assert count[...] == 1
