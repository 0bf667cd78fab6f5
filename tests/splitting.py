"""Programs with split segments against the programs themselves.

In: a ``Program``, ways to split all or some of it. Out: assertions on values and gradients.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.graph.schedule import Segment, as_is
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Keep, Plain, Split
from remat_plan.planning.cuts import whole_region
from remat_plan.planning.runs import make_run
from remat_plan.planning.splits import split_ways
from tests.helpers import CPU, flat_gradient, plain_gradient

COUNTS = 2, 3, 5, 8


def whole_run(program):
    """The whole program as one run."""
    return make_run(program.graph, whole_region(program.graph), 0, 1)


def offered(program):
    """The schedules that the planner would be offered for the whole program as one run, were it larger."""
    rules, run = Rules(program.graph, CPU), whole_run(program)
    found = [run.segment(way) for way in split_ways(rules, run, 0)]
    return [tiled(program, segment) for segment in found]


def tiled(program, segment):
    """A schedule with one segment, all else plain."""
    n = len(program.graph.ops)
    around = [as_is(0, segment.start)] * (segment.start > 0), [as_is(segment.end, n)] * (segment.end < n)
    return (*around[0], segment, *around[1])


def largest(program, start=0, end=None):
    """The largest value of floating point that equations make."""
    graph = program.graph
    made = [v for op in graph.ops[start:end] for v in op.outputs if _compat.is_float(graph.values[v].aval)]
    return max(made, key=lambda v: graph.values[v].size_bytes)


def split(program, value, dimension, slices, start=0, end=None, keeps=True):
    """A schedule that splits a segment, keeping of a slice nothing; None where it is not apart so.

    ``keeps``: what is around the loop is kept, else it is made again.
    """
    borders = Borders(program.graph)
    end = len(program.graph.ops) if end is None else end
    way = Split(value, dimension, slices)
    found = sliced(borders, Segment(start, end), way)
    if found is None:
        return None
    inside = Plain(found.choices) if keeps else Keep((), found.choices)
    way = dataclasses.replace(way, sliced=(Segment(0, len(found.region.ops), inside),))
    return tiled(program, Segment(start, end, way))


def every_split(program, counts=COUNTS):
    """All ways to split a whole program along the dimensions of its largest value."""
    value = largest(program)
    found = []
    for dimension in range(program.graph.values[value].aval.ndim):
        for slices in counts:
            found.append(split(program, value, dimension, slices, keeps=slices % 2 == 0))
    return [schedule for schedule in found if schedule is not None]


def some_splits(program, draw, most):
    """A few ways to split a whole program along its largest value, drawn."""
    value, found = largest(program), []
    places = [(d, k) for d in range(program.graph.values[value].aval.ndim) for k in COUNTS]
    draw.shuffle(places)
    for dimension, slices in places[: most + 3]:
        schedule = split(program, value, dimension, slices, keeps=draw.random() < 0.5)
        if schedule is not None and len(found) < most:
            found.append(schedule)
    return found


def any_split(program, draw, tries=6):
    """A way to split some segment along some value in it, drawn; None where none was found."""
    n = len(program.graph.ops)
    for _ in range(tries):
        start, end = sorted((draw.randint(0, n), draw.randint(0, n)))
        start, end = (0, n) if draw.random() < 0.3 else (start, end)
        free = Borders(program.graph).free
        made = [v for i in range(start, end) if i not in free for v in program.graph.ops[i].outputs]
        wide = [v for v in made if _compat.is_float(program.graph.values[v].aval) and program.graph.values[v].aval.ndim]
        if wide:
            value = draw.choice(wide)
            dimension, slices = draw.randrange(program.graph.values[value].aval.ndim), draw.choice(COUNTS)
            schedule = split(program, value, dimension, slices, start, end, keeps=draw.random() < 0.5)
            if schedule is not None:
                return schedule
    return None


def check_same(program, schedules, rtol=2e-5, atol=2e-6, coarse=False):
    """Compare values and gradients under schedules with those of the function: all compiled as one program."""
    runs = [plain_gradient(program), *[flat_gradient(program, schedule) for schedule in schedules]]
    want, *found = jax.jit(lambda *leaves: [run(*leaves) for run in runs])(*program.call.leaves)
    for schedule, got in zip(schedules, found, strict=True):
        same(got, want, *((0.03, 0.03) if coarse else (rtol, atol)), told=schedule)


def same(got, want, rtol=2e-5, atol=2e-6, told=None):
    """Compare two pytrees: structure, types, shapes, and values up to rounding of the largest."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), told
        if not _compat.is_float(jax.typeof(b)):
            np.testing.assert_array_equal(a, b, err_msg=str(told))
            continue
        a, b = (np.asarray(x.astype(jnp.promote_types(x.dtype, jnp.float32)), np.float64) for x in (a, b))
        scale = max(float(np.max(np.abs(b), initial=0.0)), 1e-3)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * scale, err_msg=str(told))
