"""One small plan, analysis and curve for all tests of reports, and plans with made-up tables."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.graph.schedule import around, as_is, saving
from remat_plan.results.decisions import Decision, segment_action
from tests.helpers import searching_quickly

SHAPES = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")


def loss(w, x):
    for layer in range(12):
        x = checkpoint_name(jnp.tanh(x @ w), "<b>activation</b>" if layer else "first")
    return jnp.sum(x)


@pytest.fixture(scope="session")
def plan():
    with searching_quickly():
        return rp.plan(loss, *SHAPES, budget="40%", verify=False)


@pytest.fixture(scope="session")
def verified():
    with searching_quickly():
        return rp.plan(loss, *SHAPES, budget="60%")


@pytest.fixture(scope="session")
def identity():
    with searching_quickly():
        return rp.plan(loss, *SHAPES, budget="200%", verify=False)


@pytest.fixture(scope="session")
def analysis():
    return rp.analyze(loss, *SHAPES)


@pytest.fixture(scope="session")
def curve():
    with searching_quickly():
        return rp.tradeoff(loss, *SHAPES)


@pytest.fixture(scope="session")
def comparison():
    with searching_quickly():
        return rp.compare(loss, *SHAPES, budgets=["60%", "40%", "1%"], verify=False)


@pytest.fixture
def with_schedule(plan):
    """A function from a schedule in short notation to a plan with that table of decisions.

    ``"a"``, ``"b"``, ...: a block of ten equations that saves 1, 2, ... values of 1 MB and recomputes as many
    GFLOP; ``"."``: a plain one; a list: a checkpoint around what is in it.
    """

    def segments(items, start):
        for item in items:
            if isinstance(item, str):
                values = 0 if item == "." else ord(item) - ord("a") + 1
                yield saving(start, start + 10, range(values)) if values else as_is(start, start + 10)
                start += 10
            else:
                children = tuple(segments(item, start))
                yield around(start, children[-1].end, children)
                start = children[-1].end

    def rows(schedule, depth):
        for s in schedule:
            n = len(s.saved)
            yield Decision(
                count=1,
                depth=depth,
                action=segment_action(s),
                equations=(s.start, s.end),
                source=f"model.py:{n}",
                checkpointed=s.checkpointed,
                nested=bool(s.children),
                values=n,
                saved=tuple(f"tanh float32[250000] model.py:{line}" for line in range(n))[:4],
                saved_bytes=n * 10**6 if n else None,
                recomputed_flops=n * 1e9,
            )
            yield from rows(s.children, depth + 1)

    def make(items):
        schedule = tuple(segments(items, 0))
        return dataclasses.replace(plan, schedule=schedule, decisions=tuple(rows(schedule, 0)))

    return make
