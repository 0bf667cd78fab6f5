"""A scan as the evaluator runs it: stretches, groups and slots made of units.

In: a scan of a graph, a ``Choice``. Out: a ``Unit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.passes import Numbers, Pull, Signature, Stack, Unit
from remat_plan.cost.program import Lowering
from remat_plan.cost.summed import Places, SummedUnit
from remat_plan.cost.units import LoopStep, LoopUnit, SegmentUnit, SlottedUnit
from remat_plan.cost.whole_step import RegionUnit
from remat_plan.graph.records import Op
from remat_plan.graph.schedule import Choice, Part
from remat_plan.loops.nested import divide
from remat_plan.solve.binomial import advances
from remat_plan.structures.loop import Loop, loop_of, narrowed_rows, needs_barriers
from remat_plan.structures.regions import reached


class ScanUnits:
    """Makes the units of one scan."""

    def __init__(self, rules: Rules, op: Op):
        self.rules, self.op = rules, op
        self.loop = loop_of(rules.graph, op)
        self.inside = rules.inside(self.loop.body)
        n = self.loop.n_carry
        self.arriving = reached(self.loop.body, (True,) * n + tuple(rules.arriving(op)[n:]))

    def unit(self, part: Part, choice: Choice) -> RegionUnit:
        """What one step of a part of a choice runs."""
        barriers = needs_barriers(part, choice, self.loop.unroll)
        return RegionUnit(self.inside, part.schedule, self.arriving, not choice.slots, barriers)

    def step(self, part: Part, choice: Choice | None = None) -> LoopStep:
        """One step of a part of a choice, evaluated once however many stretches and groups are made of it; by default
        one of steps that are alike."""
        unit = self.unit(part, Choice((part,)) if choice is None else choice)
        key = self.op.kind, part.schedule, self.arriving, unit.stored, unit.barriers
        return self.rules.once(key, lambda: self.loop_step(unit))

    def loop_step(self, unit: Unit) -> LoopStep:
        """A unit as the step of a loop over this scan's rows."""
        return LoopStep(unit, self.loop.n_consts, self.loop.n_carry, self.inside.facts, self.rules.hardware)

    def scan(self, choice: Choice) -> Unit:
        if choice.slots:
            return self.slotted(self.step(choice.parts[0], choice), choice.slots)
        if choice.gradient_first:
            step = self.unit(choice.parts[0], choice)
            shared = self.inside.facts, self.rules.hardware
            places = Places(self.loop.n_consts, self.loop.n_carry, self.loop.total)
            return SummedUnit(step, places, self.loop.count, self.op.eqn, *shared)
        narrowed = narrowed_rows(self.loop)
        loops = [self.grouped(self.step(part), part.count, part.factors, narrowed) for part in choice.parts]
        return loops[0] if len(loops) == 1 else Stretches(loops, self.loop, self.op.eqn)

    def grouped(self, step: LoopStep, length: int, factors: Sequence[int], narrowed: Mapping[int, float] = {}) -> Unit:
        """Groups in groups; mirrors ``loops.nested.nested_scan``. ``narrowed`` are rows of the outermost loop."""
        groups = min(factors[0], length) if len(factors) > 1 else 1
        if groups <= 1 and len(factors) > 1:
            return self.grouped(step, length, factors[1:], narrowed)
        if groups <= 1:
            return LoopUnit(step, length, self.op.eqn, narrowed)
        groups, size, rest = divide(length, groups)
        group = self.loop_step(SegmentUnit(self.grouped(step, size, factors[1:])))
        main = LoopUnit(group, groups, self.op.eqn, narrowed)
        if not rest:
            return main
        return Stretches((main, SegmentUnit(LoopUnit(step, rest, self.op.eqn))), self.loop, self.op.eqn)

    def slotted(self, step: LoopStep, slots: int) -> Unit:
        """Binomial checkpointing."""
        count, slot_bytes = self.loop.count, slots * self.loop.carry_bytes
        again = LoopUnit(self.loop_step(SegmentUnit(step.inner)), count, self.op.eqn)
        return SlottedUnit(again, slot_bytes, advances(count, min(slots, count)))


