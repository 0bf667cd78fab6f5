"""Plans as JSON: the same in every process, whole after a round trip, refused when damaged."""

import copy
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.graph.fingerprint import Fingerprint
from remat_plan.results.decisions import Decision
from remat_plan.results.stored import DEEPEST, FORMAT
from tests.helpers import searching_quickly

pytestmark = pytest.mark.usefixtures("quick_search")

ROOT = Path(__file__).resolve().parents[2]

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

p = {f"layer{i}": {"w": np.eye(16, dtype="float32"), "b": np.zeros(16, "float32")} for i in range(3)}
plan = rp.plan(loss, p, np.ones((256, 16), "float32"), jax.random.key(0), budget="75%")
assert not plan.is_identity
print(plan.to_json())
"""


@pytest.mark.slow
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
    with searching_quickly():
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("plan", "not JSON"),
        ('{"format": 2', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "the text is a list, not an object"),
        ("null", "the text is null, not an object"),
        ("3", "the text is an integer, not an object"),
        ('"text"', "the text is a string, not an object"),
        ("{}", "no format number"),
        ('{"format": null}', "format is null, not an integer"),
        ('{"format": "2"}', "format is a string, not an integer"),
        (f'{{"format": {FORMAT}}}', "strategy is missing"),
    ],
)
def test_what_is_no_plan(text, told):
    with pytest.raises(ValueError, match=r"^Plan\.from_json: .*" + re.escape(told)):
        rp.Plan.from_json(text)


@pytest.mark.parametrize("thing", [None, 3, b"{}", {}, Path("plan.json")])
def test_what_is_no_text(thing):
    with pytest.raises(TypeError, match=rf"Plan\.from_json needs the text .* not {type(thing).__name__}"):
        rp.Plan.from_json(thing)


@pytest.mark.parametrize("version", [0, 1, FORMAT - 1, FORMAT + 1])
def test_plans_of_other_versions_are_refused(plan, version):
    with pytest.raises(ValueError, match=rf"has format {version}, .* reads format {FORMAT}; plan again with rp\.plan"):
        rp.Plan.from_json(damaged(plan, ["format"], version))


def damaged(plan, path, value):
    """The plan as text, with one field replaced or, for ``KeyError``, left out."""
    data = json.loads(plan.to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


def place_of(path):
    """A path as messages name it: ``schedule[0].end``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def refused(plan, path, value, *told):
    with pytest.raises(ValueError, match=r"^Plan\.from_json: .*" + re.escape(place_of(path))) as caught:
        rp.Plan.from_json(damaged(plan, path, value))
    for text in told:
        assert text in str(caught.value)


FIELDS = [f.name for f in dataclasses.fields(rp.Plan) if f.compare]
INSIDE = [
    *([part, name] for part in ("plain_timeline", "planned_timeline")
      for name in ("positions", "live_bytes", "steps", "peak_bytes", "owned_bytes")),
    *(["program", f.name] for f in dataclasses.fields(Fingerprint)),
    *(["decisions", 0, f.name] for f in dataclasses.fields(Decision)),
    ["schedule", 0, "start"], ["schedule", 0, "end"],
]  # fmt: skip
SHARES = ("overhead", "compiled_overhead", "measured_overhead", "lower_bound", "written_overhead")
"""By which something grows: less than nothing where it is faster."""
NULLABLE = ("budget_bytes", "compiled_peak_bytes", "compiled_overhead", "compiled_host_bytes", "saved_bytes")
EVERY = [*([name] for name in FIELDS), *INSIDE]


@pytest.mark.parametrize("path", EVERY, ids=place_of)
def test_no_field_may_be_missing(plan, path):
    refused(plan, path, KeyError, "is missing")


