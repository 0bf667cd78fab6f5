"""Plans as JSON: the same in every process, whole after a round trip, refused when damaged."""

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
import remat_plan as rp

@jax.custom_vjp
def scaled(x):
    return 2 * x
scaled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

def loss(p, x, key):
    for i, name in enumerate(sorted(p)):
        x = jax.nn.relu(x @ p[name]["w"] + p[name]["b"])
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
        x = scaled(jnp.where(keep, jnp.tanh(x), 0.0))
        x = jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]
    return jnp.mean(x)

p = {f"layer{i}": {"w": np.eye(16, dtype="float32"), "b": np.zeros(16, "float32")} for i in range(6)}
plan = rp.plan(loss, p, np.ones((256, 16), "float32"), jax.random.key(0), budget="75%")
assert not plan.is_identity
print(plan.to_json())
"""


def test_the_same_plan_in_every_process():
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "12345")
    ]
    found = []
    for process in running:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
        found.append(output)
    assert found[0] == found[1]
    assert " at 0x" not in found[0]


def loss(w, x):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


W, X = jnp.eye(16), jnp.ones((256, 16))


@pytest.fixture(scope="module")
def plan():
    found = rp.plan(loss, W, X, budget="65%")
    assert not found.is_identity
    return found


def test_round_trip(plan):
    text = plan.to_json()
    again = rp.Plan.from_json(text)
    assert again == plan
    assert again.to_json() == text
    assert again.fingerprint == plan.fingerprint
    assert str(again) == str(dataclasses.replace(plan, planning_seconds=0.0))
    want = jax.grad(loss)(W, X)
    assert jnp.allclose(jax.grad(again.apply(loss))(W, X), want, atol=1e-6)


def test_planning_time_is_not_part_of_it(plan):
    slower = dataclasses.replace(plan, planning_seconds=99.0)
    assert slower == plan
    assert slower.to_json() == plan.to_json()


def test_planning_again_gives_the_same_text(plan):
    assert rp.plan(loss, W, X, budget="65%").to_json() == plan.to_json()


def test_the_identity_travels_too():
    plan = rp.plan(loss, W, X, budget="1GB", verify=False)
    again = rp.Plan.from_json(plan.to_json())
    assert again.is_identity
    assert again.compiled_peak_bytes is None
    assert again.apply(loss)(W, X) == loss(W, X)


def test_all_that_was_asked_travels():
    plan = rp.plan(
        lambda w, x, n: (loss(w, x) * n, x), W, X, 3, budget="80%", argnums=(1, 0), has_aux=True, static_argnums=2,
        verify=False, existing="keep",
    )  # fmt: skip
    again = rp.Plan.from_json(plan.to_json())
    assert (again.argnums, again.has_aux, again.static_argnums, again.existing) == ((1, 0), True, (2,), "keep")
    assert again == plan


def test_copies_and_pickles(plan):
    assert copy.deepcopy(plan) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"format": 0}', '"text"'])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError, match=r"Plan\.from_json"):
        rp.Plan.from_json(text)


def damaged(plan, path, value):
    data = json.loads(plan.to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], 99),
        (["schedule"], KeyError),
        (["schedule"], 5),
        (["schedule"], ["x"]),
        (["schedule"], []),
        (["schedule", 0, "end"], 10**6),
        (["schedule", 0, "start"], 3),
        (["schedule", 0, "kind"], "other"),
        (["program"], None),
        (["program", "equations"], []),
        (["program", "digest"], KeyError),
        (["before"], []),
        (["after", "peak_bytes"], KeyError),
        (["decisions"], [{}]),
        (["argnums"], 0),
        (["overhead"], KeyError),
        (["surprise"], 1),
        (["notes"], None),
    ],
)
def test_damaged_plans_are_refused(plan, path, value):
    with pytest.raises(ValueError, match=r"Plan\.from_json"):
        rp.Plan.from_json(damaged(plan, path, value))


def test_a_plan_for_another_program_is_refused_after_the_trip_too(plan):
    again = rp.Plan.from_json(plan.to_json())
    with pytest.raises(ValueError, match="argument leaf 1 was"):
        again.apply(loss)(W, X[:7])
