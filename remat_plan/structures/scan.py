"""``lax.scan``: a region run a known number of times, with values that are carried.

    parts (n1, a), (n2, b)   stretches: n1 steps run by schedule a, then n2 by b, one scan after the other
    groups (k1, k2) of a     k1 segments of k2 segments of steps: one carry is kept for each (Chen et al. 2016,
    part                     arXiv 1604.06174, sections 4.1 and 4.4)
    slots s                  at most s carries are kept, with the fewest steps run again (Griewank & Walther 2000)

Stretches copy their rows; groups that divide the length do not.

Limits: scans over named axes stay as they are; steps with effects are in no groups and slots. Binomial checkpointing
has no forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.passes import Unit
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule
from remat_plan.graph.structure import Trips
from remat_plan.loops.nested import nested_scan
from remat_plan.loops.scan import scan as scan_by
from remat_plan.rewrite.emit import RegionRunner, Runner
from remat_plan.rewrite.late import start_late
from remat_plan.structures.loop import Loop, loop_of, needs_barriers
from remat_plan.structures.scan_choices import scan_choices
from remat_plan.structures.scan_units import ScanUnits
from remat_plan.structures.ways import ways_of, worth_having


class Scan:
    """See the module docstring."""

    name = "scan"
    primitives: tuple[str, ...] = ("scan",)

    def is_open(self, op: Op) -> bool:
        """Whether it has steps to treat one by one, outside of any map over named axes."""
        return op.eqn.params["length"] > 1 and not _compat.named_axes(op.eqn)

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        """The body."""
        return (loop_of(graph, op).body,)

    def run_counts(self, op: Op) -> Sequence[float]:
        """The trip count."""
        return (float(op.eqn.params["length"]),)

    def loop(self, graph: Graph, op: Op) -> Trips:
        """Its trip count and carry."""
        own = loop_of(graph, op)
        carried = zip(own.carries, own.body.outputs[: own.n_carry], strict=True)
        return Trips(own.length, own.carry_bytes, own.body, tuple(carried))

    def describe(self, graph: Graph, op: Op, choice: Choice) -> str:
        """How it is run, in words."""
        return scan_text(op.eqn.params["length"], choice)

    def unit(self, rules: Rules, op: Op, choice: Choice) -> Unit:
        """The scan as the evaluator runs it."""
        return ScanUnits(rules, op).scan(choice)

    def choices(self, rules: Rules, op: Op, solve: Callable[[Rules], Sequence[Schedule]]) -> Iterator[Choice]:
        """The ways to run it, given a way to make schedules of its body."""
        loop = loop_of(rules.graph, op)
        lowering, schedules = ScanUnits(rules, op), solve(rules.inside(loop.body))
        steps = ways_of(schedules, [lowering.step(Part(loop.length, s)).passes for s in schedules], rules.hardware)
        row_bytes = sum(loop.body.values[v].size_bytes for v in loop.rows)
        return scan_choices(loop.length, loop.carry_bytes, row_bytes, worth_having(steps))

    def emit(self, graph: Graph, op: Op, choice: Choice, run: RegionRunner, late: bool) -> Runner:
        """The scan as JAX runs it."""
        loop = loop_of(graph, op)
        barriers = [needs_barriers(part, choice.slots, loop.unroll) for part in choice.parts]
        steps = [run(loop.body, p.schedule, barriers=b) for p, b in zip(choice.parts, barriers, strict=True)]
        return PlannedScan(loop, choice, steps, late)


def scan_text(length: int, choice: Choice) -> str:
    """How a scan is run, in words.

    >>> scan_text(12, Choice((Part(12, (), (4,)),)))
    'scan of 12 steps, in 4 groups of 3'
    >>> scan_text(12, Choice((Part(8, (), (2,)), Part(4, ()))))
    'scan of 12 steps: 8 in 2 groups of 4, then 4 (copies its inputs)'
    """
    text = f"scan of {length} steps"
    if choice.slots:
        return f"{text}, {choice.slots} carries kept at a time"
    if len(choice.parts) == 1:
        return text + "".join(f",{level}" for level in _levels(choice.parts[0]))
    return f"{text}: {', then '.join(str(p.count) + ','.join(_levels(p)) for p in choice.parts)} (copies its inputs)"


def _levels(part: Part) -> list[str]:
    found, length = [], part.count
    for groups in part.groups:
        divides, length = length % groups == 0, -(-length // groups)
        found.append(f" in {groups} groups of {'' if divides else 'up to '}{length}")
    return found


class PlannedScan:
    """A scan under a choice, as a function of its operands; holds no values.

    Args:
        loop: the scan.
        choice: how it is run.
        steps: per part of the choice, what runs a step.
        late: whether stretches take their memory when they are reached (see ``rewrite.late``).
    """

    def __init__(self, loop: Loop, choice: Choice, steps: Sequence[Runner], late: bool = False):
        self.loop, self.choice, self.steps, self.late = loop, choice, tuple(steps), late

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the scan.

        Args:
            args: constants, first carry, inputs with one row a step, as the equation has them.

        Returns:
            The last carry and the stacked outputs.
        """
        loop, choice = self.loop, self.choice
        first_row = loop.n_consts + loop.n_carry
        consts, rows = args[: loop.n_consts], list(args[first_row:])
        carry = [jax.numpy.asarray(x) for x in args[loop.n_consts : first_row]]
        if choice.slots:
            body = _Body(self.steps[0], consts, loop.n_carry)
            given: dict[str, Any] = {"schedule": "binomial", "slots": choice.slots, "reverse": loop.reverse}
            carry, stacked = scan_by(body, carry, rows, loop.length, **given)
        else:
            carry, stacked = self.stretches(consts, carry, rows)
        return [*carry, *stacked]

    def stretch(self, number: int, *args: Any) -> list[Any]:
        """Run the steps of one part: constants, carry and their rows to the next carry and the stacked outputs."""
        loop, part = self.loop, self.choice.parts[number]
        first_row = loop.n_consts + loop.n_carry
        body = _Body(self.steps[number], args[: loop.n_consts], loop.n_carry)
        carry, rows = list(args[loop.n_consts : first_row]), list(args[first_row:])
        given: dict[str, Any] = {"reverse": loop.reverse, "unroll": loop.unroll}
        carry, stacked = nested_scan(body, carry, rows, part.count, part.factors, **given)
        return [*carry, *stacked]

    def stretches(self, consts: Sequence[Any], carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run one scan after another."""
        loop = self.loop
        counts = [part.count for part in self.choice.parts]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        made: dict[int, list[Any]] = {}
        for i in reversed(range(len(counts))) if loop.reverse else range(len(counts)):
            whole = counts[i] == loop.length
            part = rows if whole else [jax.lax.slice_in_dim(x, starts[i], starts[i] + counts[i]) for x in rows]
            run = partial(self.stretch, i)
            operands = [*consts, *carry, *part]
            # The outermost loop over groups makes its zeros early whatever is done, so groups stay as they are.
            several = len(counts) > 1 and _compat.cond_forwards_residuals()
            alone = (self.late or several) and not self.choice.parts[i].groups
            outputs = start_late(run, operands) if alone else run(*operands)
            carry, made[i] = outputs[: loop.n_carry], outputs[loop.n_carry :]
        pieces = [made[i] for i in sorted(made)]
        return carry, [ys[0] if len(ys) == 1 else jax.numpy.concatenate(ys) for ys in zip(*pieces, strict=True)]


class _Body:
    """One step as ``jax.lax.scan`` wants it: (carry, row) to (next carry, outputs)."""

    def __init__(self, step: Runner, consts: Sequence[Any], n_carry: int):
        self.step, self.consts, self.n_carry = step, consts, n_carry
        self.__name__ = "step"

    def __call__(self, carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        outputs = self.step((*self.consts, *carry, *row))
        return outputs[: self.n_carry], outputs[self.n_carry :]
