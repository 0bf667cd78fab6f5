"""Running a program under a schedule: nested ``jax.checkpoint`` with named values.

In: ``Graph``, the tree of ``Segment``. Out: a function of flat values that computes what the program computes.

A segment is a function of the values that it reads; it returns the values that are used after it. Its policy is
data: saved values are tagged with names and the policy saves those names, so it works under every version of
JAX's rematerialisation. Equal segments share one function object, so JAX traces and differentiates them once.
A value that a segment reads and that is used after it too is passed *through* the segment: its cotangent then
is added up at each segment instead of in one late kernel that would keep everything alive.

An effect happens once. What has one and is read by others stays outside of segments (``Graph.apart``); what only tells
something (``jax.debug.print``, a callback without results) runs right behind the outermost segment that it is in, which
returns what is to be told.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.action import action_of
from remat_plan.graph.merge import identity
from remat_plan.graph.order import Order
from remat_plan.graph.pooling import windows_of
from remat_plan.graph.records import TAG_PREFIX, Graph
from remat_plan.graph.schedule import Choice, Segment, is_planned
from remat_plan.graph.slices import region_of
from remat_plan.graph.structure import is_loop, structure_of
from remat_plan.graph.uses import Borders, makers
from remat_plan.rewrite.late import start_late, together
from remat_plan.rewrite.policies import keeping
from remat_plan.rewrite.pooling import run_pooling
from remat_plan.rewrite.save_output import Tag, run_tagged, tagged

Runner = Callable[[Sequence[Any]], list[Any]]
"""Values of inputs to values of outputs."""

RegionRunner = Callable[..., Runner]
"""Makes what runs a region inside a structure under a schedule: an ``Emitter``."""


def as_array(value: Any) -> Any:
    """Make arrays of what a jaxpr may hold in their place: NumPy arrays and Python numbers."""
    return value if isinstance(value, jax.Array) else jax.numpy.asarray(value)


class Emitter:
    """Executes a graph under a schedule. Holds what is derived from both, and no values.

    ``prevent_cse`` is that of ``jax.checkpoint``: a loop around the program prevents it anyway.
    """

    def __init__(self, graph: Graph, schedule: Sequence[Segment], prevent_cse: bool = True):
        self.graph, self.schedule = graph, tuple(schedule)
        self.borders = Borders(graph)
        self.free, self.told = self.borders.free, self.borders.told
        self.order = Order(graph, self.free)
        self.prevent_cse = prevent_cse
        self.late, self.late_again = self.order.late_loops(self.schedule)
        self.lean = is_planned(self.schedule)  # a plain program stays as XLA makes it
        self.shared: dict[Any, Callable[..., list[Any]]] = {}
        # Names of a planned function inside this one must not be saved by segments around it.
        salt = zlib.crc32(repr((len(graph.ops), self.schedule)).encode())
        self.prefix = f"{TAG_PREFIX}{salt:08x}:"

    def __call__(self, args: Sequence[Any], constants: Sequence[Any] | None = None) -> list[Any]:
        """Run the program on flat values; ``constants`` replace those that the function closed over."""
        env: dict[int, Any] = dict(zip(self.graph.inputs, args, strict=True))
        closed_over = [c for _, c in self.graph.constants] if constants is None else constants
        env.update(zip((v for v, _ in self.graph.constants), map(as_array, closed_over), strict=True))
        self.run(self.schedule, env)
        return [as_array(self.read(env, v)) for v in self.graph.outputs]

    def read(self, env: dict[int, Any], v: int) -> Any:
        """A value, a literal, or a value that every segment makes for itself."""
        if v < 0:
            return self.graph.literals[-1 - v]
        for index in makers(self.graph, [v], env) if v not in env else ():
            self.equation(index, env, {})
        return env[v]

    def equation(
        self,
        index: int,
        env: dict[int, Any],
        names: dict[int, Tag],
        choice: Choice | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Run one equation, a structure by choice, tagging the values in ``names``.

        ``again`` tells that it is recomputed in the backward pass.
        """
        op = self.graph.ops[index]
        args = [self.read(env, v) for v in op.operands]
        late = self.late_again if again else self.late
        tags = {i: names[v] for i, v in enumerate(op.outputs) if v in names}
        own = set(self.graph.needs[op.kind].outputs) if op.differentiated else set()
        if choice is not None:
            structure = structure_of(op)
            assert structure is not None
            values = structure.emit(self.graph, op, choice, Emitter, late)(args)
        elif late and is_loop(op):
            values = start_late(lambda *xs: _compat.bind(op.eqn, xs), args)
        elif own & set(tags):
            env.update(zip(op.outputs, run_tagged(op.eqn, args, tags), strict=True))
            return
        elif self.lean and op.differentiated and (windows := windows_of(op.eqn)) is not None:
            values = run_pooling(op.eqn, windows, args)
        else:
            values = _compat.bind(op.eqn, args)
        for i, (v, x) in enumerate(zip(op.outputs, values, strict=True)):
            env[v] = tagged(x, tags[i]) if i in tags else x

    def run(self, segments: Sequence[Segment], env: dict[int, Any], *, again: bool = False) -> None:
        """Run segments one after another; ``again`` where they are inside another segment."""
        for segment, waits in self.order.of(segments):
            if self.lean and self.prevent_cse and self.order.waits(segment, again):
                reads = self.borders.interface(segment)[0]
                env.update(zip(reads, together([self.read(env, v) for v in reads]), strict=True))
            segment.way.emit(self, segment, waits, env, again)

    def equations(self, segment: Segment, env: dict[int, Any], names: dict[int, Tag], *, again: bool) -> None:
        """Run the equations of a segment one after another."""
        for index in range(segment.start, segment.end):
            if index not in self.free and not (again and index in self.told):
                self.equation(index, env, names, segment.choice(index), again=again)

    def checkpointed(
        self, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool, run: Callable[..., None]
    ) -> None:
        """Run one segment under ``jax.checkpoint``; ``waits`` are values whose cotangents its backward pass awaits."""
        reads, leaves, through = self.borders.interface(segment, waits)
        key = self.share_key(segment, reads, leaves, through)
        body = self.shared.get(key) or self.body(segment, reads, leaves + through, run)
        if key is not None:
            self.shared[key] = body
        values = body(*[self.read(env, v) for v in reads])
        env.update(zip(leaves + through, values, strict=True))
        for index in () if again else range(segment.start, segment.end):
            if index in self.told:
                self.equation(index, env, {})

    def body(
        self, segment: Segment, reads: tuple[int, ...], returns: tuple[int, ...], run: Callable[..., None]
    ) -> Callable[..., list[Any]]:
        """Return a segment under ``jax.checkpoint``, as a function of the values it reads."""
        names = {v: (action_of(a), f"{self.prefix}{i}") for i, (v, a) in enumerate(segment.actions)}

        def body(*args: Any) -> list[Any]:
            env = {v: tagged(x, names[v]) if v in names else x for v, x in zip(reads, args, strict=True)}
            run(self, segment, env, names)
            return [self.read(env, v) for v in returns]

        body.__name__ = f"segment_{segment.start}_{segment.end}"
        return _compat.checkpoint(body, prevent_cse=self.prevent_cse, policy=keeping(names.values()))

    def sliced(self, segment: Segment, env: dict[int, Any]) -> None:
        """Run a segment that is split."""
        reads, leaves, _ = self.borders.interface(segment)
        region, schedule = region_of(self.borders, segment)
        key = id(region), schedule  # regions are kept, so their ids stay their own
        run = self.shared.setdefault(key, Emitter(region, schedule, self.prevent_cse))
        env.update(zip(leaves, run([self.read(env, v) for v in reads]), strict=True))

    def share_key(
        self, segment: Segment, reads: tuple[int, ...], leaves: tuple[int, ...], through: tuple[int, ...]
    ) -> Any | None:
        """Return a key equal for segments that are the same function; None where that cannot be told."""
        contents = self.borders.contents(segment, reads, lambda op: identity(op.eqn))
        if contents is None:
            return None
        rows, number = contents
        shape = segment.moved(segment.start, number)
        return rows, shape, tuple(number[v] for v in leaves), tuple(number[v] for v in through)
