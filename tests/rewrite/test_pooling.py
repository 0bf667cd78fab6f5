"""Max-pools of planned programs: the same gradients to the bit, in less memory on a CPU, with JAX's own elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.pooling import MOST_OFFSETS, windows_of
from remat_plan.graph.schedule import as_is, saving
from remat_plan.rewrite.emit import Emitter
from remat_plan.rewrite.pooling import run_pooling
from remat_plan.verify.step import GradientStep
from tests.helpers import CPU, assert_trees_close, few, traced, under


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


CASES = [
    ("max", 2, 2, "VALID"),
    ("max", 3, 2, "SAME"),
    ("max", 3, 1, "SAME"),
    ("max", 2, 3, "SAME"),
    ("max", 3, 2, ((0, 0), (2, 1), (1, 2), (0, 0))),
    ("min", 3, 2, "SAME"),
    ("min", 1, 2, "SAME"),
]


FEW = CASES[1], CASES[4], CASES[6]


def pooling(kind, size, stride, padding):
    worst, combine = (-np.inf, lax.max) if kind == "max" else (np.inf, lax.min)
    return lambda x: lax.reduce_window(x, worst, combine, (1, size, size, 1), (1, stride, stride, 1), padding)


def ours(pool):
    def run(x):
        eqn = jax.make_jaxpr(pool)(x).jaxpr.eqns[-1]
        windows = windows_of(eqn)
        assert windows is not None
        return run_pooling(eqn, windows, [x])[0]

    return run


def images(special):
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 13, 12, 3)).astype(np.float32)  # few values: windows with several maxima
    which = rng.random(x.shape)
    return np.where(which < 0.2, np.nan, np.where(which < 0.6, -np.inf, x)).astype(np.float32) if special else x


def pulled(pool):
    return jax.jit(lambda x, cotangent: jax.vjp(pool, x)[1](cotangent)[0])


@pytest.mark.parametrize(
    "special", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["ties", "nan and infinite"]
)
@pytest.mark.parametrize("case", [c if c in FEW else pytest.param(c, marks=pytest.mark.slow) for c in CASES], ids=repr)
def test_gradients_are_equal_to_the_bit(case, special):
    pool, x = pooling(*case), images(special)
    cotangent = np.random.default_rng(1).normal(size=pool(x).shape).astype(np.float32)
    np.testing.assert_array_equal(pulled(ours(pool))(x, cotangent), pulled(pool)(x, cotangent))


K = np.random.default_rng(2).normal(size=(3, 3, 2, 4)).astype(np.float32)
X = np.random.default_rng(3).normal(size=(3, 9, 8, 2)).astype(np.float32)


def layer(pool, k, x):
    y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return pool(jax.nn.relu(y))


def loss(k, x):
    return jnp.sum(jnp.sin(layer(pooling("max", 3, 2, "SAME"), k, x)))


TRANSFORMS = {
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad": jax.grad,
    "vmap of grad": lambda f: lambda k, x: jax.vmap(jax.grad(f), (None, 0))(k, jnp.stack([x, 2 * x])),
    "grad of vmap": lambda f: jax.grad(lambda k, x: jnp.sum(jax.vmap(f, (None, 0))(k, jnp.stack([x, 2 * x])))),
    "jvp": lambda f: lambda k, x: jax.jvp(f, (k, x), (k, x)),
    "grad of grad": lambda f: jax.grad(lambda k, x: jnp.vdot(jax.grad(f)(k, x), k)),
    "jvp of grad": lambda f: lambda k, x: jax.jvp(jax.grad(f), (k, x), (k, x)),
}


@pytest.mark.parametrize("name", few(TRANSFORMS, ["jvp", "grad of grad"]))
def test_transforms(name):
    program = traced(loss, K, X)
    planned = under(program, (saving(0, len(program.graph.ops)),))
    assert_trees_close(TRANSFORMS[name](planned)(K, X), TRANSFORMS[name](loss)(K, X))


def test_temporaries_of_the_gradient_alone():
    """The figures of ``rewrite.pooling``: 0.25 times what is pooled for the cotangent, 0.06 for the offsets."""
    pool, x = pooling("max", 2, 2, "VALID"), struct(8, 56, 56, 64)

    def temporaries(pool):
        compiled = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))).lower(x).compile()
        return compiled.memory_analysis().temp_size_in_bytes / (4 * x.size)

    assert temporaries(pool) > 5
    assert temporaries(ours(pool)) < 0.35


def network(params, x):
    for block in params:
        for k in block:
            x = layer(lambda y: y, k, x)
        x = pooling("max", 2, 2, "VALID")(x)
    return jnp.mean(x * x)


PARAMS = [[struct(3, 3, 3, 32), struct(3, 3, 32, 32)], [struct(3, 3, 32, 32), struct(3, 3, 32, 32)]]
IMAGES = struct(16, 64, 64, 3)


def blocks(program):
    """One segment up to each pooling, the rest plain."""
    ends = [op.index + 1 for op in program.graph.ops if op.primitive == "reduce_window_max"]
    segments = [saving(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return (*segments, as_is(ends[-1], len(program.graph.ops)))


def step_of(program, schedule):
    emitter = Emitter(program.graph, schedule)
    return GradientStep(lambda *values: emitter(values), program.call.differentiated)


@pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")
def test_memory_is_that_of_segments_and_not_of_indices():
    """XLA's own gradient of the first pooling holds index arrays of 4 x 8.4 MB from the start of the program."""
    program = traced(network, PARAMS, IMAGES)
    schedule = blocks(program)
    found = jax.jit(step_of(program, schedule)).lower(*program.call.structs).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    predicted = StepProgram(Rules(program.graph, CPU)).loss_timeline(schedule).peak_bytes
    assert predicted == pytest.approx(compiled, rel=0.08)
    plain = StepProgram(Rules(program.graph, CPU)).loss_timeline((as_is(0, len(program.graph.ops)),)).peak_bytes
    assert compiled < 0.6 * plain


def lowered(program, schedule, platform):
    step = jax.jit(step_of(program, schedule)).trace(*program.call.structs)
    return step.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(("platform", "scatters"), [("cpu", 0), ("cuda", 2), ("tpu", 2)])
def test_other_platforms_keep_the_gradient_of_jax(platform, scatters):
    program = traced(network, PARAMS, IMAGES)
    assert lowered(program, blocks(program), platform).count('"stablehlo.select_and_scatter"') == scatters


def test_plain_programs_stay_as_they_are():
    program = traced(network, PARAMS, IMAGES)
    text = lowered(program, (as_is(0, len(program.graph.ops)),), "cpu")
    assert text.count('"stablehlo.select_and_scatter"') == 2
    assert "optimization_barrier" not in text


def test_large_windows_are_left_to_the_compiler():
    side = int(MOST_OFFSETS**0.5)
    x = np.zeros((1, side + 1, side + 1, 1), np.float32)
    eqns = [jax.make_jaxpr(pooling("max", size, 1, "VALID"))(x).jaxpr.eqns[-1] for size in (side, side + 1)]
    assert [windows_of(eqn) is None for eqn in eqns] == [False, True]
