"""The dynamic program against a search through every schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from remat_plan.solve.chain import ChainProblem, Leaf, Nest, RunOption, solve
from tests.solve.problems import chains, schedules


def exact_table(problem):
    """A table whose quantum is one byte."""
    table = solve(problem, slots=200)
    assert table.quantum_bytes == 1
    return table


def best_seconds(problem, memory):
    return min((s for s, _ in schedules(problem, 0, len(problem.runs), memory, False)), default=np.inf)


@settings(max_examples=100)
@given(chains())
def test_costs_are_those_of_the_best_schedule(problem):
    table = exact_table(problem)
    for memory in (0, 1, 2, 4, 6, 9, 14, 30):
        assert table.costs[memory] == pytest.approx(best_seconds(problem, memory)), memory


@settings(max_examples=100)
@given(chains())
def test_more_memory_never_costs_more(problem):
    costs = exact_table(problem).costs
    assert all(a >= b for a, b in zip(costs, costs[1:], strict=False))


@settings(max_examples=100)
@given(chains())
def test_what_runs_need_does_not_count_where_only_what_is_kept_does(problem):
    costs = exact_table(problem.kept()).costs
    least = tuple(
        tuple((e, tuple(replace(o, transient_bytes=0) for o in options)) for e, options in row) for row in problem.runs
    )
    for memory in (0, 1, 2, 4, 6, 9, 14, 30):
        assert costs[memory] == pytest.approx(best_seconds(replace(problem, runs=least), memory)), memory


def evaluate(problem, nodes, m, inside, end):
    """(seconds, bytes that fit) of an extracted schedule, walking its tree."""
    total = 0.0
    for node in nodes:
        if isinstance(node, Nest):
            frontier = problem.frontier_bytes(node.start, node.end)
            assert all(problem.may_nest[node.start : node.end])
            assert m >= frontier
            assert node.end - node.start >= 2
            total += sum(problem.forward_seconds[node.start : node.end])
            total += evaluate(problem, node.children, m, True, node.end)
            m -= frontier
        else:
            options = next(o for e, o in problem.runs[node.start] if e == node.end)
            option = options[node.option]
            assert m >= max(option.kept_bytes, option.transient_bytes)
            total += 0.0 if inside and node.end == end else option.seconds
            m -= option.kept_bytes
    return total


@settings(max_examples=100)
@given(chains())
def test_extracted_schedules_cost_what_the_table_says_and_fit(problem):
    table = exact_table(problem)
    n = len(problem.runs)
    for slot in [*table.breakpoints(), 50]:
        if not np.isfinite(table.costs[slot]):
            continue
        nodes = table.schedule(slot)
        ends = [0, *(x.end for x in nodes)]
        assert [x.start for x in nodes] == ends[:-1]
        assert ends[-1] == n
        assert evaluate(problem, nodes, slot, False, n) == pytest.approx(table.costs[slot])


def uniform(n, keep=4, frontier=1, plain=4):
    """Equal blocks of one second: saved as a segment (frontier only), or kept."""
    option = (RunOption(frontier, keep, 1.0), RunOption(plain, keep, 0.0))
    return ChainProblem(
        (0,) * (n - 1) + (1,),
        tuple(((s + 1, option),) for s in range(n)),
        ((), *(((frontier, c),) for c in range(1, n)), ()),
        (1.0,) * n,
        (True,) * n,
    )


def test_a_uniform_chain_recomputes_as_much_as_is_missing():
    """With room for all but k blocks, k blocks run again; with all the room, none."""
    table = solve(uniform(10), slots=300)
    full = 10 * 4
    assert table.costs[full] == 0.0
    assert table.costs[full - 3] == 1.0
    assert table.costs[full - 6] == 2.0
    points = table.breakpoints()
    assert all(np.isfinite(table.costs[p]) for p in points)
    assert table.costs[points[0] - 1] == np.inf


def test_nesting_goes_below_one_level():
    """64 blocks in segments of one keep 64 frontiers; nested, far fewer."""
    table = solve(uniform(64), slots=600)
    least = table.breakpoints()[0]
    assert least < 24
    assert any(isinstance(x, Nest) for x in table.schedule(least))


def test_equal_intervals_share_a_row():
    table = solve(uniform(40), slots=300)
    assert len(table.rows) <= 2 * 40


@pytest.mark.parametrize("seconds", [1e-3, 1e3, 1e6])
def test_schedules_are_found_however_long_blocks_take(seconds):
    """Seconds of intervals that share a row differ in their last digits, as at batches of thousands."""
    problem = uniform(40)
    own = tuple(
        ((end, tuple(replace(o, seconds=o.seconds * seconds / 3) for o in os)),) for ((end, os),) in problem.runs
    )
    table = solve(replace(problem, runs=own, forward_seconds=(seconds / 3,) * 40), slots=200)
    for slot in table.breakpoints():
        table.schedule(slot)
    for slot in table.breakpoints(1):
        table.nested(slot)


def test_long_chains_are_solved_with_a_spread_of_split_points():
    table = solve(uniform(150), slots=800)
    costs = table.costs
    finite = costs[np.isfinite(costs)]
    assert finite[-1] == 0.0
    assert all(a >= b for a, b in zip(finite, finite[1:], strict=False))


def test_blocks_with_effects_are_never_nested():
    problem = uniform(6)
    effects = ChainProblem(problem.block_classes, problem.runs, problem.frontiers, problem.forward_seconds,
                           (True, True, False, True, True, True))  # fmt: skip
    table = solve(effects, slots=100)

    def check(nodes):
        for x in nodes:
            if isinstance(x, Nest):
                assert not x.start <= 2 < x.end
                check(x.children)

    for slot in table.breakpoints():
        check(table.schedule(slot))


def test_too_little_memory_is_an_error():
    table = solve(uniform(4), slots=100)
    with pytest.raises(ValueError, match="so little memory"):
        table.schedule(0)


def test_one_block():
    table = solve(uniform(1), slots=50)
    assert table.schedule(table.breakpoints()[0])[0].__class__ is Leaf
