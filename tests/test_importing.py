"""What importing the package brings along: next to nothing, until a public name is used, wherever that is."""

import importlib
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import remat_plan as rp
from remat_plan.small.budget import BudgetError

ROOT = Path(__file__).resolve().parents[1]


def run(program, *flags):
    """What a program prints, run by itself."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ALONE = """
import sys, jax, numpy
from jax._src import xla_bridge
count = 0

def counted(x):
    global count
    count += 1
    return x + 1

before = set(sys.modules)
import remat_plan
print(*sorted(set(sys.modules) - before))
assert not xla_bridge._backends
with_jit = jax.jit(counted)
with_jit(1.0)
for name in remat_plan.__all__:
    getattr(remat_plan, name)
print(*sorted(set(sys.modules) - before))
with_jit(1.0)
assert count == 1
"""


def test_importing_is_light():
    """A count of modules, not seconds, says so; and what the names bring is this package, and what JAX comes with.

    What is compiled already stays compiled: JAX's caches are keyed by contexts, and a new one makes them all miss.
    """
    at_once, in_use = (line.split() for line in run(ALONE, "-W", "error").splitlines())
    assert [name for name in at_once if name.startswith("remat_plan")] == [
        "remat_plan",
        "remat_plan.traced",
        "remat_plan.traced.marks",
    ]
    own = [name for name in in_use if name.startswith("remat_plan.")]
    others = [name for name in in_use if name not in {"remat_plan", *own}]
    assert {"remat_plan.api", "remat_plan.planning.planner", "remat_plan.search.judge"} <= set(own)
    brought = {name.partition(".")[0] for name in others}
    assert brought <= {"jax", "jaxlib", "jax_plugins", "numpy", *sys.stdlib_module_names}
    assert not [name for name in own if name.startswith(("remat_plan.cli", "remat_plan.linen", "remat_plan.nnx"))]
    assert len(others) < 60


INSIDE = """
import jax, jax.numpy as jnp
import remat_plan as rp

def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)

@jax.jit
def gradient(w, x):
    for name in (*rp.__all__, "linen", "nnx"):
        getattr(rp, name)
    return jax.grad(rp.remat(loss, strategy="memory", verify=False))(w, x)

w, x = jnp.ones((8, 8)) / 8, jnp.ones((16, 8))
with jax.checking_leaks():
    first = gradient(w, x)
assert jnp.allclose(first, jax.grad(loss)(w, x))
assert jnp.allclose(jax.grad(rp.remat(loss, strategy="memory", verify=False))(2 * w, x), jax.grad(loss)(2 * w, x))
plan = rp.plan(loss, w, x, budget="90%", verify=False)
assert jnp.allclose(jax.jit(jax.grad(plan.apply(loss)))(w, x), first)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="Flax is not installed")
def test_names_may_be_used_first_inside_a_trace():
    """No module computes arrays as it is imported: they would be traced, and stay behind."""
    run(INSIDE)


@pytest.mark.slow
def test_an_unpickled_plan_is_shown_in_a_process_that_has_used_no_name():
    import jax

    plan = rp.plan(lambda x: (x**2).sum(), jax.ShapeDtypeStruct((8,), "float32"), strategy="memory", verify=False)
    assert run(f"import pickle; print(pickle.loads({pickle.dumps(plan)!r}))") == f"{plan}\n"


def test_public_names():
    assert sorted(rp.__all__) == list(rp.__all__)
    for name in rp.__all__:
        assert getattr(rp, name).__doc__
        assert getattr(rp, name) is getattr(rp, name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", rp.__version__)
    assert [name for name in dir(rp) if not name.startswith("_")] == sorted({*rp.__all__, "linen", "nnx"})
    everything = {}
    exec("from remat_plan import *", everything)
    assert everything.keys() - {"__builtins__"} == set(rp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        rp.plam  # noqa: B018


def test_every_public_name_has_its_module_and_no_module_has_its_name():
    """A module of that name would take the place of the function when it is imported."""
    assert sorted(rp._MODULE_OF) == rp.__all__
    modules = {path.stem for path in Path(rp.__file__).parent.iterdir()}
    assert not modules & set(rp.__all__)
    assert rp.BudgetError is BudgetError
