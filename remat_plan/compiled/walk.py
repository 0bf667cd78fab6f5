"""A compiled module, kernel by kernel as often as each runs.

In: a ``Module``, the cost of one kernel. Out: ``ModuleSeconds``, the sum of one run.

A loop counts its trip count times, a branch as the one that takes longest. What is started and awaited later
(``-start`` and ``-done``) counts once, as if nothing ran meanwhile.

Limits: a loop without a known trip count counts once, and is told in ``unknown_loops``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.compiled.trips import Constants, constants_of, trip_count

_FREE = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all add-dependency partition-id replica-id "
    "optimization-barrier domain get-dimension-size".split()
)
_NO_WORK = frozenset(
    "AllocateBuffer ConcatBitcast Sharding SPMDFullToShardShape SPMDShardToFullShape AssumeGatherIndicesInBound".split()
)
"""Custom calls that are no kernels."""


@dataclass(frozen=True, slots=True)
class ModuleSeconds:
    """What one run of a compiled module takes, as told by its text.

    Attributes:
        seconds: of all kernels, one after another.
        kernels: how many are run, those of a loop in every step.
        matrix_flops: of matrix products and convolutions; 0 where the compiler's own cycles are summed.
        moved_bytes: read and written by the kernels at their borders; 0 likewise.
        unknown_loops: loops whose trip count is not known; they count once.
        opaque_kernels: calls of libraries that only their bytes are known of.
    """

    seconds: float = 0.0
    kernels: int = 0
    matrix_flops: float = 0.0
    moved_bytes: float = 0.0
    unknown_loops: int = 0
    opaque_kernels: int = 0

    def times(self, count: int) -> ModuleSeconds:
        """So many runs of it."""
        return ModuleSeconds(
            count * self.seconds,
            count * self.kernels,
            count * self.matrix_flops,
            count * self.moved_bytes,
            self.unknown_loops,
            count * self.opaque_kernels,
        )


Price = Callable[[Module, Computation, Instruction], ModuleSeconds]
"""What one kernel costs: an instruction of a computation that is no fusion."""


class _Costs(NamedTuple):
    """What one kernel costs, and what a step of a loop costs beside its kernels."""

    price: Price
    loop_seconds: float


def total(parts: Iterable[ModuleSeconds]) -> ModuleSeconds:
    """The sum of several.

    >>> total([ModuleSeconds(1.0, 1), ModuleSeconds(2.0, 3)]).kernels
    4
    """
    rows = list(parts)
    return ModuleSeconds(
        sum(r.seconds for r in rows),
        sum(r.kernels for r in rows),
        sum(r.matrix_flops for r in rows),
        sum(r.moved_bytes for r in rows),
        sum(r.unknown_loops for r in rows),
        sum(r.opaque_kernels for r in rows),
    )


def walk(module: Module, price: Price, loop_seconds: float = 0.0) -> ModuleSeconds:
    """Sum what the kernels of a module cost in one run; ``loop_seconds`` more for each step of a loop."""
    return _run(module, module.entry, {}, _Costs(price, loop_seconds))


def _run(module: Module, inside: Computation, around: Constants, costs: _Costs) -> ModuleSeconds:
    """One run of a computation; ``around`` is what is known of the values that the loop around it carries."""
    return total(_cost(module, inside, found, around, costs) for found in inside.instructions.values())


def _cost(module: Module, inside: Computation, found: Instruction, around: Constants, costs: _Costs) -> ModuleSeconds:
    opcode = found.opcode
    if is_free(found):
        return ModuleSeconds()
    if opcode == "while":
        known = constants_of(module, inside, found, around)
        parts = [_run(module, part, known, costs) for part in module.called(found, "body", "condition")]
        step = total([*parts, ModuleSeconds(costs.loop_seconds)])
        count = trip_count(module, inside, found, around)
        return total([step.times(1 if count is None else count), ModuleSeconds(unknown_loops=int(count is None))])
    if opcode == "conditional":
        keys = ("branch_computations", "true_computation", "false_computation")
        branches = [_run(module, part, {}, costs) for part in module.called(found, *keys)]
        return max(branches, key=lambda branch: branch.seconds, default=ModuleSeconds())
    if opcode in ("call", "async-start"):
        key = "to_apply" if opcode == "call" else "calls"
        return total(_run(module, part, {}, costs) for part in module.called(found, key))
    return costs.price(module, inside, found)


def is_free(found: Instruction) -> bool:
    """Whether an instruction does nothing when the module runs."""
    if found.opcode in _FREE or found.opcode.endswith(("-done", "-update")):
        return True
    return found.opcode == "custom-call" and found.word("custom_call_target") in _NO_WORK
