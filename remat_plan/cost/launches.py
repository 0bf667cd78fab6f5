"""Which kernels are launched together, and how long each launch takes.

In: a program, its kernels in order with the buffers that they read, a ``Hardware``. Out: seconds by kernel.

A launch takes the larger of its arithmetic and its memory traffic (a roofline), and what the device takes beside these
(see ``Hardware``). Kernels that the backend makes together are one launch: what they read is read once.

Limits: launches side by side are not known, nor how well one uses the device beyond its class of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat_plan.cost.buffers import Buffers
from remat_plan.cost.facts import item_bytes
from remat_plan.cost.fusion import Kernel
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import READ_ROW, WRITE_ROW, Kind
from remat_plan.cost.steps import Program, Step


class Launches:
    """The launches of a program, whose kernels are in the order in which they run."""

    def __init__(self, program: Program, kernels: Sequence[Kernel], buffers: Buffers, hardware: Hardware):
        self._sizes, self._home = program.sizes, program.storage
        self._kernels, self._reads, self._hardware = kernels, buffers.reads, hardware
        self._joined = _joined(program, kernels, buffers.rows)
        self._rates: dict[str, float] = {}  # by class of work
        self._launched = {other for others in self._joined.values() for other in others}
        self._far, self._rows = program.backend.of("far"), set[int]()
        for step in program.steps:  # no cache holds the arrays that a loop reads rows out of, or writes them into
            if step.primitive in (READ_ROW, WRITE_ROW):
                self._rows.update(step.reads if step.primitive == READ_ROW else step.writes)

    def seconds(self, position: int) -> float:
        """Seconds of the launch of a kernel; 0 if it is launched with another one."""
        if position in self._launched:
            return 0.0
        kernel, hardware, rates = self._kernels[position], self._hardware, self._rates
        step = kernel.step
        if step.region.seconds:
            return step.region.seconds
        others = [self._kernels[other] for other in self._joined[position]] if position in self._joined else []
        works = [work for part in (kernel, *others) for work in part.work.items()] if others else kernel.work.items()
        for work, _ in works:
            if work not in rates:
                rates[work] = hardware.work_rate(work)
        return hardware.kernel_seconds(
            sum([flops / rates[work] for work, flops in works]),
            moved := self._moved_bytes(position, others),
            _turned_operands(step, self._reads[position], self._sizes) if step.splits_rows else 0,
            min(self._far_bytes(position, moved), moved) if self._rows or self._far else 0,
            self._slow_elements(kernel, others) if hardware.element_seconds else 0.0,
        )

    def _moved_bytes(self, position: int, others: Sequence[Kernel]) -> int:
        """What a launch reads and writes."""
        kernel, sizes = self._kernels[position], self._sizes
        moved = sum([sizes[b] for b in (*self._reads[position], *kernel.step.writes)])
        if others:  # of what is launched with it, what it does not read or write anyway
            further = {v for other in others for v in (*other.reads, *other.step.writes)}
            moved += sum([sizes[v] for v in further - {*kernel.reads, *kernel.common, *kernel.step.writes}])
        return moved - (_unread_bytes(kernel, self._home) if kernel.unread else 0)

    def _far_bytes(self, position: int, moved_bytes: int) -> int:
        """What of that no cache speeds up: rows of larger arrays, and what the backend has rules for."""
        step, sizes = self._kernels[position].step, self._sizes
        far = sum([sizes[b] for b in (*self._reads[position], *step.writes) if b in self._rows])
        for rule in self._far:
            written = sum([sizes[b] for b in step.writes])
            far = rule(step, far, moved_bytes, written, self._hardware.cache_bytes)
        return far

    def _slow_elements(self, kernel: Kernel, others: Sequence[Kernel]) -> float:
        """``slow_elements`` of a launch: of its first result that is no reduction, if there is one.

        A reduction of an array as it is in memory, by itself, counts twice: XLA's estimate for it is 31 cycles for 1024
        elements on a v5e, for one of what is computed on the way 18.5, and for both an array and its sum 19.
        """
        first = next((part for part in (kernel, *others) if part.step.kind != Kind.REDUCE), kernel)
        step, sizes = first.step, self._sizes
        if not step.reads or not step.writes:
            return 0.0
        elements = slow_elements(step.eqn, step.kind, sizes[step.reads[0]], sizes[step.writes[0]])
        is_bare = step.kind == Kind.REDUCE and not others and set(first.reads) == set(step.reads)
        return 2 * elements if is_bare else elements


def _joined(
    program: Program, kernels: Sequence[Kernel], rows: Mapping[int, Sequence[int]]
) -> Mapping[int, Sequence[int]]:
    """Return, by the position of a kernel, those that are launched with it; ``rows`` are the reductions of rows."""
    found = {position: list(others) for position, others in rows.items()}
    for rule in program.backend.of("joins"):
        for host, others in rule(kernels, program.sizes).items():
            found.setdefault(host, []).extend([position for position in others if position not in rows])
    return found


def _unread_bytes(kernel: Kernel, home: Mapping[int, int]) -> int:
    """Bytes of the buffers of a kernel that it does not read; of a buffer with several values, what none of them is."""
    left: dict[int, int] = {}
    for value in kernel.reads:
        buffer, unread = home.get(value, value), kernel.unread.get(value, 0)
        left[buffer] = min(left.get(buffer, unread), unread)
    return sum(left.values())


def _turned_operands(step: Step, reads: Sequence[int], sizes: Sequence[int]) -> int:
    """How many operands a kernel that splits rows reads in strides; those much smaller are broadcast.

    What is fused into such a kernel is read so too: XLA:CPU has 4 to 30 times the seconds for it (1024 x 768 elements,
    12 operands: 4.0 against 0.14 ns per element and operand).
    """
    written = sizes[step.writes[0]]
    return sum([2 * sizes[b] >= written for b in reads])


def slow_elements(eqn: Any, kind: Kind, operand_bytes: float, result_bytes: float) -> float:
    """Return the elements that an equation stores in 16 bits or reduces, with those that pad them to tiles.

    Bytes are those of its first operand and its first result in memory.
    """
    if eqn is None:
        return 0.0
    if kind == Kind.REDUCE:
        return operand_bytes / eqn.invars[0].aval.dtype.itemsize
    return result_bytes / 2 if item_bytes(eqn) == 2 else 0.0
