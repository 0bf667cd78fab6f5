"""What the certificate counts, on programs whose bound can be told by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.whole_step import StepProgram
from remat_plan.planning.certificate import instants, least_overhead, lent_bytes, surely_needed
from remat_plan.planning.cuts import find_cuts
from tests.helpers import traced

DEVICE = Hardware("nobody", 1e12, 1e12, 1e15)
ROWS, WIDTH, LAYERS = 4096, 64, 8
VALUE_BYTES = 4 * ROWS * WIDTH
PRODUCT_SECONDS = 2 * ROWS * WIDTH * WIDTH / 1e12
S = jax.ShapeDtypeStruct
W, X = S((LAYERS, WIDTH, WIDTH), "float32"), S((ROWS, WIDTH), "float32")


def unrolled(w, x):
    for k in range(LAYERS):
        x = jnp.tanh(x @ w[k])
    return jnp.sum(x)


def scanned(w, x):
    return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0])


def bound_seconds(fn, temporary_bytes, *args):
    program = traced(fn, *args)
    rules = Rules(program.graph, DEVICE)
    plain = StepProgram(rules).loss_timeline(program.plain)
    budget = plain.argument_bytes + plain.output_bytes + temporary_bytes
    return plain.seconds * least_overhead(rules, find_cuts(program.graph), plain, budget)


def test_products_that_are_not_kept_run_again():
    """Of 8 results 3 fit beside the cotangent and the gradient of the last product: of the 7 before it 4 do not."""
    room = 5 * VALUE_BYTES
    assert bound_seconds(unrolled, room, W, X) == pytest.approx(4 * PRODUCT_SECONDS, rel=0.01)


def test_steps_of_a_scan_count_as_layers_do():
    """The instants of products inside are not known, so all 8 results share 3 places."""
    lent = lent_bytes(Rules(traced(scanned, W, X).graph, DEVICE))
    room = 3 * VALUE_BYTES - lent
    assert bound_seconds(scanned, room, W, X) == pytest.approx(5 * PRODUCT_SECONDS, rel=0.01)


def test_what_does_not_depend_on_the_carry_is_made_once():
    """The product of constants may be hoisted out of the loop, so that its result is neither kept nor made each time."""

    def loss(w, x):
        def step(carry, _):
            return carry * jnp.tanh(x @ w[0]), None

        return jnp.sum(lax.scan(step, x, None, length=LAYERS)[0])

    assert bound_seconds(loss, 0, W, X) == 0.0


def test_an_output_lends_room_for_one_value_that_fits():
    def loss(small, large, x):
        return jnp.sum(jnp.tanh(x @ small) @ large)

    shapes = S((64, 64), "float32"), S((64, 8192), "float32"), S((1024, 64), "float32")
    program = traced(loss, *shapes, argnums=(0, 1))
    largest_that_fits = 4 * 1024 * 64  # not the 1024 x 8192 product, and nothing at all into the smaller gradient
    assert lent_bytes(Rules(program.graph, DEVICE)) == largest_that_fits + 4 + 4  # and the loss in two of them


def test_a_smaller_stand_in_for_a_residual_lifts_the_need():
    """A function's own rule may keep one number where its operand would do; then the operand is not needed."""

    @jax.custom_vjp
    def scaled(x):
        return x * jnp.max(x)

    scaled.defvjp(lambda x: (scaled(x), jnp.max(x)), lambda kept, g: (g * kept,))
    graph = traced(lambda w: jnp.sum(scaled(jnp.sin(w))), W).graph
    (op,) = [op for op in graph.ops if op.primitive.startswith("custom_vjp")]
    assert graph.needs[op.kind].operands
    assert surely_needed(graph, op) == []


def test_instants_hold_a_cotangent_and_a_gradient():
    program = traced(unrolled, W, X)
    (held, later), *more = instants(Rules(program.graph, DEVICE))
    assert held == 2 * VALUE_BYTES
    assert sum(op.primitive == "dot_general" for op in later) == LAYERS - 1
    assert not more, "no other product is larger"
