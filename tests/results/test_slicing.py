"""Segments that run in slices: their rows, their text, stored plans of them; where the plain peak could be split."""

import json
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.graph.schedule import Choice, actions_in, as_is, inside_of, saving
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Plain, Segment, Split
from remat_plan.plans.one_program import _in_words as in_words
from remat_plan.results.decisions import count_segments, decide
from remat_plan.results.stored import digest_of
from tests.helpers import traced

W = {"h": jnp.ones((8, 16)), "o": jnp.linspace(-1.0, 1.0, 16 * 64).reshape(16, 64)}
X, LABELS = jnp.linspace(-1.0, 1.0, 128).reshape(16, 8), jnp.arange(16)


def rows_of(w, x, labels):
    logits = jnp.tanh(x @ w["h"]) @ w["o"]
    picked = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return jax.nn.logsumexp(logits, -1) - picked


def head(w, x, labels):
    return jnp.mean(rows_of(w, x, labels))


def twofold(w, x, labels):
    """A function of two sums, of which each slice runs again."""
    rows = rows_of(w, x, labels)
    return jnp.mean(rows) * jnp.mean(jnp.sin(rows))


GRAPHS = {fn: traced(fn, W, X, LABELS).graph for fn in (head, twofold)}
LOGITS = max((v for v in GRAPHS[head].values if v.producer >= 0), key=lambda v: v.size_bytes).index


def split(fn, slices, keep=False):
    """The whole program in slices of the logits' rows; with ``keep`` under one checkpoint around the loop."""
    count = len(GRAPHS[fn].ops)
    found = sliced(Borders(GRAPHS[fn]), Segment(0, count), Split(LOGITS, 0, slices))
    n = len(found.region.ops)
    inside = saving(0, n).with_parts(choices=found.choices) if keep else Segment(0, n, Plain(found.choices))
    return (Segment(0, count, Split(LOGITS, 0, slices, (inside,))),)


def test_rows_of_a_segment_in_slices():
    schedule = split(twofold, 4)
    row, around, step = decide(GRAPHS[twofold], schedule)
    assert row.action == "run in 4 slices"
    assert (row.depth, around.depth, step.depth) == (0, 1, 2)
    assert (row.structured, row.checkpointed, row.nested) == (True, False, False)
    assert "scan of 4 steps" in around.action
    assert step.action == "recompute all"
    told = row.slicing
    assert told.value.startswith("dot_general float32[16,64] test_slicing.py:")
    assert (told.slices, told.dimension) == (4, 0)
    assert (told.whole_bytes, told.slice_bytes) == (16 * 64 * 4, 4 * 64 * 4)
    assert told.gradients == 2, "of both weights, which every slice reads"
    assert told.sums >= 1
    assert told.gradient_bytes == 0
    assert row.recomputed_flops == pytest.approx(4 * step.recomputed_flops)
    assert row.recomputed_flops >= 2 * 16 * 16 * 64 or row.recomputed_flops >= 2 * 16 * 8 * 16
    assert sum(r.count for r in (row, around, step)) == count_segments(schedule) == 3


def test_rows_of_a_gradient_in_the_forward_pass():
    row, around, step = decide(GRAPHS[head], split(head, 4))
    assert row.action == "run in 4 slices, gradient in the forward pass"
    assert row.recomputed_flops == 0
    assert row.saved_bytes == row.slicing.gradient_bytes == sum(w.nbytes for w in W.values()), (
        "kept until it is asked for"
    )
    assert row.structured
    assert "scan of 4 steps, gradient in the forward pass" in around.action
    assert step.action == "unchanged"


def test_uneven_slices_are_counted_as_they_run():
    (row, *_) = decide(GRAPHS[twofold], split(twofold, 7))
    assert row.slicing.slices == 6, "of 3 rows each, the last one of 1"
    assert row.slicing.slice_bytes == 3 * 64 * 4


def test_what_is_around_the_loop_is_inside_the_segment():
    (segment,) = split(twofold, 4, keep=True)
    assert inside_of(segment) == segment.way.sliced
    value = sliced(Borders(GRAPHS[twofold]), segment, segment.way).region.ops[0].outputs[0]
    (inner,) = segment.way.sliced
    inner = inner.with_parts(actions=((value, "offload"),))
    offloaded = Segment(segment.start, segment.end, Split(LOGITS, 0, 4, (inner,)))
    assert actions_in((offloaded,)) == {"offload"}


@pytest.fixture(scope="module", params=GRAPHS)
def planned(request):
    """A function and its plan in slices."""
    return request.param, rp.plan(request.param, W, X, LABELS, strategy=split(request.param, 4), verify=False)


