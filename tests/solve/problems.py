"""Random segments and chains, small enough to try everything, and solvers that do."""

import itertools

from hypothesis import strategies as st

from remat_plan.solve.chain import ChainProblem, Leaf, RunOption
from remat_plan.solve.min_cut import Offer, SegmentProblem, complete


@st.composite
def segments(draw, most_ops=8, unsaveable=True, offers=0):
    """A random segment: a DAG in execution order, some equations with two outputs, some free values; other actions."""
    op_inputs, op_outputs = [], []
    count = 0
    for _ in range(draw(st.integers(1, most_ops))):
        pool = st.lists(st.integers(0, max(count - 1, 0)), max_size=3)
        op_inputs.append(tuple(draw(pool)) if count else ())
        made = draw(st.sampled_from([1, 1, 1, 2]))
        op_outputs.append(tuple(range(count, count + made)))
        count += made
    seconds = tuple(draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 8.0])) for _ in op_inputs)
    sizes = tuple(draw(st.sampled_from([0, 1, 2, 3, 5, 8, 13])) for _ in range(count))
    saveable = tuple(not (unsaveable and draw(st.integers(0, 9)) == 0) for _ in range(count))
    needed = frozenset(v for v in range(count) if draw(st.booleans()))
    prices = st.sampled_from([0.0, 0.25, 1.5, 3.0])
    others = [
        Offer(tuple(size // 2 * draw(st.integers(0, 1)) for size in sizes), tuple(draw(prices) for _ in sizes))
        for _ in range(offers)
    ]
    rest = {"offers": tuple(others)}
    return SegmentProblem(tuple(op_inputs), tuple(op_outputs), seconds, sizes, saveable, needed, **rest)


def all_selections(problem):
    """Every selection that saves a subset of the values that may be saved, each by any action."""
    values = [v for v, s in enumerate(problem.saveable) if s]
    for count in range(len(values) + 1):
        for saved in itertools.combinations(values, count):
            for actions in itertools.product(range(len(problem.actions)), repeat=count):
                yield complete(problem, dict(zip(saved, actions, strict=True)))


def lower_hull(points):
    """The lower left convex hull of (bytes, seconds) points, by Andrew's monotone chain."""
    hull = []
    for p in sorted(set(points)):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (p[1] - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            p[0] - hull[-2][0]
        ):
            hull.pop()
        hull.append(p)
    best = []
    for p in hull:
        if not best or p[1] < best[-1][1]:
            best.append(p)
    return best


@st.composite
def chains(draw, most=5):
    """A random chain with values that cross one or several cuts."""
    n = draw(st.integers(1, most))
    number = st.integers(0, 6)
    spans = draw(st.lists(st.tuples(st.integers(1, n), st.integers(1, n), st.integers(1, 5)), max_size=6))
    frontiers = tuple(
        tuple((size, max(a, b)) for a, b, size in spans if min(a, b) <= cut <= max(a, b) and cut < n)
        for cut in range(n + 1)
    )
    runs = []
    for s in range(n):
        row = []
        for e in range(s + 1, min(s + draw(st.integers(1, 3)), n) + 1):
            options = [
                RunOption(draw(number), draw(number), float(draw(st.integers(0, 8))))
                for _ in range(draw(st.integers(1, 3)))
            ]
            row.append((e, tuple(options)))
        runs.append(tuple(row))
    forward = tuple(float(draw(st.integers(1, 4))) for _ in range(n))
    nestable = tuple(draw(st.integers(0, 5)) > 0 for _ in range(n))
    return ChainProblem(tuple(range(n)), tuple(runs), frontiers, forward, nestable)


def schedules(problem, s, t, m, inside):
    """Yield (seconds, nodes) of every schedule of blocks s..t-1 with m bytes; ``inside`` a checkpointed part.

    This is the recurrence of ``solve.chain`` written as a plain search: what the memory is at each node is
    carried along, and nothing is shared.
    """
    if s == t:
        yield 0.0, ()
        return
    for end, options in problem.runs[s]:
        if end > t:
            continue
        for k, option in enumerate(options):
            if m < max(option.kept_bytes, option.transient_bytes):
                continue
            own = 0.0 if inside and end == t else option.seconds
            for rest, nodes in schedules(problem, end, t, m - option.kept_bytes, inside):
                yield own + rest, (Leaf(s, end, k), *nodes)
    for end in range(s + 2, t):
        frontier = problem.frontier_bytes(s, end)
        if m < frontier or not all(problem.may_nest[s:end]):
            continue
        forward = sum(problem.forward_seconds[s:end])
        for first, children in schedules(problem, s, end, m, True):
            for rest, nodes in schedules(problem, end, t, m - frontier, inside):
                yield forward + first + rest, ((s, end, children), *nodes)
