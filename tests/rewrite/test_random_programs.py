"""Random programs under random schedules: values, gradients and tangents are those of the function, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tests.helpers import (
    assert_trees_close,
    flat_gradient,
    plain_gradient,
    planner_schedules,
    random_schedule,
    traced,
    under,
)
from tests.zoo import cubed

B, D = 4, 6


def rows(x):
    """Anything as a matrix of the one shape that all operations take and return."""
    return jnp.broadcast_to(x, (B, D))


UNARY = {
    "tanh": jnp.tanh,
    "exp": lambda x: jnp.exp(-(x**2)),
    "relu": jax.nn.relu,
    "cubed": lambda x: cubed(jnp.sin(x)),
    "softmax": jax.nn.softmax,
    "rsqrt": lambda x: lax.rsqrt(1.5 + x**2),
    "sqrt": lambda x: jnp.sqrt(1.0 + jnp.abs(x)),
    "logistic": jax.nn.sigmoid,
    "mean": lambda x: rows(jnp.mean(x, 1, keepdims=True)),
    "norm": lambda x: (x - x.mean(0)) / (1.0 + x.var(0)),
    "max": lambda x: rows(jnp.max(x, 0)),
    "reverse": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T.reshape(B, D),
    "halves": lambda x: jnp.concatenate(jnp.split(x, 2, axis=1)[::-1], axis=1),
    "padded": lambda x: jnp.pad(x, ((0, 1), (0, 0)))[1:],
    "cumsum": lambda x: jnp.cumsum(x, 1) / D,
    "sorted": lambda x: jnp.sort(x, 1),
    "rolled": lambda x: jnp.roll(x, 1, 0).at[0].mul(0.5),
    "stopped": lax.stop_gradient,
    "scan": lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x[0], x)[1],
    "jitted": jax.jit(lambda x: jnp.sin(x) * 2),
    "checkpointed": jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x)) * x),
    "constants": lambda x: x * jnp.cos(jnp.arange(D) + 0.5),
    "complex": lambda x: jnp.fft.ifft(jnp.fft.fft(x) * (1 + 0.3j)).real,
    "twice": lambda x: jnp.concatenate([x, x, x])[1 : B + 1],
    "narrow": lambda x: x.astype(jnp.float32).astype(x.dtype),
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * jnp.tanh(y),
    "div": lambda x, y: x / (1.0 + y**2),
    "max2": jnp.maximum,
    "where": lambda x, y: jnp.where(x > y, x, 0.5 * y),
    "attend": lambda x, y: jax.nn.softmax(x @ y.T / D) @ y,
    "outer": lambda x, y: jnp.einsum("bi,bj->bij", x, y).sum(2) / D,
}
OTHER = ("dot", "dot", "dot", "dropout", "gather", "bias")
"""Operations with a parameter, a key or integers."""


@st.composite
def programs(draw, longest=14):
    """A list of (name, operand, operand): operands count back from the newest value."""
    length = draw(st.integers(3, longest))
    names = st.sampled_from([*UNARY, *BINARY, *OTHER, *OTHER])
    return [(draw(names), draw(st.integers(1, 3)), draw(st.integers(1, i + 1))) for i in range(length)]


def function_of(program):
    """The loss that a program stands for."""

    def loss(p, x, labels, key):
        values = [x]
        for i, (name, a, b) in enumerate(program):
            u, v = values[max(-a, -len(values))], values[-b]
            if name in UNARY:
                y = UNARY[name](u)
            elif name in BINARY:
                y = BINARY[name](u, v)
            elif name == "dot":
                y = u @ p["w"][i % 3]
            elif name == "bias":
                y = u + p["b"]
            elif name == "gather":
                y = u[labels % B] + p["b"][labels][:, None]
            else:
                y = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, u.shape), u / 0.8, 0.0)
            values.append(y)
        out = sum(jnp.sum(jnp.sin(v)) for v in values[-2:]) + jnp.sum(p["b"] * p["w"][0])
        return out, {"last": values[-1], "labels": labels + 1}

    return loss


def arguments():
    rng = np.random.default_rng(0)
    p = {"w": jnp.asarray(rng.normal(size=(3, D, D)) / 2), "b": jnp.asarray(rng.normal(size=D))}
    return p, jnp.asarray(rng.normal(size=(B, D))), jnp.asarray([0, 2, 1, 5]), jax.random.key(3)


def check(program, seed):
    with jax.enable_x64(True):
        args = arguments()
        traced_program = traced(function_of(program), *args, has_aux=True)
        leaves = traced_program.call.leaves
        assert leaves[0].dtype == jnp.float64
        (value, aux), gradients = plain_gradient(traced_program)(*leaves)
        schedules = [random_schedule(traced_program, seed), *planner_schedules(traced_program, 2)[:1]]
        directions = tuple(jnp.ones_like(x) for x in leaves[:3])

        def tangent(run):
            return jax.jvp(lambda *xs: run(*xs, *leaves[3:])[0], leaves[:3], directions)

        slope = tangent(traced_program.call.flat_fn)
        for schedule in schedules:
            got = flat_gradient(traced_program, schedule)(*leaves)
            assert_trees_close(got, ((value, aux), gradients), 1e-6, 1e-6)
            assert_trees_close(tangent(under(traced_program, schedule)), slope, 1e-6, 1e-6)


@settings(max_examples=4)
@given(programs(), st.integers(0, 10**6))
def test_random_programs(program, seed):
    check(program, seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(programs(longest=30), st.integers(0, 10**6))
def test_many_random_programs(program, seed):
    check(program, seed)
