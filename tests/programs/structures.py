"""Structures of random programs: what runs a program inside it, once, often, or perhaps.

In: the programs inside, as functions ``(given, x) -> x`` that keep shape and dtype; what they are given; a matrix; the
number of the step, which also settles what is left open (how long a loop is, which policy a checkpoint has).
Out: a matrix.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.programs.operations import wide


def at_step(given, i):
    """What is given in one step of a loop: keys of its own."""
    return replace(given, key=jax.random.fold_in(given.key, i), raw=jax.random.fold_in(given.raw, i))


def still(given):
    """What is given, without gradients."""
    return replace(given, p=lax.stop_gradient(given.p))


def scan(inner, given, x, number):
    """Over stacked weights, from none to five; forwards or backwards; what each step makes is read too."""
    length = number % 6
    scales = 1 + 0.1 * jnp.arange(length, dtype=given.p["w"].dtype)
    stacked = given.p["w"] * scales[:, None, None, None]

    def body(c, row):
        w, i = row
        c = inner[0](replace(at_step(given, i), p={**given.p, "w": w}), c)
        return c, jnp.mean(c, 0)

    how = {"reverse": number % 2 == 0, "unroll": 2 if number % 5 == 0 else 1}
    x, rows = lax.scan(body, x, (stacked, jnp.arange(length)), **how)
    return x + jnp.sum(rows, 0) / 8


def fori(inner, given, x, number):
    """A trip count that is known: a scan, for a gradient."""
    return lax.fori_loop(0, 1 + number % 4, lambda i, c: inner[0](at_step(given, i), c), x)


def while_(inner, given, x, number):
    """A trip count that the data say, without a gradient."""
    fixed = still(given)

    def body(state):
        i, c = state
        return i + 1, jnp.tanh(inner[0](at_step(fixed, i), c))

    _, found = lax.while_loop(
        lambda s: (s[0] < 1 + number % 3) & (jnp.sum(wide(s[1])) < 1e6), body, (0, lax.stop_gradient(x))
    )
    return x + 0.1 * found


def cond(inner, given, x, number):
    """By one element: the sum of what was normalised is nothing but rounding, and would choose a branch by that."""
    return lax.cond(x[0, 0] > 0.1, inner[0], inner[1], given, x)


def switch(inner, given, x, number):
    return lax.switch(given.labels[number % 4] % 3, [inner[0], lambda given, x: x, inner[1]], given, x)


def jit(inner, given, x, number):
    """Called twice, where it is short: equal equations."""
    f = jax.jit(inner[0])
    return f(given, f(given, x)) if number % 2 else f(given, x)


POLICIES = (
    None,
    jax.checkpoint_policies.dots_saveable,
    jax.checkpoint_policies.everything_saveable,
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
)


def checkpoint(inner, given, x, number):
    return jax.checkpoint(inner[0], policy=POLICIES[number % 4], prevent_cse=number % 3 > 0)(given, x)


def vmap(inner, given, x, number):
    """Over the two halves of the rows; each has a key of its own."""
    halves = x.reshape(2, x.shape[0] // 2, x.shape[1])
    y = jax.vmap(lambda x, i: inner[0](at_step(given, i), x))(halves, jnp.arange(2))
    return y.reshape(x.shape)


def custom_vjp(inner, given, x, number):
    """A rule that is not the true one, so that it shows whether it is used."""

    @jax.custom_vjp
    def f(given, x):
        return inner[0](given, x)

    def backward(saved, g):
        given, x = saved
        _, pull = jax.vjp(lambda p, x: inner[0](replace(given, p=p), x), given.p, x)
        dp, dx = pull(1.5 * g)
        return cotangent(dp, given), dx

    f.defvjp(lambda given, x: (f(given, x), (given, x)), backward)
    return f(given, x)


def cotangent(dp, given):
    """A cotangent of what is given: of integers and keys there is none."""
    return replace(given, p=dp, labels=None, key=None, raw=None)


def custom_jvp(inner, given, x, number):
    """The same by tangents."""

    @jax.custom_jvp
    def f(p, x, rest):
        return inner[0](replace(rest, p=p), x)

    @f.defjvp
    def rule(primals, tangents):
        p, x, rest = primals
        out, slope = jax.jvp(lambda p, x: inner[0](replace(rest, p=p), x), (p, x), tangents[:2])
        return out, 0.75 * slope

    return f(given.p, x, replace(given, p=None))


def linearized(inner, given, x, number):
    """A function that differentiates: a penalty on a gradient."""
    return x + 0.1 * jax.grad(lambda x: jnp.sum(jnp.sin(inner[0](given, x))).astype(jnp.float32))(x)


def mesh():
    """All devices there are."""
    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def over_rows():
    """The rows of a matrix over all devices."""
    return jax.NamedSharding(mesh(), P("data"))


def shard_map(inner, given, x, number):
    """The rows over all devices, what is given on every one."""
    f = jax.shard_map(inner[0], mesh=mesh(), in_specs=(P(), P("data")), out_specs=P("data"), check_vma=False)
    return f(given, x)


def placed(inner, given, x, number):
    """The rows laid over all devices by a constraint, before and after."""
    rows = over_rows()
    return lax.with_sharding_constraint(inner[0](given, lax.with_sharding_constraint(x, rows)), rows)


STRUCTURES = {
    "scan": (1, scan),
    "fori": (1, fori),
    "while": (1, while_),
    "cond": (2, cond),
    "switch": (2, switch),
    "jit": (1, jit),
    "checkpoint": (1, checkpoint),
    "vmap": (1, vmap),
    "custom_vjp": (1, custom_vjp),
    "custom_jvp": (1, custom_jvp),
    "linearized": (1, linearized),
    "shard_map": (1, shard_map),
    "placed": (1, placed),
}
"""How many programs are inside, and what is made of them."""
