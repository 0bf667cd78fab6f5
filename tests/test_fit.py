"""Whole training steps that fit: values, peaks, reports, errors."""

import functools
import json

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_plan as rp
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import assert_trees_close

pytestmark = pytest.mark.usefixtures("quick_search")

WIDTH, LAYERS, ROWS = 64, 8, 2048
ADAM = optax.adamw(1e-2)


def mean_loss(params, batch):
    x, target = batch
    for w, b in params:
        x = x + jnp.tanh(x @ w + b)
    return jnp.mean((x - target) ** 2)


def make_state(layers=LAYERS):
    keys = jax.random.split(jax.random.key(0), layers)
    params = [(jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH, jnp.zeros(WIDTH)) for k in keys]
    return params, ADAM.init(params)


def make_batch(rows=ROWS):
    x = jax.random.normal(jax.random.key(1), (rows, WIDTH))
    return x, jnp.roll(x, 1, 0)


def step_with(wrap, loss=mean_loss):
    def train_step(state, batch):
        params, opt = state
        value, grads = jax.value_and_grad(wrap(loss))(params, batch)
        updates, opt = ADAM.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), {
            "loss": value,
            "norm": jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))),
        }

    return train_step


def plainly(f):
    return f


@functools.cache
def fitted(budget="50%"):
    return rp.fit(step_with(rp.remat), make_state(), make_batch(), budget=budget, donate_argnums=0)


def test_the_step_fits_and_does_the_same():
    step = fitted()
    report = step.report
    assert report.planned.peak_bytes <= report.budget_bytes == int(0.5 * report.plain.peak_bytes)
    assert report.compiles <= 5
    state, want = make_state(), make_state()
    for _ in range(2):
        state, metrics = step(state, make_batch())
        want, wanted = jax.jit(step_with(plainly))(want, make_batch())
        assert_trees_close(metrics, wanted, 1e-4)
    assert_trees_close(state, want, 1e-3, 1e-4)


def test_what_is_said_is_what_is_run():
    """The lowered step, compiled, needs what the report says; the one without marks what it says of it."""
    step, args = fitted(), (make_state(), make_batch())
    options = {"xla_backend_optimization_level": 0}
    compiled = step.lower(*args).compile(compiler_options={**options, **rp.compiler_options()})
    stats = compiled.memory_analysis()
    own = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    assert abs(own + stats.temp_size_in_bytes - step.report.planned.peak_bytes) < 1000  # scalars that are constants
    plain = compile_memory(step_with(plainly), args, resolve(None), donate_argnums=(0,))
    assert plain.total_bytes == step.report.plain.peak_bytes


def test_arguments_are_told_apart():
    report = fitted().report
    params, opt = make_state()
    sizes = [sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (params, opt, make_batch())]
    assert [report.parameter_bytes, report.optimizer_bytes, report.batch_bytes] == sizes
    assert report.gradient_bytes == sizes[0]
    assert report.plain.donated_bytes == sizes[0] + sizes[1]
    planned = report.planned
    assert planned.peak_bytes == planned.argument_bytes + planned.result_bytes + planned.temporary_bytes


@pytest.mark.slow
def test_more_memory_costs_no_more():
    steps = [fitted(budget) for budget in ("90%", "70%", "50%")]
    overheads = [step.report.overhead for step in steps]
    assert overheads == sorted(overheads)
    assert all(step.report.planned.peak_bytes <= step.report.budget_bytes for step in steps)


def test_a_budget_above_the_peak_leaves_the_step_as_it_is():
    report = fitted("120%").report
    assert report.planned == report.plain
    assert report.overhead == report.compiled_overhead == 0.0
    assert "unchanged" in report.notes[0]


@pytest.mark.slow
def test_accumulation_is_told_of_where_it_would_be_cheaper():
    assert not any("rp.accumulate" in note for note in fitted("80%").report.notes)
    report = fitted("40%").report
    assert report.overhead > 0.1
    assert report.compiled_overhead not in (None, 0.0)
    (note,) = [note for note in report.notes if "rp.accumulate" in note]
    slices = int(note.split("over ")[1].split()[0])

    def train_step(state, batch):
        params, opt = state
        value, grads = rp.accumulate(jax.value_and_grad(mean_loss), slices)(params, batch)
        updates, opt = ADAM.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    sliced = compile_memory(train_step, (make_state(), make_batch()), resolve(None), donate_argnums=(0,))
    assert sliced.total_bytes <= 1.1 * report.budget_bytes