def test_a_plan_says_how_it_slices(planned):
    _, plan = planned
    shown, page = str(plan), plan._repr_html_()
    assert "run in 4 slices" in shown
    for text in ("along dimension 0 of dot_general float32[16,64]", "largest value 4.1 kB, 1.02 kB in a"):
        assert text in shown
        assert text in page
    assert "gradients of 2 values" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 110


def test_a_plan_tells_of_the_loop_over_slices_where_they_differ(planned):
    fn, plan = planned
    assert "scan of 4 steps" not in str(plan)
    assert ("recompute all" in str(plan)) == (fn is twofold), "of a slice, without the loop around it"
    (segment,) = split(fn, 4, keep=True)
    kept = rp.plan(fn, W, X, LABELS, strategy=(segment,), verify=False)
    assert "scan of 4 steps" in str(kept), "a checkpoint around the loop is told"
    if fn is twofold:
        (inner,) = split(fn, 4)[0].way.sliced
        ((index, choice),) = inner.choices
        (part,) = choice.parts
        halves = Choice((replace(part, count=2), replace(part, count=2, schedule=(as_is(0, part.schedule[-1].end),))))
        mixed = inner.with_parts(choices=((index, halves),))
        plan = rp.plan(fn, W, X, LABELS, strategy=(segment.with_parts(sliced=(mixed,)),), verify=False)
        assert "scan of 4 steps: 2, then 2" in str(plan)


def test_a_plan_in_slices_comes_back(planned):
    fn, plan = planned
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    found, wanted = jax.grad(again.apply(fn))(W, X, LABELS), jax.grad(fn)(W, X, LABELS)
    assert all(jnp.allclose(found[k], wanted[k], rtol=1e-4, atol=1e-6) for k in W)


def changed(plan, **fields):
    """A stored plan with other fields of its split way."""
    data = json.loads(plan.to_json())
    data["schedule"][0]["way"].update(fields)
    return json.dumps({**data, "digest": digest_of(data)})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"slices": 1}, r"schedule\[0\].way.slices is 1"),
        ({"slices": "4"}, r"schedule\[0\].way.slices is a string, not an integer"),
        ({"value": -1}, r"schedule\[0\].way.value is -1"),
        ({"dimension": None}, r"schedule\[0\].way.dimension is null"),
        ({"sliced": []}, r"schedule\[0\].way.sliced is empty"),
        ({"sliced": [{"start": 1, "end": 3}]}, r"schedule\[0\].way.sliced: segment 1..3 cannot follow"),
    ],
)
def test_what_is_wrong_by_itself_is_not_read(planned, fields, told):
    _, plan = planned
    with pytest.raises(ValueError, match=told):
        rp.Plan.from_json(changed(plan, **fields))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": 10**6}, "is split by value 1000000, which it does not compute"),
        ({"dimension": 2}, "is split along dimension 2 of value"),
        ({"slices": 17}, "which has room for 2 to 16"),
        ({"slices": 2**40}, "which has room for 2 to 16"),
    ],
)
def test_what_does_not_fit_the_program_is_refused(planned, fields, told):
    fn, plan = planned
    read = rp.Plan.from_json(changed(plan, **fields))
    count = len(GRAPHS[fn].ops)
    with pytest.raises(ValueError, match=f"this plan was damaged after it was made: segment 0..{count} .*{told}"):
        jax.grad(read.apply(fn))(W, X, LABELS)


def test_the_search_names_slices():
    schedule = (saving(0, 0), *split(head, 4))
    judge = types.SimpleNamespace(unplanned=None, program=traced(head, W, X, LABELS))
    assert in_words(judge, schedule) == "1 of 2 segments recomputed, 1 of 2 segments in slices"
    assert in_words(judge, schedule[1:]) == "1 of 1 segments in slices"


def test_an_analysis_names_the_peak_and_its_axis():
    peak = rp.analyze(head, W, X, LABELS).peak
    assert "test_slicing.py:" in peak.where
    assert "float32[16,64]" in peak.value
    assert (peak.dimension, peak.slices, peak.value_bytes) == (0, 16, 16 * 64 * 4)
    assert peak.peak_bytes >= 16 * 64 * 4
    shown = str(rp.analyze(head, W, X, LABELS))
    assert f"predicted, at {peak.where.rpartition('/')[2]}" in shown
    assert "dimension 0 of" in shown


def test_an_analysis_of_what_cannot_be_split():
    whole = rp.analyze(lambda x: jnp.sum(jnp.cumsum(jnp.sort(x)) ** 2), jnp.ones(64))
    assert (whole.peak.dimension, whole.peak.slices) == (None, 1)
    assert "no dimension of" in str(whole)
