"""Functions under ``jax.checkpoint`` with a barrier of our own: same values and derivatives, and the barrier holds."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.test_util import check_grads

from remat_plan import _compat
from tests.helpers import few

pytestmark = pytest.mark.usefixtures("quick_search")

if not hasattr(jax.config, "jax_remat_barrier_no_cotangents"):
    pytest.skip("the barriers of this jax wait for cotangents, whatever is set", allow_module_level=True)

W = jnp.linspace(-1, 1, 64).reshape(8, 8)
X = jnp.linspace(-1, 1, 16).reshape(2, 8)
NAMED = jax.checkpoint_policies.save_only_these_names("y")
POLICIES = (None, NAMED, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable)


def held(fn, policy=None):
    return lambda *args: _compat.held(fn, args, policy)


def layer(w, x):
    return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "y"))


def loss_of(layer, n=3):
    def loss(w, x):
        for _ in range(n):
            x = layer(w, x)
        return jnp.sum(x**2)

    return loss


def gradient(loss):
    return jax.grad(loss, (0, 1))


def are_close(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, rtol=1e-4, atol=1e-5), one, other))


TRANSFORMS = {
    "values": lambda loss: loss,
    "gradients": gradient,
    "compiled": lambda loss: jax.jit(gradient(loss)),
    "tangents": lambda loss: lambda w, x: jax.jvp(loss, (w, x), (x.T @ x, x)),
    "tangents of gradients": lambda loss: lambda w, x: jax.jvp(gradient(loss), (w, x), (x.T @ x, x)),
    "gradients of gradients": lambda loss: gradient(lambda w, x: jnp.sum(jnp.cos(jax.grad(loss)(w, x)))),
    "tangents of tangents": lambda loss: (
        lambda w, x: jax.jvp(lambda w: jax.jvp(lambda x: loss(w, x), (x,), (x,))[1], (w,), (w,))
    ),
    "mapped": lambda loss: lambda w, x: jax.vmap(gradient(loss), (None, 0))(w, x[:, None]),
    "gradients of mapped": lambda loss: gradient(lambda w, x: jnp.sum(jax.vmap(loss, (None, 0))(w, x[:, None]))),
    "hessian": lambda loss: jax.jit(jax.hessian(lambda w, x: loss(w[:2, :2], x[:, :2]))),
    "reverse over reverse": lambda loss: jax.jacrev(jax.jacrev(lambda w, x: loss(w[:2, :2], x[:, :2]))),
    "checkpointed": lambda loss: gradient(jax.checkpoint(loss)),
    "linearized": lambda loss: lambda w, x: jax.linearize(loss, w, x)[1](w, x),
}


OF_OTHERS = ("tangents of tangents", "gradients of mapped", "hessian", "reverse over reverse")
"""What is made of transforms that are here one by one."""


@pytest.mark.parametrize("transform", few(TRANSFORMS, [name for name in TRANSFORMS if name not in OF_OTHERS]))
def test_derivatives_are_those_of_the_function(transform):
    expected = TRANSFORMS[transform](loss_of(layer))(W, X)
    for policy in POLICIES[:2]:
        result = TRANSFORMS[transform](loss_of(held(layer, policy)))(W, X)
        assert are_close(expected, result)


@pytest.mark.parametrize("policy", few(POLICIES, [NAMED]))
def test_all_policies(policy):
    check_grads(loss_of(held(layer, policy)), (W, X), order=2, rtol=0.05)


def test_in_a_scan():
    def loss(step):
        def scanned(w, x):
            return jnp.sum(jax.lax.scan(lambda x, w: (step(w, x), jnp.sum(x)), x, jnp.stack([w, w]))[0] ** 2)

        return jax.jit(gradient(scanned))

    assert are_close(loss(layer)(W, X), loss(held(layer, NAMED))(W, X))


def test_around_others():
    inner = held(layer, NAMED)
    outer = held(lambda w, x: inner(w, inner(w, x)))
    assert are_close(gradient(loss_of(layer, 6))(W, X), gradient(loss_of(outer))(W, X))


def test_what_has_no_tangent():
    """Integers, keys and results that hang on no argument of floating point."""

    def draw(w, index, key, mask):
        noise = jax.random.normal(key, (8,))
        return jnp.where(mask, w[index] * noise, 0.0), index + 1, jnp.ones(3), key

    def loss(draw):
        def total(w, index, key, mask):
            x, index, ones, _ = draw(w, index, key, mask)
            return jnp.sum(x**3) * jnp.sum(ones) + jnp.sum(index)

        return jax.grad(lambda w, *rest: jnp.sum(jax.grad(total)(w, *rest) ** 2))

    args = W, jnp.arange(2), jax.random.key(0), jnp.ones((2, 8), bool)
    assert jnp.allclose(loss(draw)(*args), loss(held(draw))(*args), rtol=1e-5)


def test_closed_over_values_are_differentiated():
    def loss(wrap):
        return jax.grad(lambda w: jnp.sum(wrap(lambda x: layer(w, x))(X) ** 2))

    assert jnp.allclose(loss(held)(W), loss(lambda f: f)(W), rtol=1e-5)


def test_complex_values():
    def turn(w, x):
        return jnp.tanh(jnp.fft.fft(x @ w) * (1 + 2j))

    def loss(turn):
        return gradient(lambda w, x: jnp.sum(jnp.abs(turn(w, turn(w, x).real))))

    assert are_close(loss(turn)(W, X), loss(held(turn))(W, X))


def test_in_shard_map():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (jax.P(), jax.P("d")), "out_specs": jax.P()}

    def loss(layer):
        def local(w, x):
            return jax.lax.psum(loss_of(layer)(w, x), "d")

        return jax.jit(gradient(jax.shard_map(local, **specs)))

    assert are_close(loss(layer)(W, X), loss(held(layer, NAMED))(W, X))


def test_named_axes():
    def normed(w, x):
        y = layer(w, x)
        return y - jax.lax.pmean(y, "batch")

    def gradients(normed):
        return gradient(lambda w, x: jnp.sum(jax.vmap(normed, (None, 0), axis_name="batch")(w, x) ** 3))

    assert are_close(gradients(normed)(W, X), gradients(held(normed))(W, X))


def test_the_barrier_waits_for_the_cotangent():
    """Unrolled layers: without a barrier that the backward pass waits for, XLA computes everything early."""
    w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")

    def temporaries(layer):
        return jax.jit(gradient(loss_of(layer, 12))).lower(w, x).compile().memory_analysis().temp_size_in_bytes

    def block(w, x):
        return x + layer(w, jnp.sin(layer(w, x)))

    assert temporaries(held(block)) < 0.5 * temporaries(block)
    assert temporaries(held(block)) < temporaries(held(block, NAMED)) < temporaries(block)