def test_the_least_budget_can_be_met():
    told = r"below the lowest compiled peak .* The step holds .*\(rp\.accumulate\)"
    fit = functools.partial(rp.fit, step_with(rp.remat), make_state(4), make_batch(), donate_argnums=0)
    with pytest.raises(rp.BudgetError, match=told) as caught:
        fit(budget=1000)
    least = fit(budget=caught.value.minimum_bytes).report
    assert least.planned.peak_bytes <= caught.value.minimum_bytes


def test_a_mark_with_a_budget_of_its_own_is_what_is_refused():
    own = functools.partial(rp.remat, budget="2%", verify=False)
    with pytest.raises(rp.BudgetError, match=r"has its own budget .* that budget which cannot be met") as caught:
        rp.fit(step_with(own), make_state(), make_batch(), budget="90%")
    assert "2.0% of the" in str(caught.value)
    assert caught.value.budget_bytes < caught.value.minimum_bytes


@pytest.mark.slow
def test_other_shapes_are_fitted_anew():
    step = rp.fit(step_with(rp.remat), make_state(4), make_batch(2048), budget="80%")
    first = step.report
    _, metrics = step(make_state(4), make_batch(256))
    _, wanted = jax.jit(step_with(plainly))(make_state(4), make_batch(256))
    assert_trees_close(metrics, wanted, 1e-4)
    assert step.report is first


@pytest.mark.slow
def test_a_step_that_is_jitted_and_one_that_accumulates():
    def accumulating(wrap):
        @jax.jit
        def train_step(state, batches):
            params, opt = state

            def add(total, batch):
                value, grads = jax.value_and_grad(wrap(mean_loss))(params, batch)
                return jax.tree.map(jnp.add, total, grads), value

            grads, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
            updates, opt = ADAM.update(grads, opt, params)
            return (optax.apply_updates(params, updates), opt), values

        return train_step

    batches = jax.tree.map(lambda x: jnp.stack([x, x]), make_batch())
    step = rp.fit(accumulating(rp.remat), make_state(), batches, budget="50%", donate_argnums=0)
    assert step.report.planned.peak_bytes <= step.report.budget_bytes
    want = accumulating(plainly)(make_state(), batches)
    assert_trees_close(step(make_state(), batches), want, 1e-3, 1e-4)


@pytest.mark.slow
def test_several_marks():
    def half(params, x):
        for w, b in params:
            x = x + jnp.tanh(x @ w + b)
        return x

    def two_losses(wrap):
        def train_step(state, batch):
            actor, critic = (wrap(lambda p, x, k=k: jnp.mean(half(p, x) ** k)) for k in (2, 4))
            grads = jax.tree.map(jnp.add, jax.grad(actor)(state, batch), jax.grad(critic)(state, batch))
            return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

        return train_step

    params, x = make_state(5)[0], make_batch()[0]
    step = rp.fit(two_losses(rp.remat), params, x, budget="70%", donate_argnums=0)
    assert len(step.plans) == step.report.marks == 2
    assert step.report.planned.peak_bytes <= step.report.budget_bytes
    assert_trees_close(step(params, x), two_losses(plainly)(make_state(5)[0], x), 1e-4, 1e-5)


@pytest.mark.slow
def test_own_checkpoints_are_planned_anew():
    def with_own(params, batch):
        x, target = batch
        for layer in params:
            x = jax.checkpoint(lambda x, p: x + jnp.tanh(x @ p[0] + p[1]))(x, layer)
        return jnp.mean((x - target) ** 2)

    args = make_state(), make_batch()
    peak = compile_memory(step_with(plainly, with_own), args, resolve(None), donate_argnums=(0,)).total_bytes
    step = rp.fit(step_with(rp.remat, with_own), *args, budget=peak, donate_argnums=0)
    assert step.report.plain.peak_bytes == peak
    assert step.report.planned.peak_bytes <= peak
    assert step.plan.step_flops <= step.plan.written_flops


