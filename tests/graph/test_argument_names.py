"""JAX's messages on values that are not known speak of the user's arguments."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

PARAMS = {"a": [jnp.ones(2), jnp.ones(2)], "w": jnp.ones(3)}
COUNT = jnp.asarray(3)


def by_count(params, options, n):
    return sum(jnp.sum(params["w"]) for _ in range(n))


def by_value(params, options, n):
    return jnp.sum(params["w"]) if params["w"][0] > 0 else jnp.sum(params["a"][0])


def by_shape(params, options, n):
    return jnp.sum(params["w"]) + jnp.zeros(options["k"][0]).sum()


def by_rest(*args):
    return by_count(args[0], *args[1:])


def of_two(params, n):
    return by_count(params, {}, n)


@pytest.mark.parametrize(
    ("fn", "name"),
    [(by_count, "n"), (by_value, "params['w']"), (by_shape, "options['k'][0]"), (by_rest, "*args[2]")],
)
def test_the_argument_is_named(fn, name):
    for door in (rp.plan, lambda fn, *args, budget: rp.remat(fn, budget=budget)(*args)):
        with pytest.raises(TypeError) as caught:
            door(fn, PARAMS, {"k": [COUNT]}, COUNT, budget="90%")
        assert f"the value of the argument {name}." in str(caught.value)


def test_names_are_not_those_of_as_many_arguments():
    """A tree of three arrays and a count are four flat arguments; the function has two."""
    with pytest.raises(TypeError, match=r"the value of the argument n\."):
        rp.plan(of_two, PARAMS, COUNT, budget="90%")


def test_arguments_by_name():
    with pytest.raises(TypeError, match=r"the value of the argument n\."):
        rp.plan(by_count, PARAMS, kwargs={"options": {}, "n": COUNT}, budget="90%")


def test_functions_inside_keep_their_names():
    @jax.jit
    def inside(*args):
        return jnp.sum(args[1]) if args[0] > 0 else jnp.max(args[1])

    with pytest.raises(TypeError, match=r"argument args\[0\]"):
        rp.plan(lambda params, n: inside(n, params["w"]), PARAMS, COUNT, budget="90%")
