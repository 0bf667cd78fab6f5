"""Ways to run a region: what each costs, which are worth a look, and layers written out inside a branch."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import remat_plan as rp
from remat_plan.cost.price import price
from remat_plan.graph.schedule import as_is, closed, saving
from remat_plan.structures.regions import Way, worth_having
from remat_plan.structures.scan_choices import partly_grouped

S = jax.ShapeDtypeStruct
LAYERS = [S((64, 256), "float32"), S((256, 64), "float32")]
BRANCH = ([LAYERS] * 6, S((2048, 64), "float32"))


def test_what_another_way_beats_in_every_respect_is_left_out():
    small, quick, beaten = Way((), 1, 9, 3.0), Way((), 5, 2, 1.0), Way((), 6, 2, 1.0)
    assert worth_having([beaten, quick, small]) == [small, quick]
    needs_less = Way((), 6, 1, 1.0)
    assert worth_having([needs_less, quick, small]) == [small, quick, needs_less]


def test_seconds_below_the_plain_ones_count_and_of_equal_ones_the_work():
    assert price(0.5, 1.0, 1.0, 1.0) < price(1.0, 1.0, 1.0, 1.0)
    assert price(0.5, 1.0, 1.0, 1.0) < price(0.5, 2.0, 1.0, 1.0)


def test_a_closed_schedule_leaves_nothing_as_it_is_at_its_end():
    assert closed((saving(0, 2), as_is(2, 3), saving(3, 5))) == (saving(0, 2), as_is(2, 3), saving(3, 5))
    assert closed((as_is(0, 4),)) == (saving(0, 4),)


def test_the_last_steps_of_a_partly_grouped_scan_are_in_no_group():
    first, last = partly_grouped(12, 4, (as_is(0, 1),), 4).parts
    assert (first.count, first.groups, last.count, last.groups) == (8, (2,), 4, ())


def layer(p, x):
    return x + jax.nn.gelu(x @ p[0]) @ p[1]


def loss_with(one):
    def deep(params, x):
        for p in params:
            x = one(p, x)
        return x

    return lambda params, x: jnp.sum(lax.cond(x[0, 0] > 0, deep, lambda params, x: x, params, x) ** 2)


@pytest.fixture(scope="module")
def by_hand():
    return rp.plan(loss_with(jax.checkpoint(layer)), *BRANCH, budget="100%", target="cpu", existing="keep")


@pytest.mark.slow
def test_layers_in_a_branch_are_segments_of_their_own(by_hand):
    """At the peak of ``jax.checkpoint`` on each layer of the branch."""
    plan = rp.plan(loss_with(layer), *BRANCH, budget=by_hand.written_peak_bytes, target="cpu")
    assert by_hand.written_peak_bytes < 0.7 * plan.written_peak_bytes
    assert plan.compiled_peak_bytes <= by_hand.written_peak_bytes
    assert plan.step_flops <= 1.02 * by_hand.step_flops


def test_each_block_of_a_branch_is_what_a_person_writes(by_hand):
    plan = rp.plan(loss_with(layer), *BRANCH, strategy="each_block", target="cpu")
    assert plan.compiled_peak_bytes <= by_hand.written_peak_bytes
    assert plan.step_flops <= by_hand.step_flops


@pytest.mark.slow
def test_a_part_of_the_steps_is_recomputed_where_a_step_has_nothing_to_trade():
    """Recurrent nets side by side: between all of them again and none."""

    def net(w, xs):
        def step(h, x):
            h = jnp.tanh(x @ w[0] + h @ w[1])
            return h, h

        return jnp.sum(lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1] ** 2)

    arguments = [(S((256, 256), "float32"),) * 2] * 4, S((1024, 64, 256), "float32")
    plan = rp.plan(lambda ws, xs: sum(net(w, xs) for w in ws), *arguments, budget="60%", target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.step_flops <= 1.25 * plan.plain_flops
