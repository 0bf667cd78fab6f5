"""Chains of groups: as good as one dynamic program over all blocks, whatever their length."""

from dataclasses import replace

import numpy as np
import pytest

from remat_plan.solve.chain import WIDE, ChainProblem, ChainTable, Leaf, Nest, RunOption, solve
from remat_plan.solve.long_chain import GroupedTable, cost_of, part, solve_chain

LAYER = (RunOption(4, 12, 1.0), RunOption(8, 16, 0.1), RunOption(9, 12, 0.0))


def layers(n, period=1):
    """Equal layers: a segment that saves its frontier only, one that saves more, and a plain one; every ``period``-th
    is twice as large."""
    scale = [2 if i % period == 1 else 1 for i in range(n)]
    rows = []
    for s in range(n):
        own = tuple(
            RunOption(k * o.kept_bytes, k * o.transient_bytes, k * o.seconds) for k in scale[s : s + 1] for o in LAYER
        )
        rows.append(((s + 1, own),))
    frontiers = ((), *(((4 * scale[c - 1], c),) for c in range(1, n)), ())
    classes = (*tuple(scale[:-1]), 3)
    return ChainProblem(classes, tuple(rows), frontiers, tuple(map(float, scale)), (True,) * n)


def walk(nodes):
    for node in nodes:
        yield node
        if isinstance(node, Nest):
            yield from walk(node.children)


def check(problem, nodes, start, end, m, inside):
    """Walk a tree with ``m`` bytes, nothing rounded: it covers its blocks, and fits; return its seconds."""
    total = 0.0
    position = start
    for node in nodes:
        assert node.start == position
        position = node.end
        if isinstance(node, Nest):
            assert all(problem.may_nest[node.start : node.end])
            total += check(problem, node.children, node.start, node.end, m, True)
            total += 0.0 if inside and node.end == end else sum(problem.forward_seconds[node.start : node.end])
            m -= problem.frontier_bytes(node.start, node.end)
        else:
            option = next(o for e, o in problem.runs[node.start] if e == node.end)[node.option]
            assert m >= option.transient_bytes
            total += 0.0 if inside and node.end == end else option.seconds
            m -= option.kept_bytes
        assert m >= 0
    assert position == end
    return total


def test_short_chains_are_one_table():
    assert isinstance(solve_chain(layers(WIDE)), ChainTable)
    assert isinstance(solve_chain(layers(2 * WIDE)), ChainTable)
    assert isinstance(solve_chain(layers(2 * WIDE + 1)), GroupedTable)
    different = layers(2 * WIDE)
    different = replace(different, block_classes=tuple(range(2 * WIDE)))
    assert isinstance(solve_chain(different), GroupedTable), "too much work for one table"


@pytest.mark.parametrize(("n", "period"), [(100, 1), (129, 1), (200, 1), (150, 3), (400, 7)])
def test_schedules_fit_and_cost_what_is_promised(n, period):
    problem = layers(n, period)
    table = solve_chain(problem)
    points = table.breakpoints()
    for point in points[:: max(len(points) // 12, 1)]:
        nodes = table.schedule(point)
        slack = 1 + n * table.quantum_bytes // 16  # of rounding: half a quantum a group
        seconds = check(problem, nodes, 0, n, point * table.quantum_bytes + slack, False)
        assert seconds == pytest.approx(table.costs[point])
        assert cost_of(problem, nodes, False)[2] == pytest.approx(seconds)


@pytest.mark.parametrize("n", [129, 160])
def test_groups_are_as_good_as_one_program_over_all_blocks(n):
    problem = layers(n)
    whole, groups = solve(problem, slots=9 * n + 20), solve_chain(problem)
    assert whole.quantum_bytes == 1
    for share in (0.15, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95):
        m = int(share * 9 * n)
        best = whole.costs[m]
        found = groups.costs[m // groups.quantum_bytes]
        assert found <= best + 0.02 * n, (share, found, best)


def shrinking(n):
    """Layers that become smaller and dearer, as those of a convolutional network do; runs of two may be one segment."""
    sizes = [max(1, 24 // (1 + 6 * i // n)) for i in range(n)]
    rows = []
    for s, size in enumerate(sizes):
        single = tuple(RunOption(size * o.kept_bytes, size * o.transient_bytes, o.seconds) for o in LAYER)
        row = [(s + 1, single)]
        if s + 2 <= n:
            last = sizes[s + 1]
            row.append((s + 2, (RunOption(4 * last, 12 * (size + last), 2.0),)))
        rows.append(tuple(row))
    frontiers = ((), *(((4 * sizes[c - 1], c),) for c in range(1, n)), ())
    return ChainProblem(tuple(range(n)), tuple(rows), frontiers, (1.0,) * n, (True,) * n)


@pytest.mark.slow
def test_groups_of_unequal_layers_weigh_what_they_keep_against_what_they_need():
    problem = shrinking(100)
    whole, groups = solve(problem), solve_chain(problem)
    assert isinstance(groups, GroupedTable)
    low, high = (whole.breakpoints()[i] * whole.quantum_bytes for i in (0, -1))
    for share, more in ((0.15, 0.04), (0.3, 0.025), (0.5, 0.01), (0.8, 0.004)):
        m = int(low + share * (high - low))
        best, found = whole.costs[m // whole.quantum_bytes], groups.costs[m // groups.quantum_bytes]
        assert found <= best + more * 100, (found, best)


def test_the_share_of_recomputation_does_not_depend_on_the_length():
    tables = {n: solve_chain(layers(n)) for n in (60, 300, 3000)}
    for share in (0.1, 0.3, 0.5, 0.8):
        costs = {n: t.costs[int(share * 9 * n / t.quantum_bytes)] / n for n, t in tables.items()}
        assert max(costs[300], costs[3000]) <= costs[60] + 0.02, costs


@pytest.mark.slow
def test_little_memory_is_enough_for_ten_thousand_layers():
    """Nested in levels, they need hardly more than a hundred."""
    problem = layers(10_000)
    table = solve_chain(problem)
    nodes = table.schedule(table.breakpoints()[0])
    assert cost_of(problem, nodes, False)[1] < 0.02 * 9 * 10_000
    assert {b for x in walk(nodes) if isinstance(x, Leaf) for b in range(x.start, x.end)} == set(range(10_000))


def test_more_memory_never_costs_more():
    costs = solve_chain(layers(500, 5)).costs
    finite = costs[np.isfinite(costs)]
    assert all(a >= b for a, b in zip(finite, finite[1:], strict=False))


def test_blocks_with_effects_are_never_nested():
    problem = layers(200)
    may_nest = tuple(i != 90 for i in range(200))
    classes = tuple(c if i != 90 else 9 for i, c in enumerate(problem.block_classes))
    problem = replace(problem, block_classes=classes, may_nest=may_nest)
    table = solve_chain(problem)
    for point in table.breakpoints()[::100]:
        for node in walk(table.schedule(point)):
            assert not (isinstance(node, Nest) and node.start <= 90 < node.end)


def test_a_part_is_the_same_chain():
    problem = layers(20, 4)
    inner = part(problem, 5, 12)
    assert inner.frontier_bytes(1, 4) == problem.frontier_bytes(6, 9)
    assert inner.runs[0][0][0] == 1
    assert inner.forward_seconds == problem.forward_seconds[5:12]
