"""A gradient jaxpr as a flat program of steps over values, the evaluator's input.

In: a (closed) jaxpr, usually of ``value_and_grad`` of the rewritten function, and the backend's
``Backend``. Out: ``Program``: steps in execution order with the values they read and write.

Calls (``jit``, ``remat2``, custom derivatives) are inlined; aliases (reshape, names) are one value; equal
steps are one step, as XLA's common subexpression elimination makes them; dead steps are dropped; broadcasts
that a jaxpr leaves implicit are steps of their own. A differentiated ``remat2`` starts with a barrier: a step
that writes new values over the same storage, so nothing is fused, merged or run early across it. Regions
(``scan``, ``cond``, ...) stay one step with the transient bytes of their bodies inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from remat_plan import _compat
from remat_plan.cost import algebra
from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import FactBook, Facts, equal_key
from remat_plan.cost.layout import dot_sizes
from remat_plan.cost.rules import FILLS, LOOPS, READ_ROW, WRITE_ROW, Kind, loop_counts
from remat_plan.cost.steps import Program, Step


class Lowering(Emitter):
    """Lowers equations.

    ``turned`` are the products that stand for their transposes too; ``late`` tells whether loops make the zeros of
    their stacks when they run.
    """

    def __init__(self, facts: FactBook):
        super().__init__(facts)
        self.late = False
        self.clears: Callable[[bool], bool] | None = self.backend.only("stacks")
        self.inner_of = self.backend.only("inner")
        self.turned: set[int] = set()

    def run(self, jaxpr: Any, env: dict[Any, int]) -> None:
        """Lower the equations of a jaxpr; ``env`` holds what they read and receives their results."""
        for eqn in jaxpr.eqns:
            operands = [None if _compat.is_literal(a) else env[a] for a in eqn.invars]
            env.update(zip(eqn.outvars, self.equation(self.facts.of(eqn), operands), strict=False))

    def equation(self, facts: Facts, operands: Sequence[int | None]) -> Sequence[int]:
        """Lower one equation; ``operands`` and results are numbers, None for literals."""
        kind, eqn = facts.kind, facts.eqn
        if facts.inner is not None:
            return self.call(facts, operands)
        if kind == Kind.ALIAS:
            sources = operands[-1:] if len(eqn.outvars) == 1 else operands
            return [self.new(v.aval) if s is None else s for v, s in zip(eqn.outvars, sources, strict=False)]
        reads = [r for r in operands if r is not None]
        if kind == Kind.BARRIER:
            behind = self.barrier(eqn, reads)
            return [self.new(v.aval) if s is None else behind[s] for v, s in zip(eqn.outvars, operands, strict=True)]
        if facts.name == "mul" and (other := algebra.factor(self, facts, operands)) is not None:
            return (other,)
        if facts.by_name and (found := self.by_name(facts, reads)) is not None:
            return found
        for rule in facts.lower:
            if (found := rule(self, facts, reads)) is not None:
                return found
        made = self.step(facts, operands, reads)
        if facts.name in FILLS and algebra.is_of_ones(self, facts, operands):
            self.ones.update(made)
        return made

    def call(self, facts: Facts, operands: Sequence[int | None]) -> list[int]:
        """Inline a call."""
        body, _ = _compat.open_jaxpr(facts.inner)
        env: dict[Any, int] = {v: self.new(v.aval) for v in body.constvars}
        params = facts.eqn.params
        if params.get("differentiated", False) and params.get("prevent_cse", False):
            behind = self.barrier(facts.eqn, [r for r in operands if r is not None])
            operands = [None if r is None else behind[r] for r in operands]
        given = operands[len(operands) - len(body.invars) :]  # a cond reads its index first
        for var, read in zip(body.invars, given, strict=True):
            env[var] = self.new(var.aval) if read is None else read
        self.run(body, env)
        return [self.new(a.aval) if _compat.is_literal(a) else env[a] for a in body.outvars]

    def by_name(self, facts: Facts, reads: list[int]) -> Sequence[int] | None:
        """Lower an equation that XLA makes something else of; None if it does not here."""
        eqn, name, out = facts.eqn, facts.name, facts.out_bytes
        if name == "split":
            keys = [self.facts.number(("slice", index, *equal_key(eqn))) for index in range(len(out))]
            return [self.move(eqn, "slice", tuple(reads), *pair) for pair in zip(keys, out, strict=True)]
        if name in ("add", "add_any") and (into := algebra.scatter_into(self, facts, reads, self.equation)) is not None:
            return (into,)
        if name == "gather" and eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:  # JAX selects what is inside
            key = self.facts.number(("inside", *equal_key(eqn)))
            return (self.move(eqn, "select_n", self.step(facts, reads, reads), key, out[0]),)
        if name == "transpose" and self.folds_into_dot(reads[0], eqn):
            return reads[:1]
        return None

    def step(self, facts: Facts, operands: Sequence[int | None], reads: list[int]) -> tuple[int, ...]:
        """Add the step of an equation, with the broadcasts and copies that it reads."""
        library = facts.library
        full = len(reads)
        if facts.narrow:
            reads, full = self.broadcast_operands(facts, operands)
        kind = facts.kind
        if facts.name == "mul":
            reads, library = algebra.product(self, facts, reads, library)
        if facts.name == "div":
            reads, kind = algebra.quotient(self, facts, reads)
        for rule in facts.operands:
            reads, library = rule(self, facts, reads, library)
        inner = self.inner_of(self, facts, reads) if self.inner_of else None
        out = facts.out_bytes if inner is None else (self.facts.bytes(facts.eqn.outvars[0].aval, inner),)
        over: Sequence[int | None] = ()
        if facts.name in LOOPS:
            stacks = self.stacks(facts)
            counts = loop_counts(facts.eqn)
            over = [*operands[counts.first_carry :][: counts.carry], *stacks]
            reads = self.without_fills([*reads, *stacks], over)
        unary = full <= 1 or sum([self.sizes[r] for r in set(reads)]) <= sum(out)
        made = Step(tuple(reads), kind, facts.name, facts.eqn, (), facts.flops, facts.region, library, unary)
        made.work, made.splits_rows = facts.work, facts.splits_rows
        writes = self.emit(facts.key, made, out)
        if inner is not None:
            self.inner[writes[0]] = len(facts.eqn.outvars[0].aval.shape), inner
        if over:
            pairs = zip(over, writes, strict=False)
            made.carries = tuple([(o, w) for o, w in pairs if o is not None and reads.count(o) == 1])
        return writes

    def stacks(self, facts: Facts) -> list[int]:
        """Make the zeros that the stacked results of a scan are written over, on backends that make them early.

        They depend on nothing, so XLA:CPU makes those of all scans at the start. It sees one array of zeros and copies
        it for each, but for one.
        """
        if facts.name != "scan":
            return []
        sizes = facts.out_bytes[loop_counts(facts.eqn).carry :]
        return [v for v in (self.stack(size, facts.eqn) for size in sizes) if v is not None]

    def cleared_bytes(self, sizes: Sequence[int]) -> int:
        """Bytes of zeros that a loop writes when it begins, of stacks of some sizes."""
        return sum(sizes) if self.clears and self.clears(self.late) else 0

    def stack(self, size: int, eqn: Any) -> int | None:
        """Make the zeros that one stacked result is written over; None where they are made when the loop runs."""
        if self.clears is None or self.clears(self.late):
            return None
        key = self.facts.number(("stack", size))
        known = (key, ()) in self.seen
        zeros = self.move(eqn, "broadcast_in_dim", (), key, size)
        copied = Step((zeros,), Kind.OPAQUE, "copy", eqn)
        return self.emit(None, copied, (size,))[0] if known else zeros

    def broadcast_operands(self, facts: Facts, operands: Sequence[int | None]) -> tuple[list[int], int]:
        """Make the broadcasts of an element-wise equation explicit; count the other operands.

        XLA writes a scalar operand as a full-size broadcast too. It is computed inside whatever fuses it, but
        a library call reads it from memory when somebody else does also.
        """
        size = facts.out_bytes[0]
        reads = []
        full = 0
        for operand, narrow, key in zip(operands, facts.narrow, facts.fills, strict=True):
            if operand is None:
                if facts.library:
                    reads.append(self.move(facts.eqn, "broadcast_in_dim", (), key, size, 1))
            elif narrow:
                reads.append(self.move(facts.eqn, "broadcast_in_dim", (operand,), key, size, 1))
            else:
                reads.append(operand)
                source = self.made_by.get(operand)
                full += source is None or source.primitive != "broadcast_in_dim"
        return reads, full

    def folds_into_dot(self, value: int, eqn: Any) -> bool:
        """Tell whether a transpose is only the other operand order of the product before it.

        It is where the value is read as the product's matrix, or, of a product turned already, as its transpose.
        """
        source = self.made_by.get(value)
        sizes = dot_sizes(source.eqn) if source is not None and source.primitive == "dot_general" else None
        if source is None or sizes is None:
            return False
        rows, _, columns = sizes
        shape = eqn.invars[0].aval.shape
        if shape != (rows, columns) and (value not in self.turned or shape != (columns, rows)):
            return False
        source.library = 0
        self.turned.add(value)
        return True


def lower(jaxpr: Any, facts: FactBook, loop: Any | None = None) -> Program:
    """Lower a jaxpr, open or closed, to a ``Program``.

    Where it is the body of a loop, rows of what is scanned over are slices, which fuse like any other step; rows that
    are stacked are written into the stack; a carry is written over the one before.
    """
    inner, _ = _compat.open_jaxpr(jaxpr)
    state = Lowering(facts)
    env = {v: state.argument(v.aval) for v in (*inner.constvars, *inner.invars)}
    inputs = frozenset(env.values())
    carries: list[int] = []
    if loop is not None:
        counts = loop_counts(loop)
        rows = inner.invars[counts.consts + counts.carry :]
        carries = [env[v] for v in inner.invars[counts.consts :][: counts.carry]]
        env.update({v: state.move(loop, READ_ROW, (env[v],), None, state.sizes[env[v]]) for v in rows})
    state.run(inner, env)
    found = [None if _compat.is_literal(a) else env[a] for a in inner.outvars]
    if loop is not None:
        for index, row in enumerate(found):
            if index >= len(carries) and row is not None:
                found[index] = state.move(loop, WRITE_ROW, (row,), None, state.sizes[row])
    outputs = [value for value in found if value is not None]
    carried = {o: i for o, i in zip(found, carries, strict=False) if o is not None}
    return state.program(inputs, outputs, carried, 0 if loop is None else sum(state.counters.values()))
