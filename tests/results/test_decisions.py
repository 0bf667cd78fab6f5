"""Decisions carry what tables tell: words, facts, bytes; in the order of the schedule."""

import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.rules import eqn_flops
from remat_plan.graph.schedule import WRITTEN, Choice, Part, around, as_is, saving, structured
from remat_plan.results.decisions import count_segments, decide, segment_action
from tests.helpers import traced

W, X = jnp.ones((8, 8)), jnp.ones((4, 8))


def chain(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def scanned(w, x):
    return jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=5)[0])


@pytest.fixture(scope="module")
def graph():
    return traced(chain, W, X).graph


def test_a_segment_left_as_it_is(graph):
    (row,) = decide(graph, (as_is(0, len(graph.ops)),))
    assert row.action == "unchanged"
    assert (row.checkpointed, row.nested, row.structured) == (False, False, False)
    assert row.saved_bytes is None
    assert row.recomputed_flops == 0
    assert row.source.startswith("test_decisions.py:")


def test_a_segment_that_saves(graph):
    value = graph.ops[2].outputs[0]
    (row, rest) = decide(graph, (saving(0, 4, (value,)), as_is(4, len(graph.ops))))
    assert row.action == "save 1 value, recompute the rest"
    assert (row.checkpointed, row.values, row.saved_bytes) == (True, 1, graph.values[value].size_bytes)
    assert len(row.saved) == 1
    assert "dot_general" in row.saved[0]
    assert row.equations == (0, 4)
    assert rest.equations == (4, len(graph.ops))


def test_equal_neighbours_are_one_row(graph):
    n = len(graph.ops)
    rows = decide(graph, (saving(0, 2), saving(2, 4), saving(4, 6), as_is(6, n)))
    assert [(r.count, r.equations, r.action) for r in rows] == [
        (3, (0, 6), "recompute all"), (1, (6, n), "unchanged"),
    ]  # fmt: skip


def test_nested_segments_stand_below(graph):
    n = len(graph.ops)
    schedule = (around(0, 8, (saving(0, 4), as_is(4, 8))), as_is(8, n))
    rows = decide(graph, schedule)
    assert [(r.depth, r.nested, r.action) for r in rows] == [
        (0, True, "checkpoint around"), (1, False, "recompute all"), (1, False, "unchanged"),
        (0, False, "unchanged"),
    ]  # fmt: skip
    assert rows[0].saved_bytes is None
    assert rows[0].recomputed_flops == sum(eqn_flops(op.eqn) for op in graph.ops[:8])
    assert sum(r.count for r in rows) == count_segments(schedule) == 4


def test_a_loop_tells_of_all_its_steps_and_its_rows_of_one():
    graph = traced(scanned, W, X).graph
    index = next(op.index for op in graph.ops if op.primitive == "scan")
    body = len(graph.ops[index].eqn.params["jaxpr"].jaxpr.eqns)
    choice = Choice((Part(5, (saving(0, body),)),))
    after = [as_is(index + 1, len(graph.ops))] if index + 1 < len(graph.ops) else []
    before = [as_is(0, index)] if index else []
    schedule = (*before, structured(index, choice), *after)
    rows = decide(graph, schedule)
    loop, step = next((a, b) for a, b in zip(rows, rows[1:], strict=False) if a.structured)
    assert "scan" in loop.action
    assert not loop.action.endswith(":"), "layout is for those who draw"
    assert (step.depth, step.action) == (1, "recompute all")
    assert loop.recomputed_flops == pytest.approx(5 * step.recomputed_flops)
    assert loop.saved_bytes == 5 * X.nbytes, "a carry for each step"
    assert sum(r.count for r in rows) == count_segments(schedule)


def test_a_function_left_as_written_is_one_row(graph):
    (row,) = decide(graph, WRITTEN)
    assert row.action == "left as written"
    assert row.equations == (0, len(graph.ops))
    assert count_segments(WRITTEN) == 1


def test_structures_are_told_beside_what_the_segment_does():
    assert segment_action(saving(0, 9), ["scan of 3 steps"]) == "recompute all; scan of 3 steps"
    assert segment_action(as_is(0, 9), ["scan of 3 steps"]) == "unchanged; scan of 3 steps"
    assert segment_action(as_is(0, 1), ["scan of 3 steps", "cond"]) == "scan of 3 steps; cond"
    assert segment_action(saving(0, 9, [4])) == "save 1 value, recompute the rest"
