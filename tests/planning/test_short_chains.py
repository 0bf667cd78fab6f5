"""Chains of two layers and up: never behind one or two hand-written ``jax.checkpoint``s around halves or thirds."""

import itertools
import time

import jax
import jax.numpy as jnp
import pytest

from remat_plan import _compat
from remat_plan.cost.memory import evaluate
from remat_plan.planning.strategies.registry import lookup
from remat_plan.plans.one_program import make_plan
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.small.budget import parse_budget
from remat_plan.small.progress import Progress
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.step import GradientStep
from remat_plan.verify.targets import resolve
from tests.helpers import traced

S = jax.ShapeDtypeStruct

FLOPS_SLACK = 1e-3
SECONDS_SLACK = 0.02
"""Where the borders of segments are is up to the plan: element-wise work beside them may be on the one side or the
other, and in arrays as small as these that is up to 2 % of the seconds."""

SCALARS_BYTES = 72 if _compat.drops_checkpoint_barriers() else 64
"""Which scalars of a step have bytes of their own differs from one arrangement of its equations to another: chains of
three and four layers need 8 and 72 bytes more with XLA of jaxlib 0.10 where they are divided otherwise than by hand."""


def tanh(w, x):
    return jnp.tanh(x @ w)


def residual(p, x):
    return x + jax.nn.relu(x @ p[0]) @ p[1]


def norm_mlp(p, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p[0]
    return x + jax.nn.gelu(scaled @ p[1]) @ p[2]


def conv(p, x):
    y = jax.lax.conv_general_dilated(x, p[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    centred = y - y.mean((0, 1, 2))
    return jax.nn.relu(centred * jax.lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5) * p[1] + p[2])


def arguments(layer, count, width):
    """Shapes of the parameters of ``count`` layers, and of what the first one reads."""
    kernels = {
        tanh: S((width, width), "float32"),
        residual: (S((width, 2 * width), "float32"), S((2 * width, width), "float32")),
        norm_mlp: (S((width,), "float32"), S((width, 4 * width), "float32"), S((4 * width, width), "float32")),
        conv: (S((3, 3, width, width), "float32"), S((width,), "float32"), S((width,), "float32")),
    }
    x = S((4, 16, 16, width), "float32") if layer is conv else S((8 * width, width), "float32")
    return [kernels[layer]] * count, x


def loss_of(layer, parts):
    """A loss over layers in parts ``(start, end, whether under one jax.checkpoint)``."""

    def loss(params, x):
        for start, end, checkpointed in parts:

            def run(inner, x):
                for p in inner:
                    x = layer(p, x)
                return x

            x = (jax.checkpoint(run) if checkpointed else run)(params[start:end], x)
        return jnp.sum(x**2)

    return loss


def by_hand(count):
    """One or two ``jax.checkpoint``s around halves or thirds of the layers."""
    for parts in range(2, min(count, 3) + 1):
        borders = [round(i * count / parts) for i in range(parts + 1)]
        for marks in itertools.product((False, True), repeat=parts):
            if 1 <= sum(marks) <= 2:
                yield [*zip(borders[:-1], borders[1:], marks, strict=True)]


def step_of(loss, args):
    """The gradient step of a loss as its author wrote it, and the shapes of its flat arguments."""
    leaves, tree = jax.tree.flatten(args)
    moving = len(jax.tree.leaves(args[0]))
    differentiated = [i < moving for i in range(len(leaves))]
    return GradientStep(lambda *values: [loss(*jax.tree.unflatten(tree, values))], differentiated), tuple(leaves)


def check(layer, count, width):
    """At the compiled peak of each hand-written version: within it, at most its FLOPs and its predicted seconds."""
    args = arguments(layer, count, width)
    program = traced(loss_of(layer, [(0, count, False)]), *args)
    judge = Judge(program, resolve("cpu"), Progress("tests", False))
    candidates = Candidates(judge.rules, judge.progress)
    compared = 0
    for parts in by_hand(count):
        step, leaves = step_of(loss_of(layer, parts), args)
        peak = compile_memory(step, leaves, judge.target).total_bytes
        if peak >= judge.compiled_bytes(judge.baseline):
            continue
        hand = evaluate(jax.make_jaxpr(step)(*leaves), judge.hardware)
        request = Request(lookup("auto"), True, (0,), False, (), "replan")
        plan = make_plan(judge, candidates, parse_budget(peak + SCALARS_BYTES), request, time.perf_counter())
        assert plan.compiled_peak_bytes <= peak + SCALARS_BYTES, parts
        assert plan.step_flops <= hand.flops * (1 + FLOPS_SLACK), parts
        assert judge.traced(plan.schedule).seconds <= hand.seconds * (1 + SECONDS_SLACK), parts
        compared += 1
    return compared


@pytest.mark.parametrize("count", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 6))])
def test_plain_layers(count):
    assert check(tanh, count, 64) > 0


OTHERS = [(residual, 2), (conv, 2), (residual, 3), (norm_mlp, 2), (norm_mlp, 3), (conv, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "count"), OTHERS)
def test_other_layers(layer, count):
    assert check(layer, count, 8 if layer is conv else 32) > 0


def test_two_plain_layers_have_nothing_to_gain():
    """Both residuals are there when the backward pass begins, whoever writes the checkpoints."""
    assert check(tanh, 2, 64) == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("layer", [tanh, residual, norm_mlp, conv])
@pytest.mark.parametrize("count", range(3, 13))
def test_all_lengths(layer, count, width):
    assert check(layer, count, width // 4 if layer is conv else width) > 0