class Stretches:
    """Loops over parts of the same rows, in their order: a ``cost.passes.Unit``; ``eqn`` is shown for its steps."""

    def __init__(self, loops: Sequence[Unit], loop: Loop, eqn: Any):
        self.loops, self.loop, self.eqn = tuple(loops), loop, eqn
        first = loops[0].signature
        self.border = loop.first_row
        self.signature = Signature(
            self._joined([u.signature.inputs for u in loops], self.border),
            self._joined([u.signature.outputs for u in loops], loop.n_carry),
            first.moving,
            first.arriving,
        )

    def _joined(self, rows: Sequence[tuple[Stack, ...]], border: int) -> tuple[Stack, ...]:
        kinds = zip(*rows, strict=True)
        return tuple(
            k[0] if i < border else Stack(k[0].aval, sum(kind.rows for kind in k)) for i, k in enumerate(kinds)
        )

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        return self._through(state, inputs, lambda loop, given: (loop.run(state, given), None))[0]

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        outputs, pulls = self._through(state, inputs, lambda loop, given: loop.linearize(state, given))
        n_consts, n_carry = self.loop.n_consts, self.loop.n_carry

        def pull(cotangents: Sequence[int | None]) -> list[int | None]:
            carry, stacked = list(cotangents[:n_carry]), cotangents[n_carry:]
            sums: list[int | None] = [None] * n_consts
            pieces: list[list[int | None]] = []
            for unit, backward in pulls:
                sizes = [kind.size_bytes for kind in unit.signature.outputs[n_carry:]]
                parts = [self._move(state, [c], size) for c, size in zip(stacked, sizes, strict=True)]
                found = backward([*carry, *parts])
                carry = found[n_consts : self.border]
                sums = [self._sum(state, a, b, i) for i, (a, b) in enumerate(zip(sums, found, strict=False))]
                pieces.append(found[self.border :])
            kinds = zip(zip(*pieces, strict=True), self.signature.inputs[self.border :], strict=True)
            rows = [self._move(state, piece, kind.size_bytes) for piece, kind in kinds]
            return [*sums, *carry, *rows]

        return outputs, pull

    def _through(self, state: Lowering, inputs: Sequence[int], run: Callable[[Unit, Numbers], Any]) -> Any:
        """Append the forward passes; return the outputs and the units with what they returned, the last one first."""
        n_consts, n_carry = self.loop.n_consts, self.loop.n_carry
        consts, carry, rows = inputs[:n_consts], inputs[n_consts : self.border], inputs[self.border :]
        pieces, pulls = [], []
        late, state.late = state.late, state.late or _compat.cond_forwards_residuals()
        for unit in reversed(self.loops) if self.loop.reverse else self.loops:
            sizes = [kind.size_bytes for kind in unit.signature.inputs[self.border :]]
            parts = [self._move(state, [row], size) for row, size in zip(rows, sizes, strict=True)]
            outputs, backward = run(unit, [*consts, *carry, *parts])
            carry = outputs[:n_carry]
            pieces.append(outputs[n_carry:])
            pulls.append((unit, backward))
        state.late = late
        kinds = zip(zip(*pieces, strict=True), self.signature.outputs[n_carry:], strict=True)
        joined = [self._move(state, piece, kind.size_bytes) for piece, kind in kinds]
        return [*carry, *joined], pulls[::-1]

    def _move(self, state: Lowering, reads: Sequence[int | None], size: int) -> Any:
        """Copy rows out of an array, or several arrays into one; None where there are none."""
        given = tuple(r for r in reads if r is not None)
        return state.move(self.eqn, "rows", given, None, size) if given else None

    def _sum(self, state: Lowering, one: int | None, other: int | None, index: int) -> int | None:
        if one is None or other is None:
            return one if other is None else other
        return state.equation(state.facts.addition(self.signature.inputs[index].aval), [one, other])[0]
