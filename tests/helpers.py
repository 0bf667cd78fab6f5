"""What several tests need: programs under many schedules, and comparing gradients.

Imported as ``from tests.helpers import ...`` (the repository root is on the path).
"""

import contextlib
import functools
import importlib.util
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remat_plan._compat import open_jaxpr, sub_jaxprs
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.graph.schedule import around, as_is, saving
from remat_plan.graph.uses import free_ops
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.planner import Planner
from remat_plan.planning.runs import make_run, op_seconds, segment_problem
from remat_plan.rewrite.emit import Emitter
from remat_plan.search import candidates, front
from remat_plan.traced.programs import Program, trace_program

CPU = Hardware("cpu", 1.0e11, 2.5e10, 2.0e10)
"""A CPU by three rates, the same on every machine."""
REMAT3 = bool(getattr(jax.config, "jax_remat3", False))
"""Whether ``jax.checkpoint`` is the one that is to become JAX's default."""


CUDA = "jax_plugins.xla_cuda12"
"""What XLA's compiler for GPUs comes in."""


def has_module(name: str) -> bool:
    """Tell whether a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def few(cases, keep):
    """Cases of a parametrised test, of which all but those in ``keep`` are left to the slow tests."""
    return [
        case if case in keep else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


@contextlib.contextmanager
def searching_quickly():
    """Nothing is refined, in programs of any size: what doors do with a plan does not hang on how good it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_WAYS_STEPS", 0)
        patch.setattr(candidates, "is_small", lambda graph: False)
        yield


def traced(fn, *args, argnums=0, has_aux=False, static_argnums=(), existing="replan", kwargs=None) -> Program:
    """The program of a loss function."""
    return trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)


def sine_by_rule(keeps_operand):
    """A sine with a derivative of its own, which reads the operand or the result: the same program but for the rule."""

    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    @sine.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        y = sine(x)
        return y, t * (x if keeps_operand else y)

    return sine


def under(program, schedule):
    """The program under a schedule, as a function of its flat values that returns what the function returns."""
    emitter = Emitter(program.graph, schedule)

    def run(*leaves):
        return jax.tree.unflatten(program.output_tree, emitter(leaves))

    return run


def all_points(program):
    """Every schedule of the planner."""
    return [c[i] for c in Planner(program.graph, Rules(program.graph, CPU)).curves for i in range(len(c.points))]


def planner_schedules(program, limit=6):
    """Schedules of the planner, about ``limit`` of each curve, the least and the most memory among them."""
    found = []
    for curve in Planner(program.graph, Rules(program.graph, CPU)).curves:
        last = len(curve.points) - 1
        chosen = sorted({round(i * last / max(limit - 1, 1)) for i in range(limit)}) if last >= 0 else []
        found += [curve[i] for i in chosen]
    return list(dict.fromkeys(found))


def whole_problem(program):
    """The whole program as one run, and as one minimum-cut problem."""
    graph = program.graph
    cuts = find_cuts(graph)
    run = make_run(graph, cuts, 0, len(cuts.positions) - 1)
    return run, segment_problem(graph, run, op_seconds(graph, CPU))


def stretches(graph):
    """Longest ranges of equations without effects, and single equations with them: (start, end, effectful)."""
    found = []
    start = 0
    for op in graph.ops:
        if op.effectful:
            found += [(start, op.index, False), (op.index, op.index + 1, True)]
            start = op.index + 1
    found.append((start, len(graph.ops), False))
    return [(s, e, x) for s, e, x in found if e > s]


def tiled(graph, make):
    """A schedule with ``make(start, end) -> [Segment]`` on each stretch without effects."""
    result = []
    for start, end, effectful in stretches(graph):
        result += [as_is(start, end)] if effectful else make(start, end)
    return tuple(result)


def saveable(graph, start, end):
    """Values that a segment may save, as the planner has it: arrays not made from literals only."""
    free = free_ops(graph)
    ops = [op for op in graph.ops[start:end] if op.index not in free]
    return [v for op in ops for v in op.outputs if hasattr(graph.values[v].aval, "shape")]


def whole(program, saved=()):
    """One segment over everything (between effects)."""
    graph = program.graph
    return tiled(
        graph,
        lambda s, e: [saving(s, e, [v for v in saveable(graph, s, e) if v in set(saved)])],
    )


def everything_saved(program):
    """One segment that saves all of its values."""
    return whole(program, saveable(program.graph, 0, len(program.graph.ops)))


