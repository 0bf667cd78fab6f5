"""Policies meet equations with parameters called like the policies' own arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

import remat_plan as rp
from remat_plan.rewrite.policies import guarded, named_policy
from tests.helpers import REMAT3, assert_trees_close, check_schedules, count_equations

POLICIES = jax.checkpoint_policies
X = np.linspace(-1.0, 1.0, 32, dtype=np.float32)

cubed_p = Primitive("cubed_with_odd_parameters")
cubed_p.def_impl(lambda x, **_: x**3)
cubed_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(cubed_p, mlir.lower_fun(lambda x, **_: x * x * x, multiple_results=False))
ad.defjvp(cubed_p, lambda t, x, **_: 3.0 * t * x * x)


def cubed(x):
    return cubed_p.bind(x, prim="a", policy="c", types="e", args="f", name="g")


def chain(x):
    for _ in range(3):
        x = jnp.sin(cubed(x)) + x
    return x


@pytest.mark.filterwarnings("ignore:.*cost of primitive")
def test_plans_hold_equations_with_such_parameters():
    check_schedules(lambda x: jnp.sum(chain(x)), X)


def own(prim, aval, name=None, **params):
    """A policy of a user, who looks at a type and at parameters."""
    return prim is cubed_p and aval.shape == X.shape and name == "g" and params["types"] == "e"


@pytest.mark.parametrize(
    "policy",
    [
        POLICIES.dots_saveable,
        POLICIES.save_only_these_names("x"),
        POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("x")),
        own,
    ],
    ids=["dots", "names", "both", "own"],
)
@pytest.mark.parametrize("door", [rp.checkpoint, rp.remat])
def test_so_do_checkpoints_with_a_policy(door, policy):
    gradient = jax.grad(lambda x: jnp.sum(door(chain, policy=policy)(x)))
    assert_trees_close(gradient(X), jax.grad(lambda x: jnp.sum(chain(x)))(X))
    runs = count_equations(jax.make_jaxpr(gradient)(X).jaxpr, cubed_p.name)
    asked = policy is own and not REMAT3  # that asks policies for names, products and convolutions only
    assert runs == (3 if asked else 6), "saved, or run again"


@pytest.mark.parametrize("name", ["prim", "_prim", "policy", "self", "primitive", "types", "parameters", "names"])
def test_no_parameter_is_taken_for_an_argument(name):
    assert named_policy(["a"])(cubed_p, **{name: 1}) is False
    assert guarded(lambda prim, *_, **params: params)(cubed_p, **{name: 1}) == ({} if name == "prim" else {name: 1})


class Own:
    """A policy that is an object."""

    def __init__(self, names):
        self.names = names

    def __call__(self, prim, *_, **params):
        return params.get("prim") in self.names


def test_objects_keep_their_class():
    policy = Own(("a",))
    made = guarded(policy)
    assert isinstance(made, Own)
    assert made.names is policy.names
    assert type(guarded(policy)) is type(made)
    assert made(cubed_p, self=1, prim="a") is False
    assert type(policy) is Own
    kind = type(POLICIES.save_only_these_names("a"))
    assert isinstance(named_policy(["a"]), kind) or kind is type(own), "jax 0.10 tells them by their class"


def test_what_cannot_go_wrong_is_left_alone():
    """JAX knows some of its policies by identity."""
    for policy in (None, POLICIES.everything_saveable, POLICIES.nothing_saveable):
        assert guarded(policy) is policy
    assert named_policy([]) is None
    one, two = guarded(POLICIES.dots_saveable), guarded(POLICIES.dots_saveable)
    assert one == two
    assert hash(one) == hash(two)
    assert one != guarded(POLICIES.dots_with_no_batch_dims_saveable)
