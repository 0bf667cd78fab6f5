"""Seconds that a compiled module takes, read from its text.

In: the text of an optimised module, the platform it was compiled for, the rates of the device. Out: ``ModuleSeconds``,
or None where the text does not tell. It is a second opinion on overhead, independent of the evaluator that chose a
schedule.

*CPU and GPU*: each kernel takes the larger of its FLOPs over the rates of their classes and its bytes over the
bandwidth. What XLA fused, recomputed in several fusions, copied or transposed is in the module, so it is counted; this
is what predictions from the traced program cannot know. Measured rates tell classes of work, the cache, kernels that
write in another order than they read, and steps of loops apart, by the formulas of the evaluator (``Hardware``); those
of the table do not, or only some of it.

*TPU*: XLA:TPU chooses windows and layouts by a model of the chip, and writes what that says of the choice into the
backend config of each kernel (``estimated_cycles``). Kernels without an estimate count by the rates of the device.

A loop counts its trip count times, a branch as the one that takes longest. What is started and awaited later
(``-start`` and ``-done``) counts once, as if nothing ran meanwhile.

Limits: a loop without a known trip count counts once, and is told in ``unknown_loops``. Kernels side by side are not
known, nor how well one kernel uses the device, beyond its class. Of a loop, the kernels that count its steps are
charged as others are, beside what a step costs. Collectives count as memory traffic, copies between memories of a TPU
as hidden. TPU compiles with the least effort choose small windows, so their estimates, several times as high, say
nothing of the program that will run; the text does not tell such a compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from remat_plan.compiled.hlo import Computation, Instruction, Module, parse
from remat_plan.compiled.traffic import traffic, transfer, turned_operands
from remat_plan.compiled.trips import Constants, steps_of
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.links import Link

_FREE = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all add-dependency partition-id replica-id "
    "optimization-barrier domain get-dimension-size".split()
)
_NO_WORK = frozenset(
    "AllocateBuffer ConcatBitcast Sharding SPMDFullToShardShape SPMDShardToFullShape AssumeGatherIndicesInBound".split()
)
"""Custom calls that are no kernels."""

_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,18})"')
"""Of more digits is 2**63 - 1: the model of the chip gave no estimate, as for a softmax whose maximum is subtracted in
its own kernel."""

_HIDDEN = frozenset({"copy-start", "slice-start"})
"""Copies between memories that run beside the kernels: XLA starts them early enough, where it can."""

CLOCK_HERTZ = {
    "tpu:v2": 7.0e8,
    "tpu:v3": 9.4e8,
    "tpu:v4": 1.05e9,
    "tpu:v5e": 1.5e9,
    "tpu:v5p": 1.75e9,
    "tpu:v6e": 1.75e9,
    "tpu:tpu7x": 2.2e9,
}
"""Cycles a second. v2 to v4: Jouppi et al., *TPU v4* (ISCA 2023), table 4. Later ones: the peak rate that Google gives
over the multiply-adds of all matrix units in a cycle (v5e: 197 TFLOP/s, four of 128 x 128). Seconds scale by it;
overheads, which are ratios, do not."""


class ModuleSeconds(NamedTuple):
    """What one run of a compiled module takes, as told by its text.

    Attributes:
        seconds: of all kernels, one after another.
        kernels: how many are run, those of a loop in every step.
        matrix_flops: of matrix products and convolutions; 0 where the compiler's own cycles are summed.
        moved_bytes: read and written by the kernels at their borders; 0 likewise.
        unknown_loops: loops whose trip count is not known; they count once.
        link_seconds: of a transfer to the host's memory, or ``returning`` from it, beside kernels; none is in a sum.
    """

    seconds: float = 0.0
    kernels: int = 0
    matrix_flops: float = 0.0
    moved_bytes: float = 0.0
    unknown_loops: int = 0
    link_seconds: float = 0.0
    returning: bool = False

    def times(self, count: int) -> ModuleSeconds:
        """So many runs of it."""
        return self._make([count * part for part in self])._replace(unknown_loops=self.unknown_loops)


def _total(parts: Iterable[ModuleSeconds]) -> ModuleSeconds:
    """The sum of several; transfers among them run beside the others (``cost.links``)."""
    every, link = list(parts), Link()
    for part in every:
        link.run(part.seconds, part.link_seconds, part.returning)
    whole = ModuleSeconds._make([sum(column) for column in zip(ModuleSeconds(), *every, strict=True)])
    return whole._replace(seconds=link.seconds, link_seconds=0.0, returning=False)


def compiled_seconds(text: str, platform: str, hardware: Hardware) -> ModuleSeconds | None:
    """Read how long a compiled module takes by the rates of a device from ``compiled.as_text()``.

    For a TPU that has to be of a compile with default effort; of others the estimates are not true.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from remat_plan.cost.hardware import Hardware
        >>> x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
        >>> text = jax.jit(lambda x: x @ x).lower(x).compile().as_text()
        >>> compiled_seconds(text, "cpu", Hardware("toy", 1e9, 1e9, 1e12)).matrix_flops / 256**3
        2.0
    """
    module = parse(text)
    if module is None:
        return None
    if platform != "tpu":
        return _walk(module, lambda inside, found: _kernel_seconds(module, inside, found, hardware), hardware)
    hertz = CLOCK_HERTZ.get(hardware.name, CLOCK_HERTZ["tpu:v5e"])
    rates = replace(hardware, step_seconds=0.0)  # without an estimate are counters of loops, which start no kernel
    estimated = 0

    def price(inside: Computation, found: Instruction) -> ModuleSeconds:
        nonlocal estimated
        if found.opcode in _HIDDEN:
            return ModuleSeconds()
        if estimate := _CYCLES.search(found.attributes):
            estimated += 1
            return ModuleSeconds(int(estimate.group(1)) / hertz, 1)
        return _kernel_seconds(module, inside, found, rates)

    made = _walk(module, price, hardware)
    return made if estimated or not made.kernels else None


def _kernel_seconds(module: Module, inside: Computation, found: Instruction, hardware: Hardware) -> ModuleSeconds:
    """One kernel by the rates of a device."""
    done = traffic(module, inside, found)
    compute = sum(hardware.work_seconds(work, flops) for work, flops in done.work.items())
    turned = turned_operands(module, inside, found) if hardware.turned_bytes_per_second else 0
    seconds = hardware.kernel_seconds(compute, done.moved_bytes, turned)
    return ModuleSeconds(seconds, 1, done.matrix_flops, done.moved_bytes)


def _walk(
    module: Module, price: Callable[[Computation, Instruction], ModuleSeconds], hardware: Hardware
) -> ModuleSeconds:
    """Sum what the kernels of a module cost in one run, each instruction of a computation that is no fusion."""

    def run(inside: Computation, around: Constants) -> ModuleSeconds:
        """One run of a computation; ``around`` is what is known of the values that the loop around it carries."""
        return _total(cost(inside, found, around) for found in inside.instructions.values())

    def cost(inside: Computation, found: Instruction, around: Constants) -> ModuleSeconds:
        opcode = found.opcode
        if _is_free(found):
            return ModuleSeconds()
        if opcode == "while":
            count, known = steps_of(module, inside, found, around)
            parts = [run(part, known) for part in module.called(found, "body", "condition")]
            step = _total([*parts, ModuleSeconds(hardware.loop_seconds)])
            return _total([step.times(1 if count is None else count), ModuleSeconds(unknown_loops=int(count is None))])
        if opcode == "conditional":
            keys = ("branch_computations", "true_computation", "false_computation")
            branches = [run(part, {}) for part in module.called(found, *keys)]
            return max(branches, key=lambda branch: branch.seconds, default=ModuleSeconds())
        if (moved := transfer(inside, found)) is not None:
            own = hardware.kernel_seconds(0.0, moved.size_bytes)
            link_seconds = hardware.link_seconds(moved.size_bytes)
            return ModuleSeconds(own, 1, 0.0, moved.size_bytes, link_seconds=link_seconds, returning=moved.returning)
        if opcode in ("call", "async-start"):
            return _total(run(part, {}) for part in module.called(found, "to_apply" if opcode == "call" else "calls"))
        return price(inside, found)

    return run(module.entry, {})


def _is_free(found: Instruction) -> bool:
    """Whether an instruction does nothing when the module runs."""
    if found.opcode in _FREE or found.opcode.endswith(("-done", "-update")):
        return True
    return found.opcode == "custom-call" and found.word("custom_call_target") in _NO_WORK