def cut_every(program, length):
    """Segments of ``length`` equations that save nothing."""

    def make(start, end):
        return [saving(i, min(i + length, end)) for i in range(start, end, length)]

    return tiled(program.graph, make)


def halved(program, least=3):
    """Recursive halves: a nest in a nest, down to ``least`` equations."""

    def make(start, end):
        if end - start <= least:
            return [saving(start, end)]
        middle = (start + end) // 2
        return [around(start, middle, tuple(make(start, middle))), *make(middle, end)]

    return tiled(program.graph, make)


def random_schedule(program, seed):
    """A random tree of segments with random saved values."""
    rng = random.Random(seed)
    graph = program.graph

    def make(start, end, depth=0):
        count = rng.randint(1, min(4, end - start))
        cuts = sorted({start, end, *(rng.randint(start, end) for _ in range(count - 1))})
        result = []
        for s, e in zip(cuts, cuts[1:], strict=False):
            kind = rng.choice(["plain", "save", "save", "nest" if depth < 3 and e - s > 1 else "save"])
            if kind == "nest":
                result.append(around(s, e, tuple(make(s, e, depth + 1))))
            elif kind == "save":
                share = rng.choice([0.0, 0.3, 0.6, 1.0])
                saved = tuple(v for v in saveable(graph, s, e) if rng.random() < share)
                result.append(saving(s, e, saved))
            else:
                result.append(as_is(s, e))
        return result

    return tiled(graph, make)


def many_schedules(program, seeds=range(2), limit=2):
    """Schedules of all kinds for one program; none of the planner's, which take most of the time, for a limit of 0."""
    found = [
        whole(program),
        everything_saved(program),
        cut_every(program, 3),
        halved(program),
        *(planner_schedules(program, limit) if limit else ()),
        *(random_schedule(program, s) for s in seeds),
    ]
    return list(dict.fromkeys(found))


def count_equations(jaxpr, name):
    """How often a primitive stands in a jaxpr and in the jaxprs of its equations, loops counted once."""
    inner = [open_jaxpr(j)[0] for e in jaxpr.eqns for j in sub_jaxprs(e.params)]
    return sum(e.primitive.name == name for e in jaxpr.eqns) + sum(count_equations(j, name) for j in inner)


def assert_trees_close(got, want, rtol=2e-5, atol=2e-6):
    """Compare two pytrees: structure, dtypes, shapes, values."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jax.dtypes.issubdtype(getattr(b, "dtype", np.float32), jax.dtypes.extended):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a_dtype, b_dtype = getattr(a, "dtype", None), getattr(b, "dtype", None)
        assert a_dtype == b_dtype or b_dtype is None
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        if a.dtype.kind not in "fc" and a.dtype.name != "bfloat16":
            np.testing.assert_array_equal(a, b)
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        scale = max(float(np.max(np.abs(b), initial=0.0)), 1.0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * scale)


def flat_gradient(program, schedule):
    """``value_and_grad`` of the program under a schedule, of its differentiated leaves."""
    numbers = tuple(i for i, d in enumerate(program.call.differentiated) if d)
    run = under(program, schedule)

    def loss(*leaves):
        out = run(*leaves)
        return (out, None) if jax.tree.structure(out).num_leaves == 1 and not isinstance(out, tuple) else out

    return jax.value_and_grad(loss, argnums=numbers, has_aux=True)


def plain_gradient(program):
    """``value_and_grad`` of the user's function itself, on the same flat values."""
    numbers = tuple(i for i, d in enumerate(program.call.differentiated) if d)

    def loss(*leaves):
        out = program.call.flat_fn(*leaves)
        return (out, None) if jax.tree.structure(out).num_leaves == 1 and not isinstance(out, tuple) else out

    return jax.value_and_grad(loss, argnums=numbers, has_aux=True)


def check_schedules(fn, *args, seeds=range(2), limit=2, rtol=2e-5, atol=2e-6, jit=False, **options):
    """Compare value, aux and gradients of a function under many schedules with the function itself.

    Returns the program, for further questions.
    """
    program = traced(fn, *args, **options)
    leaves = program.call.leaves
    wrap = functools.partial(jax.jit) if jit else (lambda f: f)
    want = wrap(plain_gradient(program))(*leaves)
    for schedule in many_schedules(program, seeds, limit):
        got = wrap(flat_gradient(program, schedule))(*leaves)
        assert_trees_close(got, want, rtol, atol)
    return program
