"""``lax.scan``: a region run a known number of times, with values that are carried.

    parts (n1, a), (n2, b)   stretches: n1 steps run by schedule a, then n2 by b, one scan after the other
    groups (k1, k2) of a     k1 segments of k2 segments of steps: one carry is kept for each (Chen et al. 2016,
    part                     arXiv 1604.06174, sections 4.1 and 4.4)
    slots s                  at most s carries are kept, with the fewest steps run again (Griewank & Walther 2000)
    gradient_first           of a loop that adds up a scalar: the gradient of each step is made right behind it

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
from remat_plan.graph.action import OFFLOAD
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, actions_in
from remat_plan.graph.structure import RegionSolver, adds_up
from remat_plan.loops.nested import nested_scan
from remat_plan.loops.scan import scan as scan_by
from remat_plan.loops.summed import summed_scan
from remat_plan.rewrite.emit import RegionRunner, Runner
from remat_plan.rewrite.late import start_late
from remat_plan.structures.loop import Loop, loop_of, needs_barriers
from remat_plan.structures.regions import Way, ways_of, worth_having
from remat_plan.structures.scan_choices import scan_choices
from remat_plan.structures.scan_units import ScanUnits


class Scan:
    """A loop of known length; methods as of ``graph.structure.Structure``."""

    name = "scan"
    primitives: tuple[str, ...] = ("scan",)

    def is_open(self, op: Op) -> bool:
        return op.eqn.params["length"] > 1

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        return (loop_of(graph, op).body,)

    def run_counts(self, op: Op) -> Sequence[float]:
        return (float(op.eqn.params["length"]),)

    def loop(self, graph: Graph, op: Op) -> Loop:
        return loop_of(graph, op)

    def describe(self, graph: Graph, op: Op, choice: Choice) -> str:
        return scan_text(op.eqn.params["length"], choice)

    def unit(self, rules: Rules, op: Op, choice: Choice) -> Unit:
        return ScanUnits(rules, op).scan(choice)

    def choices(self, rules: Rules, op: Op, solve: RegionSolver) -> Iterator[Choice]:
        loop = loop_of(rules.graph, op)
        lowering, inside = ScanUnits(rules, op), rules.inside(loop.body)

        def worth(schedules: Sequence[Schedule]) -> list[Way]:
            passes = [lowering.step(Part(loop.count, s)).passes for s in schedules]
            return worth_having(ways_of(schedules, passes))

        schedules = solve(inside)
        steps = worth(schedules)
        if further := solve.moved(inside, [step.schedule for step in steps]):
            steps = worth([schedules[0], *[step.schedule for step in steps], *further])
        row_bytes = sum(loop.body.values[v].size_bytes for v in loop.body.inputs[loop.first_row :])
        yield from scan_choices(loop.count, loop.carry_bytes, row_bytes, steps)
        if adds_up(loop):
            inner = [schedules[0], *(step.schedule for step in steps)]
            yield from (Choice((Part(loop.count, s),), gradient_first=True) for s in dict.fromkeys(inner))

    def emit(self, graph: Graph, op: Op, choice: Choice, run: RegionRunner, late: bool) -> Runner:
        loop = loop_of(graph, op)
        barriers = [needs_barriers(part, choice, loop.unroll) for part in choice.parts]
        steps = [run(loop.body, p.schedule, prevent_cse=b) for p, b in zip(choice.parts, barriers, strict=True)]
        return partial(_run, loop, choice, steps, late)


def scan_text(length: int, choice: Choice) -> str:
    """How a scan is run, in words.

    >>> scan_text(12, Choice((Part(12, (), (4,)),)))
    'scan of 12 steps, in 4 groups of 3'
    >>> scan_text(12, Choice((Part(12, ()),), gradient_first=True))
    'scan of 12 steps, gradient in the forward pass'
    >>> scan_text(12, Choice((Part(8, (), (2,)), Part(4, ()))))
    'scan of 12 steps: 8 in 2 groups of 4, then 4 (copies its inputs)'
    """
    text = f"scan of {length} steps"
    if choice.slots:
        return f"{text}, {choice.slots} carries kept at a time"
    if choice.gradient_first:
        return f"{text}, gradient in the forward pass"
    if len(choice.parts) == 1:
        return text + "".join(f",{level}" for level in _levels(choice.parts[0]))
    return f"{text}: {', then '.join(str(p.count) + ','.join(_levels(p)) for p in choice.parts)} (copies its inputs)"


def _levels(part: Part) -> list[str]:
    found, length = [], part.count
    for groups in part.groups:
        divides, length = length % groups == 0, -(-length // groups)
        found.append(f" in {groups} groups of {'' if divides else 'up to '}{length}")
    return found


def _run(loop: Loop, choice: Choice, steps: Sequence[Runner], late: bool, args: Sequence[Any]) -> list[Any]:
    """Run a scan under a choice, each of whose parts has what runs a step.

    ``late``: stretches take their memory when they are reached (see ``rewrite.late``). ``args`` are constants, first
    carry, inputs with one row a step, as the equation has them.
    """
    n_consts, n_carry = loop.n_consts, loop.n_carry
    consts, rows = args[:n_consts], list(args[loop.first_row :])
    carry = [jax.numpy.asarray(x) for x in args[n_consts : loop.first_row]]
    order: dict[str, Any] = {"reverse": loop.reverse, "unroll": loop.unroll}
    if choice.gradient_first:
        step = lambda consts, carry, row: steps[0]((*consts, *carry, *row))  # noqa: E731
        return summed_scan(step, loop.total, consts, carry, rows, length=loop.count, **order)
    if choice.slots:
        body = _body(steps[0], consts, n_carry)
        carry, stacked = scan_by(body, carry, rows, loop.count, schedule="binomial", slots=choice.slots, **order)
        return [*carry, *stacked]

    def stretch(part: Part, step: Runner, *args: Any) -> list[Any]:
        """The steps of one part: constants, carry and their rows to the next carry and the stacked outputs."""
        body = _body(step, args[:n_consts], n_carry)
        carry, rows = list(args[n_consts : loop.first_row]), list(args[loop.first_row :])
        carry, stacked = nested_scan(body, carry, rows, part.count, part.factors, **order)
        return [*carry, *stacked]

    counts = [part.count for part in choice.parts]
    several = len(counts) > 1
    # The gradient of a split is one concatenation; that of each slice would be padded to all rows.
    pieces = [jax.lax.split(x, counts) if several else (x,) for x in rows]
    stretches = list(enumerate(zip(choice.parts, steps, strict=True)))
    made: list[list[Any]] = []
    for place, (part, step) in reversed(stretches) if loop.reverse else stretches:
        run, operands = partial(stretch, part, step), [*consts, *carry, *(piece[place] for piece in pieces)]
        # The outermost loop over groups makes its zeros early whatever is done, so groups stay as they are. What goes
        # into a branch in the host's memory XLA:TPU copies: all of a stack, there and on the device.
        stays = bool(part.groups) or OFFLOAD in actions_in(part.schedule)
        alone = (late or (several and _compat.cond_forwards_residuals())) and not stays
        outputs = start_late(run, operands) if alone else run(*operands)
        carry = outputs[:n_carry]
        made.append(outputs[n_carry:])
    outputs = zip(*(reversed(made) if loop.reverse else made), strict=True)
    return [*carry, *(jax.numpy.concatenate(ys) if several else ys[0] for ys in outputs)]


def _body(run: Runner, consts: Sequence[Any], n_carry: int) -> Callable[[Any, Any], tuple[list[Any], list[Any]]]:
    """One step as ``jax.lax.scan`` wants it: (carry, row) to (next carry, outputs)."""

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        outputs = run((*consts, *carry, *row))
        return outputs[:n_carry], outputs[n_carry:]

    return step
