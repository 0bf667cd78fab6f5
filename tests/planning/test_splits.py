"""Which ways to split are offered, what is predicted of them, and how plans with them are stored."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import _cpu
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Segment
from remat_plan.graph.ways import Keep, Plain, Split
from remat_plan.planning.cuts import cut_everywhere, whole_region
from remat_plan.planning.inside import Inside
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.options import SegmentOption, _Profiler
from remat_plan.planning.planner import Planner
from remat_plan.planning.profile import plain_run
from remat_plan.planning.runs import find_runs
from remat_plan.planning.splits import SLICES, SlicedProgram, large_runs, narrowest, split_ways
from remat_plan.results import stored  # noqa: F401 (says how ways are stored)
from remat_plan.results.codec import decode, encode
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import CPU, assert_trees_close, few, traced
from tests.splitting import check_same, largest, split, whole_run

WORDS, WIDTH, TOKENS = 1024, 32, 256
KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {"first": jax.random.normal(KEYS[0], (WIDTH, WIDTH)) / 6, "w": jax.random.normal(KEYS[1], (WIDTH, WORDS)) / 6}
X = jax.random.normal(KEYS[2], (4, TOKENS // 4, WIDTH))
LABELS = jnp.arange(TOKENS).reshape(4, -1) * 3


LOGIT_BYTES = 4 * TOKENS * WORDS


@pytest.fixture(autouse=True)
def _small_values_are_split(monkeypatch):
    monkeypatch.setattr("remat_plan.planning.options.LEAST_SLICE_BYTES", LOGIT_BYTES // max(SLICES))


def mean(p, x, labels):
    logits = jnp.sin(x @ p["first"]) @ p["w"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def masked(p, x, labels):
    rows = jax.nn.log_softmax(jnp.sin(x.reshape(-1, WIDTH) @ p["first"]) @ p["w"])
    weights = (labels.reshape(-1) > 9).astype(jnp.float32)
    return -jnp.sum(jnp.take_along_axis(rows, labels.reshape(-1, 1), -1)[:, 0] * weights) / jnp.sum(weights)


def capped(p, x, labels):
    logits = 5.0 * jnp.tanh(jnp.sin(x @ p["first"]) @ p["w"] / 5.0)
    high = jax.nn.logsumexp(logits, -1)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(high - picked + 1e-4 * high**2)


def penalised(p, x, labels):
    """Weight decay in the loss."""
    return mean(p, x, labels) + 1e-4 * sum(jnp.sum(jnp.square(w)) for w in jax.tree.leaves(p))


def with_accuracy(p, x, labels):
    logits = jnp.sin(x @ p["first"]) @ p["w"]
    loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    return loss, jnp.mean(jnp.argmax(logits, -1) == labels)


def twofold(p, x, labels):
    """A function of two sums, of which each slice runs again."""
    logits = jnp.sin(x @ p["first"]) @ p["w"]
    rows = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(rows) * jnp.mean(jnp.sin(rows))


def ways_of(program, least_slice_bytes=0):
    """What is offered for the whole program as one run."""
    return list(split_ways(Rules(program.graph, CPU), whole_run(program), least_slice_bytes))


@pytest.mark.parametrize("fn", few([mean, masked, penalised, twofold], [mean, twofold]))
def test_a_head_is_offered_in_slices_of_its_tokens(fn):
    program = traced(fn, PARAMS, X, LABELS)
    ways, run = ways_of(program), whole_run(program)
    graph = program.graph
    assert {way.slices for way in ways} == set(SLICES)
    assert {way.gradient_first for way in ways} == {fn is not twofold}
    if fn is twofold:
        assert len(ways) > len(SLICES), "what is kept around the loop is chosen"
    else:
        assert len(ways) == len(SLICES), "one each: nothing but the gradient is kept"
    for way in ways:
        aval = graph.values[run.values[way.value]].aval
        assert aval.shape[-1] == WORDS
        assert way.dimension < len(aval.shape) - 1
        assert aval.shape[way.dimension] % way.slices == 0
        (segment,) = way.sliced
        assert isinstance(segment.way, Plain | Keep)
        assert segment.choices, "nothing is kept of a slice"


def with_metrics(p, x, labels):
    """What training steps hand on: what is said of tokens, the loss, what is made of it and of the sums it is made of."""
    logits = jnp.sin(x @ p["first"]) @ p["w"]
    rows = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    total, weights = jnp.sum(rows * (labels > 9)), jnp.sum(labels > 9)
    loss = total / weights + 1e-2 * jnp.mean(jnp.square(rows)) + 1e-3 * jnp.sum(jnp.square(p["w"]))
    metrics = {"loss": loss, "total": total, "words": weights}
    return loss, (rows, jnp.argmax(logits, -1), metrics | {"sure": jnp.tanh(jnp.exp(-loss))})


@pytest.mark.parametrize("fn", few([with_accuracy, with_metrics], [with_metrics]))
def test_auxiliary_results_are_made_beside_the_gradient(fn):
    program = traced(fn, PARAMS, X, LABELS, has_aux=True)
    ways = ways_of(program)
    assert {way.gradient_first for way in ways} == {True}
    check_same(program, [(whole_run(program).segment(way),) for way in ways[:2]], 1e-4, 1e-5)


def test_what_is_not_apart_or_has_effects_is_offered_nothing():
    def told(p, x, labels):
        jax.debug.print("{}", jnp.sum(x @ p["first"]))
        return mean(p, x, labels)

    def mixed(p, x, labels):
        return jnp.sum(jnp.cumsum(jnp.cumsum(jnp.cumsum(x, 0), 1), 2))

    assert ways_of(traced(told, PARAMS, X, LABELS)) == []
    assert ways_of(traced(mixed, PARAMS, X, LABELS, argnums=1)) == []
    assert ways_of(traced(lambda n: n * 2.0, 1.0)) == []


def test_slices_have_so_many_bytes():
    program = traced(mean, PARAMS, X, LABELS)
    assert {way.slices for way in ways_of(program, LOGIT_BYTES // 8)} == {2, 8}
    assert ways_of(program, LOGIT_BYTES // 2 + 1) == []


def test_runs_that_need_little_are_not_split():
    assert large_runs({(0, 1): 100, (1, 2): 19, (2, 3): 20, (3, 4): 0}) == [(0, 1), (2, 3)]
    assert large_runs({(0, 1): 0}) == large_runs({}) == []


@pytest.mark.parametrize("fn", few([mean, masked, capped, penalised], [mean]))
def test_a_head_is_split_though_cuts_stand_inside_it(fn):
    """The block that ends behind the exponential hands on all logits; the run around it hands on a scalar."""
    graph = traced(fn, PARAMS, X, LABELS).graph
    planner = Planner(graph, Rules(graph, CPU))
    options = [o for profile in planner.options.profiles.values() for o in profile.options]
    assert any(isinstance(o.way, Split) for o in options)


def with_rows(p, x, labels):
    """A sum for each row of tokens, so that slices of rows run again."""
    logits = jnp.sin(x @ p["first"]) @ p["w"]
    return jnp.mean(jnp.square(jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels), -1)))


@pytest.mark.parametrize("fn", few([with_accuracy, with_rows, mean, masked, capped], [with_accuracy, with_rows, mean]))
def test_what_is_predicted_is_compiled(fn):
    """Of slices that run again, and with the gradient in the forward pass."""
    program = traced(fn, PARAMS, X, LABELS, has_aux=fn is with_accuracy)
    judge = Judge(program, resolve("cpu"), Progress("test", False))
    plain, value = judge.predicted_bytes(judge.program.plain), largest(program)
    for slices in (2, 8):
        schedule = split(program, value, program.graph.values[value].aval.ndim - 2, slices)
        predicted, compiled = judge.predicted_bytes(schedule), judge.compiled_bytes(schedule)
        assert predicted == pytest.approx(compiled, rel=0.05), slices
    assert compiled < 0.5 * plain


def test_a_split_costs_its_products_once_more_or_not_at_all():
    def flops(fn):
        program = traced(fn, PARAMS, X, LABELS)
        judge = Judge(program, resolve("cpu"), Progress("test", False))
        sliced = split(program, largest(program), 1, 8)
        return judge.timeline(sliced).flops, judge.timeline(judge.program.plain).flops

    (again, _), (first, plain) = flops(twofold), flops(mean)
    assert first == pytest.approx(plain, rel=0.1)
    assert again > first + TOKENS * WIDTH * WORDS


def test_gradients_of_a_loss_in_slices_are_the_callers():
    """Its cotangent is one, so that what slices add up is handed on as it is: nothing else waits for it."""
    program = traced(mean, PARAMS, X, LABELS)
    for way in ways_of(program):
        assert plain_run(Rules(program.graph, CPU), whole_run(program), way).kept_bytes < 100


def test_ways_are_stored_as_they_were():
    for way in [way for fn in (mean, twofold) for way in ways_of(traced(fn, PARAMS, X, LABELS))]:
        segment = Segment(3, 9, way)
        data = encode(segment)
        assert data["way"]["kind"] == "split"
        again = decode(Segment, data)
        assert again == segment
        assert type(again.way) is type(way)
        assert hash(again) == hash(segment)
        assert encode(again) == data
        assert again != dataclasses.replace(segment, way=dataclasses.replace(way, slices=way.slices + 1))


@pytest.mark.slow
def test_a_plan_with_a_split_is_stored_and_runs():
    """At a budget that is less than three values of the size of the logits, of which no two are there at once."""
    plan = rp.plan(masked, PARAMS, X, LABELS, budget=6 << 18)
    ways = [segment.way for segment in plan.schedule if isinstance(segment.way, Split)]
    assert ways
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    assert again.schedule == plan.schedule
    gradient = jax.jit(jax.value_and_grad(again.apply(masked)))(PARAMS, X, LABELS)
    assert_trees_close(gradient, jax.value_and_grad(masked)(PARAMS, X, LABELS), 1e-4, 1e-5)


@pytest.mark.slow
def test_the_run_around_a_block_is_split_for_that_block():
    def loss(p, x, labels):
        scores = jnp.tanh(x @ p["first"] @ p["w"])  # large, but not as large as the logits behind it
        return mean({"first": p["first"], "w": jnp.tile(p["w"], 2)}, jnp.tanh(scores @ p["w"].T), labels)

    program = traced(loss, PARAMS, X, LABELS)
    planner = Planner(program.graph, Rules(program.graph, CPU))
    values = program.graph.values
    size = {run: max(values[v].size_bytes for v in planner.options.runs[run].values) for run in planner.options.runs}
    logits = max(size.values())
    block = next(run for run in size if run[1] == run[0] + 1 and 2 * size[run] == logits)
    assert [size[run] for run in narrowest(program.graph, planner.options.runs, block)] == [size[block]] * 2


def test_a_head_in_16_bits_is_split_with_the_product_that_makes_its_logits():
    """The logits cross cuts in 16 bits, behind their product, before they are converted to 32."""

    def loss(p, x, labels):
        logits = (jnp.sin(x @ p["first"]) @ p["w"]).astype(jnp.float32)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    graph = traced(loss, *jax.tree.map(lambda a: a.astype(jnp.bfloat16), (PARAMS, X)), LABELS).graph
    runs = find_runs(graph, cut_everywhere(graph, whole_region(graph)), len(graph.ops))
    wide = next(op.index for op in graph.ops if graph.values[op.outputs[0]].size_bytes == LOGIT_BYTES)
    block = next(run for run in runs if runs[run].ops == (wide,))
    both, behind = narrowest(graph, runs, block)

    def logits_in(values):
        return [v for v in values if graph.values[v].producer >= 0 and graph.values[v].aval.shape[-1:] == (WORDS,)]

    assert logits_in((*runs[both].reads, *runs[both].leaves)) == logits_in(runs[behind].leaves) == []
    assert logits_in(runs[behind].reads), "they cross a cut"


@pytest.mark.parametrize("useless", [(), (2,), (16,), (8,)])
def test_more_and_fewer_slices_are_tried_while_they_are_of_use(useless, monkeypatch):
    """Each takes more time and fewer bytes than the one before; those of no use take more bytes."""
    program = traced(mean, PARAMS, X, LABELS)
    tried = set()

    def outside(self, run, way, plain, repeats):
        if slices := getattr(way, "slices", 0):
            tried.add(slices)
            size = 2 * plain.timeline.peak_bytes if slices in useless else 100 - slices
            yield SegmentOption(way, size, size, size, size, slices * 1e-6)

    monkeypatch.setattr(_Profiler, "outside", outside)
    _Profiler(program.graph, Rules(program.graph, CPU), lambda rules: ()).with_splits(whole_run(program), True)
    assert tried == {8, 16, 32, 2} - {(16,): {32}, (8,): {2, 16, 32}}.get(useless, set())


@pytest.mark.slow
def test_equal_runs_have_equal_ways():
    """What a chain of equal blocks costs is solved once for all of them."""

    def chain(weights, x):
        for w in weights:
            x = jax.nn.gelu(jnp.tanh(x @ w) @ w.T)
        return jnp.sum(x)

    program = traced(chain, [jnp.ones((32, 64))] * 6, jnp.ones((4096, 32)))
    planner = Planner(program.graph, Rules(program.graph, CPU))
    profiles = {}
    for run, profile in planner.options.profiles.items():
        assert profiles.setdefault((planner.options.runs[run].signature, run[1] - run[0]), profile) is profile
    schedules = [schedule for curve in planner.curves for schedule in curve]
    assert any(segment.way.sliced for schedule in schedules for segment in schedule)


def test_images_on_a_cpu_are_not_sliced_for_time():
    """In a loop XLA:CPU computes gradients of convolutions without its library, so slices of a batch take long."""

    def loss(kernels, x):
        for kernel in kernels:
            x = jax.nn.relu(jax.lax.conv(x.transpose(0, 3, 1, 2), kernel, (1, 1), "SAME").transpose(0, 2, 3, 1))
        return jnp.mean(x**2)

    kernels = [jax.ShapeDtypeStruct((16, n, 3, 3), "float32") for n in (3, 16, 16)]
    program = traced(loss, kernels, jax.ShapeDtypeStruct((32, 32, 32, 3), "float32"))
    judge = Judge(program, resolve("cpu"), Progress("test", False))
    schedule = SlicedProgram(Inside(judge.rules, NO_LIMITS)).schedules(2)[0]
    assert judge.timeline(schedule).seconds > 2 * judge.timeline(program.plain).seconds


def test_slices_of_a_recurrent_network_cost_small_products_on_a_cpu():
    """By the clock of two cores four slices take 1.3 times as long as the plain step, two slices 0.9 to 1.0 times."""

    def loss(p, x):
        def step(carry, row):
            h, c = carry
            gates = row @ p["x"] + h @ p["h"] + p["b"]
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return jnp.mean(jax.lax.scan(step, (jnp.zeros((128, 128)),) * 2, x)[1] ** 2)

    shapes = {"x": (64, 512), "h": (128, 512), "b": (512,)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    program = traced(loss, params, jax.ShapeDtypeStruct((64, 128, 64), "float32"))
    rules = Rules(program.graph, _cpu(2))
    slices = SlicedProgram(Inside(rules, NO_LIMITS))
    schedules = program.plain, slices.schedules(2)[0], slices.schedules(4)[0]
    plain, two, four = (StepProgram(rules).loss_timeline(schedule).seconds for schedule in schedules)
    assert 0.8 < two / plain < 1
    assert 1.1 < four / plain < 1.4
