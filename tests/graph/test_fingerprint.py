"""The identity of programs: what changes it, and what the difference says."""

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan.graph.fingerprint import difference
from tests.helpers import traced
from tests.zoo import ZOO, V, W, X, cubed


def base(w, x):
    for i in range(3):
        x = jnp.tanh(x @ w[i])
    return jnp.sum(x)


def identity(fn, *args, **options):
    return traced(fn, *args, **options).fingerprint


def test_equal_programs_are_equal():
    again = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert identity(base, W, X) == identity(base, *again)
    assert identity(base, W, X) == identity(jax.jit(base), W, X)
    assert identity(base, W, X) == identity(lambda w, x: base(w, x), W + 1, np.asarray(X))


def test_equal_programs_with_hidden_functions_are_equal():
    """Custom derivatives hold functions, whose addresses are new in every trace."""
    for name in (
        "custom_jvp",
        "custom_vjp",
        "custom_vjp_of_many",
        "relu_and_friends",
        "control_flow",
        "linear_algebra",
    ):
        case = ZOO[name]
        assert identity(case.fn, *case.args).digest == identity(case.fn, *case.args).digest, name


def test_whatever_differs_changes_it():
    found = {
        "base": identity(base, W, X),
        "shape": identity(base, W, X[:3]),
        "dtype": identity(base, W.astype(jnp.bfloat16), X.astype(jnp.bfloat16)),
        "argument": identity(base, W, X, argnums=1),
        "both": identity(base, W, X, argnums=(0, 1)),
        "literal": identity(lambda w, x: base(w, x) * 2.0, W, X),
        "another literal": identity(lambda w, x: base(w, x) * 3.0, W, X),
        "operand": identity(lambda w, x: base(w[::-1], x), W, X),
        "parameter": identity(lambda w, x: base(jnp.flip(w, 1), x), W, X),
        "another parameter": identity(lambda w, x: base(jnp.flip(w, 2), x), W, X),
        "order": identity(lambda w, x: base(w[jnp.array([1, 0, 2])], x), W, X),
        "output": identity(lambda w, x: (base(w, x), x), W, X, has_aux=True),
        "other output": identity(lambda w, x: (base(w, x), w), W, X, has_aux=True),
    }
    digests = {k: v.digest for k, v in found.items()}
    assert len(set(digests.values())) == len(digests), digests


def test_the_difference_names_the_first_equation():
    planned = identity(base, W, X)

    def other(w, x):
        for i in range(3):
            x = (jnp.sin if i == 1 else jnp.tanh)(x @ w[i])
        return jnp.sum(x)

    text = difference(planned, identity(other, W, X))
    index = [label.startswith("sin") for label in identity(other, W, X).labels].index(True)
    assert text == f"equation {index} was tanh float32[5,4], now it is sin float32[5,4]"


def test_the_difference_of_arguments_comes_first():
    planned = identity(base, W, X)
    assert difference(planned, identity(base, W, X[:3])) == "argument leaf 1 was float32[5,4], now it is float32[3,4]"
    text = difference(planned, identity(lambda w, x, v: base(w, x), W, X, V))
    assert text.startswith("there were 2 argument arrays, now there are 3 (a bool is none, unless jax.jit takes it")


def test_the_difference_of_parameters_lengths_and_ends():
    planned = identity(base, W, X)
    flipped = [identity(lambda w, x, d=d: base(jnp.flip(w, d), x), W, X) for d in (1, 2)]
    assert "(other parameters or operands)" in difference(*flipped)
    longer = identity(lambda w, x: jnp.sin(base(w, x)), W, X)
    text = difference(planned, longer)
    assert "equation" in text
    assert "sin float32[]" in text
    assert difference(planned, identity(base, W, X, argnums=1))
    aux = [identity(lambda w, x, k=k: (base(w, x), (w, x)[k]), W, X, has_aux=True) for k in (0, 1)]
    assert difference(*aux) == "the outputs are different"


def test_custom_functions_by_name():
    one = identity(lambda x: jnp.sum(cubed(x)), V)
    assert one.labels[0] == "custom_jvp_call float32[4]"
