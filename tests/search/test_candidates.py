"""Schedules that are judged beside the planner's own."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from remat_plan.graph.schedule import as_is
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import traced

AUTO = Request(lookup("auto"), False, (0,), False, (), "replan")


def candidates_of(loss, *args):
    judge = Judge(traced(loss, *args), resolve("cpu"), Progress("test", False))
    return judge, Candidates(judge.rules, Progress("test", False))


def test_the_body_of_a_scan_alone_is_checkpointed_as_a_person_does_it():
    """Of every rule for blocks there is one schedule that leaves what is before and behind the loop as it is."""

    def loss(w, x):
        x = jnp.sin(jnp.tanh(x) + 1)
        x = jax.lax.scan(lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w.T), None), x, w)[0]
        return jnp.sum(jnp.exp(jnp.sin(x)) ** 2)

    judge, candidates = candidates_of(loss, jnp.ones((6, 8, 8)), jnp.ones((4, 8)))
    place = next(i for i, op in enumerate(judge.program.graph.ops) if op.primitive == "scan")
    end = len(judge.program.graph.ops)
    found = candidates.uniform(AUTO)
    chosen = {segment.choices for schedule in found for segment in schedule if segment.choices}
    assert chosen
    for choices in chosen:
        assert any(
            s[0] == as_is(0, place) and s[1].choices == choices and s[2:] == (as_is(place + 1, end),) for s in found
        )


def named_layers(w, x):
    """Two products of one size a layer, the second of them four times as dear to make again."""

    def layer(x, w):
        first = checkpoint_name(x @ w[0], "cheap")
        second = checkpoint_name(jnp.tanh(first) @ w[1], "dear")
        return x + jnp.tanh(second) @ w[2], None

    return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)


WEIGHTS = tuple(jnp.ones(shape) / 64 for shape in ((6, 64, 256), (6, 256, 256), (6, 256, 64)))
X = jnp.ones((128, 64))


def test_policies_by_name_are_tried_one_name_and_then_more():
    judge, candidates = candidates_of(named_layers, WEIGHTS, X)
    found = candidates.by_names(AUTO, judge.cost)
    assert len(found) == 3
    assert set(found) <= set(candidates.beside(AUTO, judge.cost, judge.identity))
    (cheap, dear, both), plain = (judge.figures(s) for s in found), judge.figures(judge.program.plain)
    per_layer = 6 * 128 * 256
    assert cheap.flops - both.flops == pytest.approx(2 * 256 * per_layer, rel=0.02)
    assert dear.flops - both.flops == pytest.approx(2 * 64 * per_layer, rel=0.02)
    assert both.peak_bytes > max(cheap.peak_bytes, dear.peak_bytes)
    assert plain.flops <= both.flops < min(cheap.flops, dear.flops)


def test_names_are_left_alone_where_there_are_none_in_loops_or_they_must_be_recomputed():
    def unrolled(w, x):
        return jnp.sum(checkpoint_name(jnp.tanh(x @ w), "hidden") ** 2)

    judge, candidates = candidates_of(unrolled, jnp.ones((64, 64)), X)
    assert candidates.by_names(AUTO, judge.cost) == ()
    judge, candidates = candidates_of(named_layers, WEIGHTS, X)
    constraints = make_constraints(must_recompute=["cheap"])
    assert candidates.by_names(replace(AUTO, constraints=constraints), judge.cost) == ()
