"""The pieces that programs are made of, as the evaluator lowers them.

In: units and how they are put together. Out: ``Unit``s (see ``passes``); units hold units.

    SegmentUnit   a unit under ``jax.checkpoint`` that saves nothing: run again behind a barrier
    LoopUnit      a unit run n times, with values that are carried: one step of the program around it
    SlottedUnit   such a loop under binomial checkpointing
    BranchUnit    one of several units, chosen while the program runs: one step of the program around it

The equations of a region under a schedule are a unit too (``whole_step.RegionUnit``). Nothing is traced here.

Limits: with several branches the residuals of all are kept, as JAX keeps them; equal types in different branches
share their memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_plan.cost.facts import FactBook
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.passes import Numbers, Pass, Pull, Roles, Signature, Stack, Unit, find_passes
from remat_plan.cost.program import Lowering
from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import RegionCost, Step


@dataclass(frozen=True, slots=True)
class SegmentUnit:
    """A unit under ``jax.checkpoint`` that saves nothing."""

    inner: Unit

    @property
    def signature(self) -> Signature:
        """That of the unit inside."""
        return self.inner.signature

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the forward pass."""
        return self.inner.run(state, inputs)

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the forward pass; the backward pass runs it again behind a barrier."""
        outputs = self.inner.run(state, inputs)

        def pull(cotangents: Sequence[int | None]) -> list[int | None]:
            given = [c for c in cotangents if c is not None]
            behind = state.barrier(None, [*inputs, *given])
            _, inner = self.inner.linearize(state, [behind[v] for v in inputs])
            return inner([None if c is None else behind[c] for c in cotangents])

        return outputs, pull


class LoopStep:
    """One step of a loop, constants, carry, rows to carry, rows, and its passes whatever the trip count."""

    def __init__(self, inner: Unit, n_consts: int, n_carry: int, facts: FactBook, hardware: Hardware):
        self.signature, self.n_carry, self.hardware = inner.signature, n_carry, hardware
        places, border = range(len(self.signature.inputs)), n_consts + n_carry
        self.inner = inner
        self.roles = Roles(
            constant=tuple([i < n_consts for i in places]),
            row=tuple([i >= border for i in places]),
            result_row=tuple([i >= n_carry for i in range(len(self.signature.outputs))]),
            carried=tuple([(n_consts + j, j) for j in range(n_carry)]),
        )
        self.passes = find_passes(inner, self.roles, facts, hardware)


class LoopUnit:
    """A unit run ``length`` times; ``eqn`` is shown for its steps.

    ``narrowed`` are the inputs whose rows are only converted to a smaller type, with the share of bytes that is left.
    """

    def __init__(self, step: LoopStep, length: int, eqn: Any, narrowed: Mapping[int, float] = {}):
        self.length, self.eqn, self.narrowed = length, eqn, narrowed
        kinds, roles = step.signature, step.roles
        self.signature = Signature(
            stacked(kinds.inputs, roles.row, length),
            stacked(kinds.outputs, roles.result_row, length),
            kinds.moving,
            kinds.arriving,
        )
        self.n_carry, self.hardware = step.n_carry, step.hardware
        self.carried, self.rows, self.passes = roles.carried, roles.row, step.passes

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the loop as one step."""
        return self.forward(state, inputs, self.passes.alone(), ())[: len(self.signature.outputs)]

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the loop that stacks its residuals, then the loop that reads them."""
        passes, inputs = self.passes, self.hoisted(state, inputs)
        made = self.forward(state, inputs, passes.forward, passes.residual_bytes, passes.constant_bytes)
        outputs, kept = made[: len(self.signature.outputs)], made[len(self.signature.outputs) :]
        reads = [*(inputs[i] for i in passes.reads), *(outputs[j] for j in passes.result_reads), *kept]
        return outputs, _pull(state, self, reads, self.backward(state), self.carried)

    def hoisted(self, state: Lowering, inputs: Sequence[int]) -> Sequence[int]:
        """The inputs, with what is read in both passes and only narrowed there converted before the loop, on backends
        that do; else what is narrowed is kept."""
        rule, places = state.backend.only("hoists"), [i for i in self.narrowed if i in self.passes.reads]
        if not rule or not places:
            return inputs
        whole = [int(self.narrowed[i] * self.signature.inputs[i].size_bytes) for i in places]
        found = list(inputs)
        for i, size in zip(places, rule(whole, self.hardware.cache_bytes), strict=True):
            if size:
                seconds = self.hardware.kernel_seconds(0.0, self.signature.inputs[i].size_bytes + size)
                step = Step((inputs[i],), Kind.OPAQUE, "narrow", None, region=RegionCost(seconds=seconds))
                found[i] = state.emit(state.facts.number(("narrow", size)), step, (size,))[0]
        return found

    def backward(self, state: Lowering) -> Pass:
        """The backward pass of all steps, which stacks the gradients of rows."""
        kinds = zip(self.signature.inputs, self.rows, self.signature.moving, strict=True)
        stacks = [kind.size_bytes for kind, row, moves in kinds if row and moves]
        return _cleared(state, self.passes.backward.times(self.length), stacks, self.hardware)

    def forward(
        self,
        state: Lowering,
        inputs: Sequence[int],
        made: Pass,
        residual_bytes: Sequence[int],
        constant_bytes: Sequence[int] = (),
    ) -> Numbers:
        """Append the forward pass: outputs, stacked residuals, residuals that are the same in each step."""
        over: list[int | None] = [inputs[i] for i, _ in self.carried]
        sizes = self.signature.output_bytes
        sizes += [self.length * size for size in residual_bytes]
        over += [state.stack(size, self.eqn) for size in sizes[self.n_carry :]]
        whole = _cleared(state, made.times(self.length), sizes[self.n_carry :], self.hardware)
        whole = whole.keeping(self.length * made.region.host_bytes)  # each step's, all of them at a time
        return _append(state, self.eqn, inputs, [*sizes, *constant_bytes], whole, over)


def _cleared(state: Lowering, made: Pass, sizes: Sequence[int], hardware: Hardware) -> Pass:
    """Return all steps of a loop with the zeros that it writes into its stacks."""
    return made.longer(hardware.clearing_seconds(state.cleared_bytes(sizes)))


def stacked(kinds: Sequence[Stack], rows: Sequence[bool], count: int) -> tuple[Stack, ...]:
    """Return types of so many steps, those of rows in one array."""
    return tuple([kind.times(count) if row else kind for kind, row in zip(kinds, rows, strict=True)])


class BranchUnit:
    """One of several units of the same signature; ``eqn`` is shown for its steps."""

    def __init__(self, branches: Sequence[Unit], facts: FactBook, hardware: Hardware, eqn: Any):
        self.eqn, self.signature = eqn, branches[0].signature
        no = (False,) * len(self.signature.inputs)
        roles = Roles(no, no, (False,) * len(self.signature.outputs))
        self.branches = [find_passes(unit, roles, facts, hardware) for unit in branches]
        self.reads = tuple(sorted({i for passes in self.branches for i in passes.reads}))
        counts: Counter[int] = Counter()
        for passes in self.branches:
            counts |= Counter(passes.residual_bytes)  # equal types of different branches share their memory
        self.residual_bytes = sorted(counts.elements())

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the branch as one step."""
        alone = _largest([b.alone() for b in self.branches])
        return _append(state, self.eqn, inputs, self.signature.output_bytes, alone)

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the branch that keeps the residuals of all branches, then the one that reads them."""
        results = self.signature.output_bytes
        forward = _largest([b.forward for b in self.branches])
        made = _append(state, self.eqn, inputs, [*results, *self.residual_bytes], forward)
        outputs, kept = made[: len(results)], made[len(results) :]
        backward = _largest([b.backward for b in self.branches])
        return outputs, _pull(state, self, [*(inputs[i] for i in self.reads), *kept], backward)


def _largest(passes: Sequence[Pass]) -> Pass:
    """Return the most that one of several passes takes, in every respect."""
    regions, flops = zip(*passes, strict=True)
    worst = max(regions, key=lambda region: region.transient_bytes)
    seconds, matrix_flops = max(r.seconds for r in regions), max(r.matrix_flops for r in regions)
    return Pass(worst._replace(seconds=seconds, matrix_flops=matrix_flops), max(flops))


def _append(
    state: Lowering, eqn: Any, reads: Sequence[int], sizes: Sequence[int], made: Pass, over: Sequence[int | None] = ()
) -> Numbers:
    """Append one step that stands for a whole structure; ``over`` is what its first results are written over."""
    if over:
        reads = state.without_fills(reads, over)
    operands = [*reads, *[v for v in over if v is not None and v not in reads]]
    step = Step(tuple(dict.fromkeys(operands)), Kind.REGION, eqn.primitive.name, eqn, (), made.flops, made.region)
    writes = state.emit(None, step, tuple(sizes))
    pairs = zip(over, writes, strict=False)
    step.carries = tuple([(v, w) for v, w in pairs if v is not None and operands.count(v) == 1])
    return list(writes)


def _pull(
    state: Lowering,
    unit: LoopUnit | BranchUnit,
    reads: Sequence[int],
    made: Pass,
    carried: Sequence[tuple[int, int]] = (),
) -> Pull:
    """Return what appends the backward pass of a structure as one step.

    The gradient of a carry is written over the cotangent that came in; other gradients of a loop are summed or stacked
    over zeros.
    """
    signature = unit.signature
    outputs = dict(carried)

    def pull(cotangents: Sequence[int | None]) -> list[int | None]:
        given = [c for c in cotangents if c is not None]
        moving = [i for i, moves in enumerate(signature.moving) if moves]
        sizes = [signature.inputs[i].size_bytes for i in moving]
        over: list[int | None] = []
        if carried:
            over = [
                cotangents[outputs[i]] if i in outputs else state.stack(size, unit.eqn)
                for i, size in zip(moving, sizes, strict=True)
            ]
        made_here = _append(state, unit.eqn, [*reads, *given], sizes, made, over)
        gradients = dict(zip(moving, made_here, strict=True))
        return [gradients.get(i) for i in range(len(signature.inputs))]

    return pull


class SlottedUnit:
    """A loop whose steps are run again from a few kept carries (binomial checkpointing).

    The steps of the loop are segments: each is run again where its backward pass follows. ``kept_bytes`` are kept
    between the passes, beside constants and rows of inputs. So many steps are ``advanced`` to reach others, those of
    the first pass among them.
    """

    def __init__(self, loop: LoopUnit, kept_bytes: int, advanced: int):
        self.loop, self.kept_bytes, self.advanced, self.signature = loop, kept_bytes, advanced, loop.signature

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the forward pass."""
        return self.loop.run(state, inputs)

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the forward pass that keeps carries, then the passes that go back and forth between them."""
        passes, length, eqn = self.loop.passes, self.loop.length, self.loop.eqn
        results = self.signature.output_bytes
        alone = passes.alone().times(length)
        made = _append(state, eqn, inputs, [*results, self.kept_bytes, *passes.constant_bytes], alone)
        again = passes.alone().times(max(self.advanced - length, 0))
        back = self.loop.backward(state)
        cost = RegionCost(
            max(again.region.transient_bytes, back.region.transient_bytes),
            again.region.seconds + back.region.seconds,
            again.region.matrix_flops + back.region.matrix_flops,
        )
        whole = Pass(cost, again.flops + back.flops)
        return made[: len(results)], _pull(state, self.loop, [*inputs, *made[len(results) :]], whole)
