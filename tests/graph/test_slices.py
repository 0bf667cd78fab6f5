"""Split segments as regions: which are shared, which are refused, and what runs them."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.schedule import Choice, Part, Segment, as_is, saving, structured
from remat_plan.graph.slices import region_of, sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Around, Keep, Plain, Split
from remat_plan.results.decisions import decide
from tests.helpers import traced
from tests.splitting import check_same, largest, split, tiled

W = 0.2 * jax.random.normal(jax.random.key(0), (3, 6, 30))
X = jax.random.normal(jax.random.key(1), (12, 6))


def layers(w, x, act=jnp.sin):
    for one in w:
        x = x + act(x @ one) @ one.T
    return jnp.sum(x**2)


def blocks(program, primitive):
    """(start, end, value) of equal segments: from each first product to the addition behind it."""
    ops = program.graph.ops
    ends = [op.index + 1 for op in ops if op.primitive == "add" and op.eqn.outvars[0].aval.shape]
    starts = [next(op.index for op in ops[s:] if op.primitive == "dot_general") for s in (0, *ends[:-1])]
    return [
        (s, e, next(op.outputs[0] for op in ops[s:e] if op.primitive == primitive))
        for s, e in zip(starts, ends, strict=True)
    ]


def ways_of(program, primitive, make=lambda found: Plain(found.choices)):
    """A split segment for each block, and the regions of them."""
    borders = Borders(program.graph)
    segments, regions = [], []
    for start, end, value in blocks(program, primitive):
        found = sliced(borders, Segment(start, end), Split(value, 0, 4))
        inner = Segment(0, len(found.region.ops), make(found))
        segments.append(Segment(start, end, Split(value, 0, 4, (inner,))))
        regions.append(found.region)
    return segments, regions


def joined(program, segments):
    """A schedule with several segments."""
    place, found = 0, []
    for segment in segments:
        found += [as_is(place, segment.start)] * (segment.start > place) + [segment]
        place = segment.end
    return (*found, as_is(place, len(program.graph.ops)))


def test_equal_segments_share_a_region():
    program = traced(layers, W, X)
    segments, regions = ways_of(program, "sin")
    assert len({id(region) for region in regions[1:]}) == 1, "the first has an operand that is not differentiated"
    assert regions[0] is not regions[1]
    check_same(program, [joined(program, segments)])


@jax.custom_jvp
def once(x):
    return jnp.sin(x)


@jax.custom_jvp
def twice(x):
    return jnp.sin(x)


once.defjvp(lambda xs, ts: (jnp.sin(xs[0]), jnp.cos(xs[0]) * ts[0]))
twice.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 2.0 * jnp.cos(xs[0]) * ts[0]))


def test_the_same_function_with_another_derivative_is_another_region():
    def loss(w, x):
        return layers(w, x, once) + layers(w, x, twice)

    program = traced(loss, W[1:], X, argnums=(0, 1))
    segments, regions = ways_of(program, "custom_jvp_call")
    assert regions[0] is not regions[2]
    check_same(program, [joined(program, segments)])


def test_a_split_segment_inside_another_one():
    program = traced(layers, W, X, argnums=(0, 1))
    segments = ways_of(program, "sin", lambda found: Keep((), found.choices))[0]
    inside = joined(program, segments)
    whole = Segment(0, len(program.graph.ops), Around(inside))
    check_same(program, [(whole,), inside, joined(program, [segments[0], saving(*_span(segments[1])), segments[2]])])


def _span(segment):
    return segment.start, segment.end


@pytest.mark.parametrize(
    ("value", "dimension", "slices"),
    [("dot_general", 0, 13), ("dot_general", 0, 1), ("dot_general", 0, 0), ("transpose", 0, 31)],
)
def test_what_cannot_be_split_so_is_refused(value, dimension, slices):
    program = traced(layers, W[:1], X)
    made = next(op.outputs[0] for op in program.graph.ops if op.primitive == value)
    assert split(program, made, dimension, slices) is None
    with pytest.raises(ValueError, match=f"cannot run in {slices} slices along dimension {dimension} of value {made}"):
        _region(program, Split(made, dimension, slices))


def _region(program, way):
    return region_of(Borders(program.graph), Segment(0, len(program.graph.ops), way))


def test_the_region_reads_and_gives_what_the_segment_does():
    program = traced(layers, W, X)
    borders = Borders(program.graph)
    start, end, value = blocks(program, "sin")[1]
    reads, leaves, _ = borders.interface(as_is(start, end))
    found = sliced(borders, Segment(start, end), Split(value, 0, 5))
    avals = [program.graph.values[v].aval for v in reads]
    assert [found.region.values[v].aval for v in found.region.inputs] == avals
    assert list(found.region.output_avals) == [program.graph.values[v].aval for v in leaves]
    ((index, choice),) = found.choices
    assert found.region.ops[index].primitive == "scan"
    assert choice.parts[0].count == 4, "slices of 3, 3, 3, 3"
    assert all(child.way == Keep() for child in choice.parts[0].schedule)


def test_a_gradient_in_the_forward_pass_is_a_choice_of_the_loop():
    program = traced(layers, W, X)
    value = blocks(program, "sin")[-1][2]
    found = sliced(Borders(program.graph), Segment(0, len(program.graph.ops)), Split(value, 0, 5))
    ((index, choice),) = found.choices
    assert found.region.ops[index].primitive == "scan"
    assert choice.gradient_first
    assert [part.count for part in choice.parts] == [4]
    assert [segment.way for segment in choice.parts[0].schedule] == [Plain()]
    start, end, value = blocks(program, "sin")[0]
    other = sliced(Borders(program.graph), Segment(start, end), Split(value, 0, 5))
    assert not other.choices[0][1].gradient_first, "what leaves it is no scalar"


def test_moved_segments_keep_the_axis():
    way = Split(7, 1, 4, (saving(0, 3),))
    moved = Segment(5, 9, way).moved(5, {7: 2})
    assert moved == Segment(0, 4, Split(2, 1, 4, (saving(0, 3),)))
    assert hash(moved) == hash(Segment(0, 4, Split(2, 1, 4, (saving(0, 3),))))
    assert moved.moved(-5, {2: 7}) == Segment(5, 9, way)


def test_a_way_tells_whether_slices_run_again():
    step = Choice((Part(4, (saving(0, 2),)),))
    again, first = (
        Split(7, 1, 4, (structured(0, dataclasses.replace(step, gradient_first=first)),)) for first in (False, True)
    )
    assert again.describe() == "run in 4 slices"
    assert first.describe() == "run in 4 slices, gradient in the forward pass"
    assert again != first


@pytest.mark.parametrize("ends_in", [jnp.sum, lambda y: jnp.sum(y) * jnp.sum(y * y)])
def test_a_loop_has_two_equal_slices_at_least(ends_in):
    """3 units in 2 slices would be a loop of one step, and a rest: they are 3."""
    program = traced(lambda w, x: ends_in(jnp.sin(x @ w)), W[0], X[:3])
    value = largest(program)
    schedules = [split(program, value, 0, slices) for slices in (2, 3)]
    check_same(program, schedules)
    (decided, *_), (other, *_) = (decide(program.graph, schedule) for schedule in schedules)
    assert decided.slicing.slices == other.slicing.slices == 3


def test_the_derivative_of_a_sum_over_slices_is_not_traced():
    """It depends on all that it reads, and nothing of its own is kept."""
    program = traced(layers, W, X)
    whole, value = Segment(0, len(program.graph.ops)), blocks(program, "sin")[-1][2]
    found = sliced(Borders(program.graph), whole, Split(value, 0, 5))
    loop = found.region.ops[found.choices[0][0]]
    need = found.region.needs[loop.kind]
    assert need.vjp is None
    assert need.operands == tuple([i for i, v in enumerate(loop.operands) if v >= 0])
    assert need.reached == loop.active
    assert (need.given, need.active_outputs, need.outputs, need.internal_avals) == ((True,), (True,), (), ())


def test_uneven_slices_of_a_segment():
    program = traced(layers, W, X, argnums=(0, 1))
    schedules = []
    for start, end, value in blocks(program, "sin")[1:]:
        for dimension, slices in ((0, 5), (1, 7)):
            schedule = split(program, value, dimension, slices, start, end)
            assert schedule == tiled(program, schedule[1])
            schedules.append(schedule)
    check_same(program, schedules)