@pytest.mark.parametrize("path", EVERY, ids=place_of)
def test_no_field_may_be_of_another_type(plan, path):
    data = json.loads(plan.to_json())
    for step in path:
        data = data[step]
    refused(plan, path, {"a": 1} if not isinstance(data, dict) else [1])
    refused(plan, path, [[1]])
    if data is not None and path[-1] not in NULLABLE:
        refused(plan, path, None, "is null")
    if isinstance(data, int):
        refused(plan, path, "7", "is a string")
    if isinstance(data, int) and not isinstance(data, bool):
        refused(plan, path, True, "is true or false")
        refused(plan, path, 1.5, "is a number")
        refused(plan, path, -1, "is -1, less than")
    if isinstance(data, float):
        for value in (-1.5 if path[-1] in SHARES else -0.5, float("nan"), float("inf"), "7"):
            refused(plan, path, value, "number")
    if isinstance(data, str):
        refused(plan, path, 7, "is an integer, not a string")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["surprise"], 1, "not a field that is known"),
        (["existing"], "other", "'other', not one of 'replan', 'keep'"),
        (["argnums"], [0.5], "argnums[0] is a number"),
        (["notes"], [3], "notes[0] is an integer"),
        (["program", "labels"], [], "has 0 texts for"),
        (["program", "surprise"], 1, "not a field that is known"),
        (["schedule"], ["x"], "schedule[0] is a string"),
        (["schedule", 0, "end"], 10**6, "schedule"),
        (["schedule", 0, "start"], 3, "schedule"),
        (["schedule", 0, "kind"], "other", "not a field that is known"),
        (["schedule", 0, "way"], {"kind": "around"}, "segments end at equation 0 instead of"),
        (["schedule", 0, "way"], {"kind": "written"}, "is as written, which only a whole program can be"),
        (["schedule", 0, "way"], {"kind": "keep", "actions": [[0]]}, "actions[0] has 1 items"),
        (["schedule", 0, "way"], {"kind": "keep", "actions": [[-1, "save"]]}, "actions[0][0] is -1"),
        (["schedule", 0, "way"], {"kind": "keep", "actions": [[0, "burn"]]}, "'burn' is not known"),
        (["schedule", 0, "way"], {"kind": "plain", "choices": [[0, {"parts": []}]]}, "parts is empty"),
        (["schedule", 0, "way"], {"kind": "plain", "choices": [[0, {"parts": [[1]]}]]}, "parts[0] has 1 items"),
        (
            ["schedule", 0, "way"],
            {"kind": "plain", "choices": [[0, {"parts": [[1, [], [0]]]}]]},
            "parts[0][2][0] is 0, less than 1",
        ),
        (
            ["schedule", 0, "way"],
            {"kind": "plain", "choices": [[0, {"parts": [[1, [{"start": 1, "end": 2}]]]}]]},
            "cannot follow",
        ),
        (["schedule", 0, "way"], {"kind": "plain", "choices": [[0, {"parts": [[1, []]], "slots": -1}]]}, "slots is -1"),
        (["decisions"], [], "decisions has rows for 0 segments"),
        (["decisions", 0, "count"], 0, "is 0, less than 1"),
        (["decisions", 0, "equations"], [1], "has 1 items, not 2"),
        (["decisions", 0, "surprise"], 1, "not a field that is known"),
        (["plain_timeline", "live_bytes"], [], "has 0 numbers for"),
        (["plain_timeline", "positions", 0], 10**9, "do not rise"),
        (["plain_timeline", "surprise"], 1, "not a field that is known"),
    ],
)
def test_damaged_plans_are_refused(plan, path, value, told):
    with pytest.raises(ValueError, match=r"^Plan\.from_json: .*" + re.escape(told)):
        rp.Plan.from_json(damaged(plan, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["has_aux"], True),
        (["argnums"], []),
        (["argnums"], [0, 1]),
        (["argnums", 0], 2**40),
        (["static_argnums"], [0]),
        (["static_argnums"], [-1]),
        (["existing"], "keep"),
        (["overhead"], 1e308),
        (["program", "digest"], "0"),
        (["strategy"], "other"),
        (["digest"], "0"),
    ],
)
def test_what_is_well_formed_and_was_not_written_is_refused(plan, path, value):
    with pytest.raises(ValueError, match=r"^Plan\.from_json: .*digest is not that of the other fields"):
        rp.Plan.from_json(damaged(plan, path, value))


HOSTILE = (
    None, True, 0, -1, 2**63, -(2**70), 1.5, -1e308, float("nan"), "", "7", "\ud800", [], {}, [[]], [None], [-1], ["a"],
    [[0, "save"]], [[10**6, "save"]], [{"start": 0, "end": 1}], [[0, {"parts": [[1, [{"start": 0, "end": 1}]]]}]], KeyError,
)  # fmt: skip


def places(data, path=()):
    """Every place in JSON data; of a list the first two."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    for key, value in items:
        yield [*path, key]
        yield from places(value, [*path, key])


@pytest.mark.slow
def test_whatever_is_put_anywhere_is_refused_or_makes_no_difference(plan):
    read = 0
    for path in places(json.loads(plan.to_json())):
        for value in HOSTILE:
            again, told = read_or_told(damaged(plan, path, value))
            assert told.startswith("Plan.from_json: ") if again is None else again == plan, path
            read += again is not None
    assert read > 0


def read_or_told(text):
    """The plan in a text; or None, and why there is none."""
    try:
        return rp.Plan.from_json(text), ""
    except ValueError as error:
        return None, str(error)


def test_a_step_that_got_faster_travels(plan):
    faster = dataclasses.replace(plan, compiled_overhead=-0.125)
    assert rp.Plan.from_json(faster.to_json()) == faster


@pytest.mark.parametrize("depth", [DEEPEST + 2, 5_000])
def test_schedules_nested_too_deeply_are_refused(plan, depth):
    text = damaged(plan, ["schedule"], "HERE")
    inner = '[{"start": 0, "end": 1, "way": {"kind": "around", "schedule": ' * depth + "[]" + "}}]" * depth
    with pytest.raises(ValueError, match=r"Plan\.from_json: .*nested too deeply"):
        rp.Plan.from_json(text.replace('"HERE"', inner))


def test_a_plan_for_another_program_is_refused_after_the_trip_too(plan):
    again = rp.Plan.from_json(plan.to_json())
    with pytest.raises(ValueError, match="argument leaf 1 was"):
        again.apply(loss)(W, X[:7])
