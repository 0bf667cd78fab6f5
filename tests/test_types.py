"""What type checkers see: signatures of decorated functions, and the doors that are imported when asked for."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import remat_plan as rp
from remat_plan.planning.strategies.values import StrategyName

ROOT = str(Path(__file__).resolve().parents[1])

USER = """
import jax
import remat_plan as rp

def loss(w: jax.Array, x: jax.Array, *, scale: float = 1.0) -> jax.Array:
    return (w @ x).sum() * scale

@rp.remat(budget="60%")
def decorated(w: jax.Array, n: int = 3) -> jax.Array:
    return w * n

@rp.checkpoint
def layer(w: jax.Array) -> jax.Array:
    return w

@rp.checkpoint(budget="60%")
def planned_layer(w: jax.Array) -> jax.Array:
    return w

class Model:
    @rp.remat(strategy="memory", argnums=1)
    def loss(self, w: jax.Array) -> jax.Array:
        return w

def train_step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return w, x

def show(plan: rp.Plan, w: jax.Array) -> None:
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    rp.plan(loss, w, w, strategy="a_registered_one", goal="time", cost="measured", existing="keep")
    step = rp.fit(train_step, w, w, budget="60%", cost="table")
    reveal_type(rp.remat(loss, budget="8GiB").__call__)
    reveal_type(decorated.__call__)
    reveal_type(decorated.plans)
    reveal_type(layer)
    reveal_type(planned_layer)
    rp.checkpoint(loss, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False, static_argnums=1)
    reveal_type(plan.apply(loss).__call__)
    reveal_type(Model().loss(w))
    reveal_type(Model().loss)
    reveal_type(rp.linen.remat)
    reveal_type(rp.nnx.remat)
    reveal_type(rp.scan)
    reveal_type(step(w, w))
    reveal_type(rp.accumulate(train_step, 4)(w, w))
    decorated("text")
    step(w)
    rp.plan(loss, w, w, goal="tmie")
    rp.fit(train_step, w, w, budget="60%", cost="tabel")
    rp.scan(lambda c, x: (c, x), w, w, schedule="sqr")
    rp.remat(loss, bugdet="8GiB")
    rp.checkpoint(loss, polcy=None)
"""

WANT = [
    "(w: Array, x: Array, *, scale: float = 1) -> Array",
    "(w: Array, n: int = 3) -> Array",
    "dict[str, Plan]",
    "(w: Array) -> Array",
    "(w: Array) -> Array",
    "(w: Array, x: Array, *, scale: float = 1) -> Array",
    "Array",
    "(w: Array) -> Array",
]


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_type_checkers_see_signatures(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard", "extraPaths": [ROOT]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    shown = [d["message"] for d in found if d["severity"] == "information"]
    types = [message.partition(" is ")[2].strip('"') for message in shown]
    assert types[: len(WANT)] == WANT
    assert not [t for t in types[len(WANT) :] if "Unknown" in t.split("(")[0]]
    assert len(types) == len(WANT) + 5
    assert types[-2:] == ["tuple[Array, Array]"] * 2
    errors = [d for d in found if d["severity"] == "error"]
    lines = [USER.splitlines()[d["range"]["start"]["line"]].strip() for d in errors]
    wrong = USER[USER.index('    decorated("text")') :].splitlines()
    assert lines == [line.strip() for line in wrong if line], errors


def test_strategies_are_completed():
    ours = {row.name for row in rp.strategies() if row.source}
    assert ours <= set(get_args(StrategyName)) <= {row.name for row in rp.strategies()}
