"""Small loss functions, one for each thing that users put into theirs.

``ZOO`` maps a name to a ``Case``; every case is run under many schedules and transformations.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import sparse
from jax.experimental.ode import odeint

DIM = 4


@dataclass(frozen=True)
class Case:
    fn: Any
    args: tuple
    options: dict = field(default_factory=dict)
    second_order: bool = True


ZOO: dict[str, Case] = {}


def array(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


W = array(3, DIM, DIM, seed=1) / 2
X = array(5, DIM, seed=2)
V = array(DIM, seed=3)


def case(*args, second_order=True, **options):
    def add(fn):
        ZOO[fn.__name__] = Case(fn, args, options, second_order)
        return fn

    return add


@case(W, X)
def mlp(w, x):
    for i in range(3):
        x = jnp.tanh(x @ w[i])
    return jnp.sum(x**2)


@case(W, X)
def relu_and_friends(w, x):
    x = jax.nn.relu(x @ w[0])
    x = jax.nn.gelu(x @ w[1]) + jax.nn.silu(x)
    x = jax.nn.softplus(x @ w[2]) + jax.nn.leaky_relu(x) + jax.nn.elu(x)
    return jnp.mean(jax.nn.log_softmax(x)[:, 0])


@case(W, X)
def exp_tanh_rsqrt(w, x):
    y = jnp.exp(x @ w[0])
    z = jax.nn.sigmoid(y @ w[1])
    u = lax.rsqrt(1.0 + z**2) + jnp.sqrt(y) + jnp.cbrt(y) + lax.logistic(z)
    return jnp.sum(u / (1 + y)) + jnp.max(z)


@case({"w": W, "inner": (V, None, [array(DIM, seed=5)])}, X)
def dict_parameters(p, x):
    bias, nothing, (scale,) = p["inner"]
    assert nothing is None
    for i in range(3):
        x = jnp.tanh(x @ p["w"][i] + bias) * scale
    return jnp.sum(x)


@jax.tree_util.register_dataclass
@dataclass
class Params:
    w: Any
    b: Any
    note: Any = field(default=None, metadata={"static": True})


@case(Params(W, V, "text"), X, has_aux=True)
def dataclass_and_aux(p, x):
    hidden = []
    for i in range(3):
        x = jnp.tanh(x @ p.w[i] + p.b)
        hidden.append(x)
    aux = {"hidden": hidden, "count": jnp.arange(3), "nothing": None, "again": Params(x, p.b), "half": x > 0}
    return jnp.sum(x), aux


@case(W, X, np.arange(5) % DIM)
def integer_labels(w, x, labels):
    for i in range(3):
        x = jnp.tanh(x @ w[i])
    return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(5), labels])


@case(W, X, jax.random.key(0), True)
def typed_key_dropout(w, x, key, train):
    for i in range(3):
        x = jnp.tanh(x @ w[i])
        if train:
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.7, x.shape)
            x = jnp.where(keep, x / 0.7, 0.0)
    return jnp.sum(x**2)


@case(W, X, jax.random.PRNGKey(0))
def raw_key_dropout(w, x, key):
    for i in range(3):
        key, sub = jax.random.split(key)
        x = jnp.tanh(x @ w[i]) * jax.random.bernoulli(sub, 0.7, x.shape)
    return jnp.sum(x**2)


@case(W, X)
def literal_keys(w, x):
    """Masks made from literals only: each layer has its own."""
    for i in range(3):
        keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), i), 0.5, x.shape)
        x = jnp.where(keep, jnp.tanh(x @ w[i]), 0.0) + jnp.cos(jnp.arange(DIM) * (i + 1.0))
    return jnp.sum(x**2)


@jax.custom_jvp
def cubed(x):
    return x**3


@cubed.defjvp
def _cubed_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return cubed(x), 3.5 * x**2 * t  # deliberately not the true one


@case(W, X)
def custom_jvp(w, x):
    for i in range(3):
        x = jnp.tanh(cubed(x @ w[i]))
    return jnp.sum(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def scaled(scale, x, power):
    return scale(x) ** power


def _scaled_forward(scale, x, power):
    return scaled(scale, x, power), x


def _scaled_backward(scale, power, x, g):
    return (g * 2.5 * scale(x) * power,)


scaled.defvjp(_scaled_forward, _scaled_backward)


@case(W, X, second_order=False)
def custom_vjp(w, x):
    for i in range(3):
        x = jnp.tanh(scaled(lambda y: 2.0 * y, x @ w[i], 2))
    return jnp.sum(x)


@case(W, X, second_order=False)
def custom_vjp_of_many(w, x):
    @jax.custom_vjp
    def both(a, b, n):
        return a * b, a + n, n

    both.defvjp(lambda a, b, n: (both(a, b, n), (a, b)), lambda r, g: (g[0] * r[1] + 2 * g[1], g[0] * r[0], None))
    n = jnp.arange(5).reshape(5, 1)
    for i in range(3):
        p, q, m = both(jnp.tanh(x @ w[i]), x, n)
        x = p + q * m
    return jnp.sum(jnp.sin(x))


@case(W.astype(jnp.bfloat16), X)
def mixed_precision(w, x):
    for i in range(3):
        y = (x.astype(jnp.bfloat16) @ w[i]).astype(jnp.float32)
        x = x + jnp.tanh(y)
    return jnp.sum(x)


@case(W, X)
def complex_inside(w, x):
    for i in range(3):
        f = jnp.fft.fft(x @ w[i])
        x = jnp.tanh(jnp.real(jnp.fft.ifft(f * (1.0 + 0.5j))) + jnp.abs(f + 3.0))
    return jnp.sum(x)


@case(W, X)
def own_checkpoint(w, x):
    @jax.checkpoint
    def layer(w, x):
        return jnp.tanh(jnp.sin(x @ w) @ w)

    named = jax.checkpoint(
        lambda w, x: jnp.sin(checkpoint_name(jnp.tanh(x @ w), "mine")),
        policy=jax.checkpoint_policies.save_only_these_names("mine"),
    )
    return jnp.sum(layer(w[2], named(w[1], layer(w[0], x))))


ZOO["own_checkpoint_kept"] = Case(own_checkpoint, (W, X), {"existing": "keep"})


@case(W, X, V)
def dead_code(w, x, unused):
    jnp.linalg.inv(w[0])
    y = jnp.tanh(x @ w[0])
    jax.jit(lambda a: (jnp.exp(a), jnp.sin(a)))(y)[0].sum()
    return jnp.sum(jax.jit(lambda a: (jnp.exp(a), jnp.sin(a)))(y)[1])


@case(W, X, V, argnums=(0, 2))
def several_argnums(w, x, v):
    for i in range(3):
        x = jnp.tanh(x @ w[i]) * v
    return jnp.sum(x)


@case(W, X, V, argnums=(2, 0))
def argnums_in_another_order(w, x, v):
    return jnp.sum(jnp.tanh(x @ w[0]) * v)


@case(V, V)
def same_array_twice(a, b):
    return jnp.sum(jnp.concatenate([a, a, a]) * jnp.tile(jnp.tanh(b * a), 3))


@case(W, X, has_aux=True)
def outputs_that_are_inputs(w, x):
    y = jnp.tanh(x @ w[0])
    return jnp.sum(y), (w, x, y, y, 1, 2.0, jnp.zeros(2))


@case(W, X)
def scan_inside(w, x):
    def body(c, wi):
        c = jnp.tanh(c @ wi)
        return c, jnp.sum(c)

    x, sums = lax.scan(body, x @ w[0], w)
    return jnp.sum(jnp.sin(x @ w[1])) + jnp.sum(sums)


@case(W, X)
def control_flow(w, x):
    x = lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w[i]), x)
    x = lax.cond(jnp.sum(x) > 0, lambda y: jnp.sin(y @ w[0]), lambda y: y * 2, x)
    x = lax.switch(1, [jnp.sin, jnp.cos, jnp.tanh], x)
    n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, jnp.argmax(lax.stop_gradient(x)) * 0)
    return jnp.sum(jnp.exp(x) * n)


@case(W, X)
def linear_algebra(w, x):
    a = w[0] @ w[0].T + 3 * jnp.eye(DIM)
    q, r = jnp.linalg.qr(a)
    low = jnp.linalg.cholesky(a)
    solved = jnp.linalg.solve(a, x.T) + jax.scipy.linalg.solve_triangular(low, x.T, lower=True)
    values, vectors = jnp.linalg.eigh(a)
    sign, logdet = jnp.linalg.slogdet(a)
    return jnp.sum(solved) + jnp.sum(jnp.sin(q @ r)) + jnp.sum(values**2) + logdet + jnp.sum(vectors**2) * sign


@case(W, X, second_order=False)
def singular_values(w, x):
    return jnp.sum(jnp.linalg.svd(jnp.tanh(w[0]) + 2 * jnp.eye(DIM), compute_uv=False) * V) + jnp.sum(jnp.tanh(x))


@case(W, X)
def indexing(w, x):
    y = jnp.tanh(x @ w[0])
    y = jnp.sort(y, axis=0) * jnp.argsort(x, axis=0)
    top, where = lax.top_k(y, 2)
    y = y.at[jnp.arange(5) % 3, 1].add(top[:, 0]).at[0].set(1.0)
    z = jnp.take_along_axis(y, where, 1) + jnp.argmax(y, 1, keepdims=True)
    z = z * lax.dynamic_slice(y, (1, 0), (1, 2))
    return jnp.sum(jnp.cumsum(z)) + jnp.sum(jnp.where(y > 0, y, 0.1 * y)) + jnp.sum(jnp.sort_complex(z).real)


@case(array(3, 3, 2, 3, seed=6), array(2, 6, 6, 2, seed=7))
def convolution_and_pooling(k, x):
    y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.nn.relu(y)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    z = lax.reduce_window(jnp.sin(y), 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
    return jnp.sum(jnp.tanh(z) * y)


@case({"w": W, "scale": V}, X, V, has_aux=True)
def batch_norm(p, x, running):
    mean = running
    for i in range(3):
        x = x @ p["w"][i]
        mean, var = jnp.mean(x, 0), jnp.var(x, 0)
        x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-3) * p["scale"])
    return jnp.sum(x * V), {"mean": 0.9 * running + 0.1 * mean, "var": var}


@case(W, X)
def stop_gradient(w, x):
    y = jnp.tanh(x @ w[0])
    z = lax.stop_gradient(jnp.exp(y @ w[1]))
    return jnp.sum(y / jnp.sum(z, axis=1, keepdims=True) * z)


@case(W, X)
def attention(w, x):
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    mask = jnp.tril(jnp.ones((5, 5), bool))
    p = jax.nn.softmax(jnp.where(mask, q @ k.T, -1e30))
    return jnp.sum(jnp.einsum("ij,jk->ik", p, v) ** 2)


@case(W, X, 2.0, 3)
def python_numbers(w, x, scale, power):
    return jnp.sum(jnp.tanh(x @ w[0]) * scale) + power


@case(W, X, "tanh", (True, None), static_argnums=(2,))
def static_arguments(w, x, name, more):
    flag, nothing = more
    assert flag is True
    assert nothing is None
    for i in range(3):
        x = getattr(jnp, name)(x @ w[i])
    return jnp.sum(x)


@case(W, X, kwargs={"scale": 2.0, "mask": np.arange(DIM) > 1, "train": True})
def keywords(w, x, *, scale, mask, train):
    assert train is True
    return jnp.sum(jnp.where(mask, jnp.tanh(x @ w[0]) * scale, 0.0))


BIG = array(DIM, DIM, seed=9)


@case(W, X)
def closed_over_array(w, x):
    for i in range(3):
        x = jnp.tanh(x @ w[i] @ BIG)
    return jnp.sum(x)


@case(W, X)
def literals_and_free_values(w, x):
    position = jnp.arange(DIM, dtype=jnp.float32)
    for _ in range(40):
        position = jnp.sin(position + 0.1)
    y = jnp.tanh(x @ w[0] + position)
    return jnp.sum(y * jnp.exp(-position)) + 0.0


@case(W, X)
def u_net(w, x):
    a = jnp.tanh(x @ w[0])
    b = jnp.tanh(a @ w[1])
    c = jnp.tanh(b @ w[2])
    return jnp.sum(jnp.concatenate([jnp.sin(c + a), b * x], axis=1) ** 2)


@case(V)
def no_equation_but_one(v):
    return jnp.sum(v)


@case(W, X)
def linear_and_division(w, x):
    y = x @ w[0] @ w[1]
    a, b = jnp.split(y, 2, axis=1)
    y = jnp.concatenate([b, a.reshape(2, 5).T.reshape(5, 2)], 1).astype(jnp.float32)
    z = y / (1.0 + jnp.abs(y)) + jnp.clip(y, -1, 1) + jnp.minimum(y, x) + lax.erf(y) + jnp.logaddexp(y, x)
    return jnp.sum(jnp.std(z, 0)) + jnp.prod(1 + 0.1 * V) * jnp.sum(z[:1])


@case(W, X)
def custom_linear_solve(w, x):
    a = w[0] @ w[0].T + 3 * jnp.eye(DIM)
    b, _ = jax.scipy.sparse.linalg.cg(lambda v: a @ v, jnp.tanh(V), maxiter=4, tol=1e-8)
    return jnp.sum(jnp.sin(x @ b))


@case(W, X)
def gradient_inside(w, x):
    """A gradient penalty: the loss differentiates."""

    def critic(y):
        return jnp.sum(jnp.tanh(jnp.tanh(y @ w[0]) @ w[1]))

    return critic(x) + jnp.sum(jax.grad(critic)(x) ** 2)


@case(W, X)
def mapped_inside(w, x):
    return jnp.sum(jax.vmap(lambda a: jnp.tanh(a @ w[0]) @ w[1])(x) ** 2) + jnp.sum(lax.map(jnp.sin, x))


@case(W, X, second_order=False)
def differential_equation(w, x):
    """Its custom VJP indexes a constant of the program by a traced number."""
    return jnp.sum(odeint(lambda y, t: jnp.tanh(y @ w[0]), x, jnp.array([0.0, 0.5])))


@case(W, X)
def callbacks_without_effects(w, x):
    for i in range(2):
        x = jnp.tanh(x @ w[i])
        found = jax.pure_callback(
            lambda a: np.asarray(a) > 0,
            jax.ShapeDtypeStruct(x.shape, bool),
            lax.stop_gradient(x),
            vmap_method="expand_dims",
        )
        x = jnp.where(found, x, 0.5 * x)
    return jnp.sum(x)


@case(W, X)
def mutable_arrays_without_gradient(w, x):
    total = jax.new_ref(jnp.zeros(()))
    for i in range(3):
        x = jnp.tanh(x @ w[i])
        total[...] += lax.stop_gradient(jnp.sum(x))
    return jnp.sum(x) * total[...]


@case(W, X, jax.random.split(jax.random.key(1, impl="rbg"), 5))
def keys_in_arrays(w, x, keys):
    noise = jax.vmap(lambda k: jax.random.normal(k, (DIM,)))(keys)
    return jnp.sum(jnp.tanh(x @ w[0]) * noise)


@case(W, sparse.BCOO.fromdense(jnp.eye(5)))
def sparse_argument(w, s):
    return jnp.sum(jnp.tanh(s @ X @ w[0]))


@case(W, X)
def named_and_sharded_calls(w, x):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    y = jax.jit(jnp.sin, out_shardings=device)(x @ w[0])
    y = jax.named_call(jnp.tanh, name="mine")(y)
    z = lax.associative_scan(jnp.multiply, lax.optimization_barrier(y))
    return jnp.sum(jax.device_put(z, jax.devices()[0])) + lax.platform_dependent(
        jnp.sum(y), cpu=jnp.sin, default=jnp.cos
    )


@case(W.astype(jnp.complex64), X)
def complex_parameters(w, x):
    y = jnp.exp(1j * jnp.tanh(x @ w[0])) + jnp.sin(x @ w[1])
    return jnp.sum(jnp.abs(y) ** 2)
