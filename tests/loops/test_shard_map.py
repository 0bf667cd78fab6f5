"""Loops inside ``shard_map`` over four devices of the CPU, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

START = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import remat_plan as rp

assert len(jax.devices()) == 4
mesh = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))
k = jax.random.split(jax.random.key(0), 2)
w, h, xs = jax.random.normal(k[0], (4, 4)), jnp.ones((8, 4)), jax.random.normal(k[1], (13, 8, 4))
specs = (P(), P("b"), P(None, "b"))

def loss(scan, w, h, xs):
    h, ys = scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), h, xs)
    return jax.lax.psum(h.sum() + ys.sum(), "b")

def sharded(scan):
    return jax.shard_map(lambda *a: loss(scan, *a), mesh=mesh, in_specs=specs, out_specs=P())

def looped(body, h, xs):
    step = lambda c: (body(c[0], xs[c[1]])[0], c[1] + 1)
    h = rp.while_loop(lambda c: c[1] < 13, step, (h, 0), 20, slots=4)[0]
    return h, jnp.zeros(())

def close(found, want):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
"""

INSIDE = """
want = jax.jit(jax.grad(sharded(jax.lax.scan), (0, 1, 2)))(w, h, xs)
for options in ({"schedule": "sqrt"}, {"slots": 3}):
    scan = lambda body, h, xs: rp.scan(body, h, xs, **options)
    close(jax.jit(jax.grad(sharded(scan), (0, 1, 2)))(w, h, xs), want)

# The gradient taken inside of the map.
inner = jax.shard_map(lambda *a: jax.grad(loss, 3)(scan, *a), mesh=mesh, in_specs=specs, out_specs=specs[2])
close(jax.jit(inner)(w, h, xs), want[2])

plain = lambda body, h, xs: (jax.lax.scan(body, h, xs)[0], jnp.zeros(()))
close(jax.jit(jax.grad(sharded(looped), (0, 1)))(w, h, xs), jax.jit(jax.grad(sharded(plain), (0, 1)))(w, h, xs))
print("all close")
"""

LAID_OUT = """
scan = functools.partial(rp.scan, slots=3)

# Arrays with shardings of their own, under jit.
put = [jax.device_put(a, jax.NamedSharding(mesh, s)) for a, s in zip((w, h, xs), specs, strict=True)]
whole = lambda scan, w, h, xs: scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs)[0].sum()
close(
    jax.jit(jax.grad(lambda *a: whole(scan, *a), (0, 1, 2)))(*put),
    jax.jit(jax.grad(lambda *a: whole(jax.lax.scan, *a), (0, 1, 2)))(*put),
)

# Shardings that are part of the types.
explicit = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(explicit):
    put = [jax.device_put(a, s) for a, s in zip(map(np.asarray, (w, h, xs)), specs, strict=True)]
    found = jax.jit(jax.grad(lambda *a: whole(scan, *a), (0, 1, 2)))(*put)
    close(found, jax.jit(jax.grad(lambda *a: whole(jax.lax.scan, *a), (0, 1, 2)))(*put))
    assert found[2].sharding.spec == P(None, "b", None)
print("all close")
"""


def run(program):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START + program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all close\n"


def test_four_devices():
    run(INSIDE)


@pytest.mark.slow
def test_arrays_laid_out_over_four_devices():
    run(LAID_OUT)