@pytest.mark.parametrize("scanned", [False, True])
def test_marked_layers_need_no_more_than_by_hand(scanned):
    def layer(x, w):
        return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T)

    def step_of(wrap):
        def loss(params, x):
            if scanned:
                x = jax.lax.scan(lambda x, w: (wrap(layer)(x, w), None), x, params)[0]
            for w in () if scanned else params:
                x = wrap(layer)(x, w)
            return jnp.mean(x**2)

        return lambda params, x: jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params, x))

    args = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, 4 * WIDTH)) / WIDTH, make_batch()[0]
    wraps = jax.checkpoint, plainly
    by_hand, plain = (compile_memory(step_of(wrap), args, resolve(None)).total_bytes for wrap in wraps)
    step = rp.fit(step_of(rp.mark), *args, budget=by_hand + 1000)
    assert by_hand < 0.6 * plain
    assert step.report.planned.peak_bytes <= by_hand + 1000
    assert_trees_close(step(*args), jax.jit(step_of(plainly))(*args), 1e-4, 1e-5)


def test_static_arguments_and_leaves_that_are_no_arrays():
    def train_step(state, x, layers, names):
        assert isinstance(layers, int)
        value, grads = jax.value_and_grad(rp.remat(lambda p: jnp.sum(state["apply"](p, x) ** 2)))(state["params"])
        return {**state, "params": jax.tree.map(lambda p, g: p - g, state["params"], grads)}, names, value

    def apply(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return x

    state = {"apply": apply, "params": [jnp.eye(WIDTH)] * 4}
    step = rp.fit(train_step, state, jnp.ones((512, WIDTH)), 3, {"a": "text"}, budget="90%", static_argnums=2)
    new, names, _ = step(state, jnp.ones((512, WIDTH)), 3, {"a": "text"})
    assert new["apply"] is apply
    assert names == {"a": "text"}


@pytest.mark.slow
def test_shapes_are_enough_and_other_devices_are_compiled_for():
    structs = jax.eval_shape(lambda: (make_state(), make_batch()))
    report = rp.fit(step_with(rp.remat), *structs, budget="50%", donate_argnums=0).report
    assert report.planned == fitted().report.planned


def test_a_step_without_a_mark_is_told_what_to_mark():
    def my_loss(params, batch):
        return mean_loss(params, batch)

    with pytest.raises(ValueError, match=r"are values of my_loss, called at test_fit\.py:\d+\. .*rp\.mark\(my_loss\)"):
        rp.fit(step_with(plainly, my_loss), make_state(), make_batch(), budget="50%")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"budget": "nonsense"}, ValueError, "is not understood"),
        ({"donate_argnums": 4}, ValueError, r"donate_argnums=\(4,\): the function gets 2"),
        ({"donate_argnums": 0, "static_argnums": 0}, ValueError, "argument 0 is in both static_argnums and donate_"),
        ({"donate_argnums": "state"}, TypeError, "positions of arguments are integers"),
        ({"target": "gpu:h1000"}, ValueError, "h1000"),
    ],
)
def test_bad_arguments(changes, error, text):
    with pytest.raises(error, match=text):
        rp.fit(step_with(rp.remat), make_state(), make_batch(), **{"budget": "50%", **changes})


def test_no_function_and_no_arguments():
    with pytest.raises(TypeError, match=r"rp\.fit needs a function, not int"):
        rp.fit(3, make_state(), budget="50%")
    with pytest.raises(ValueError, match="no arguments"):
        rp.fit(step_with(rp.remat), budget="50%")


def test_reports_are_shown():
    report = fitted().report
    text = str(report)
    assert "optimizer state" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "<td" in report._repr_html_()
    assert any("budget" in text.get_text() for text in report.plot().get_legend().get_texts())
    assert json.loads(report.to_json())["planned"]["peak_bytes"] == report.planned.peak_bytes
    assert repr(report).startswith("<StepReport of train_step for cpu: ")
    assert "whole step train_step" in str(fitted().plan)


def test_outside_a_step_a_mark_is_the_strategy_memory():
    params, batch = make_state()[0], make_batch()
    assert_trees_close(jax.grad(rp.remat(mean_loss))(params, batch), jax.grad(mean_loss)(params, batch), 1e-4)
