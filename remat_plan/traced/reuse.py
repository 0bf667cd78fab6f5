"""Running again what was emitted once.

In: a traced call, and who knows its schedule. Out: what the function returns.

A planned function is traced on every call that JAX makes, as a plain one is, so values that it closes over may change
between calls. What follows tracing need not be done again: where the trace is the same program as an earlier one
(``graph.equal``, to the last parameter), the jaxpr that the schedule was emitted as is run, on the new arguments and
the new constants. JAX then finds its own derivatives of the segments in its caches, because they are the same
objects. So the layers of a model share one emission, and a planned step is traced in less time than a plain one.

Nothing is kept where a trace, or a custom derivative in it, closes over tracers, or while JAX checks for leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.call import struct_of
from remat_plan.graph.equal import Source, same_program
from remat_plan.graph.schedule import Schedule
from remat_plan.rewrite.emit import as_array
from remat_plan.small.recent import Recent
from remat_plan.traced.programs import Program, Runner, Traced, make_program, make_runner, run_schedule

MOST_SHAPES = 64
"""Of how many programs (input shapes) of one function the emissions are kept, and of one step what was fitted."""


_options_asked = False


def note_options_asked() -> None:
    """Note that the program asked for the compiler's options (``rp.compiler_options``): it need not be told of them."""
    global _options_asked
    _options_asked = True


def warn_where_undone(schedule: Schedule) -> None:
    """Warn that a schedule saves nothing with default options: unrolled segments on XLA:CPU of an old jaxlib."""
    unrolled = any(segment.checkpointed for segment in schedule)
    if not _options_asked and unrolled and _compat.drops_checkpoint_barriers() and jax.default_backend() == "cpu":
        version = ".".join(map(str, _compat.jaxlib_version()))
        _compat.warn(
            f"XLA:CPU of jaxlib {version} undoes jax.checkpoint outside of loops, so that a plan saves nothing unless "
            "the step is compiled with one option: jax.jit(step, compiler_options=remat_plan.compiler_options()). "
            "rp.fit does that; jaxlib 0.11.1 and newer, and other devices, do not need it."
        )


def run_as_traced(traced: Traced) -> Any:
    """Run a traced call as the plain function, while JAX looks for random keys that are used twice.

    Recomputation uses keys twice by its nature: the masks of the backward pass are those of the forward pass.
    """
    _compat.warn(
        "remat_plan: while jax_debug_key_reuse is on, functions with random keys run without recomputation, since that "
        "would use keys twice. Keys are checked, but no memory is saved."
    )
    outputs = _compat.as_function(traced.jaxpr)(*map(_as_operand, traced.call.leaves))
    return jax.tree.unflatten(traced.output_tree, [as_array(x) for x in outputs])


class Emissions:
    """What was emitted for one function, under the schedules that ``schedule_of`` finds, once per program.

    ``existing`` is what becomes of the user's own ``jax.checkpoint`` regions; ``prevent_cse`` is for the segments.
    """

    def __init__(self, schedule_of: Callable[[Program], Schedule], existing: str, prevent_cse: bool = True):
        self.schedule_of, self.existing, self.prevent_cse = schedule_of, existing, prevent_cse
        self.kept: Recent[object, tuple[Any, Source, Callable[..., list[Any]]]] = Recent(MOST_SHAPES)

    def __call__(self, traced: Traced) -> Any:
        """Run a traced call under its schedule, on its own arguments."""
        if _compat.checks_keys(traced.jaxpr):
            return run_as_traced(traced)
        constants = _compat.open_jaxpr(traced.jaxpr)[1]
        if any(map(_compat.is_tracer, constants)) or _compat.checking_leaks():
            program = make_program(traced, self.existing)
            return run_schedule(program, self.schedule_of(program), self.prevent_cse)
        key = (traced.is_loss, traced.call.differentiated, traced.call.layout, _compat.trace_context())
        source = Source(traced.jaxpr)
        run = self.find(key, source)
        if run is None:
            program = make_program(traced, self.existing)
            runner = make_runner(program, self.schedule_of(program), self.prevent_cse)
            run = emit(program, runner, constants)
            if source.outlives_its_trace():
                self.kept.keep(object(), (key, source, run))
        values = *map(_as_operand, traced.call.leaves), *map(as_array, constants)
        return jax.tree.unflatten(traced.output_tree, [as_array(x) for x in run(*values)])

    def find(self, key: Any, source: Source) -> Callable[..., list[Any]] | None:
        """The emission of the same program, if there is one: from flat arguments and constants to flat outputs."""
        for number, (other, known, run) in self.kept.latest_first():
            if other == key and same_program(known, source):
                self.kept.use(number)
                return run
        return None


def emit(program: Program, runner: Runner, constants: Sequence[Any]) -> Callable[..., list[Any]]:
    """Return an emitted program as a function of flat arguments and of the constants of its outermost jaxpr."""
    count = len(program.call.leaves)
    inner = [value for _, value in program.graph.constants[len(constants) :]]  # flattening meets the outermost first

    def run(*values: Any) -> list[Any]:
        return runner(values[:count], [*values[count:], *inner])

    return _compat.as_function(jax.make_jaxpr(run)(*program.call.types, *map(struct_of, constants)))


def _as_operand(value: Any) -> Any:
    """Make arrays of Python numbers, which a jaxpr does not take; they stay weakly typed."""
    return value if hasattr(value, "dtype") else jax.numpy.asarray(value)
