"""Seconds that a compiled module takes, read from its text.

In: the text of an optimised module, the platform it was compiled for, the rates of the device. Out: ``ModuleSeconds``,
or None where the text does not tell. It is a second opinion on overhead, independent of the evaluator that chose a
schedule.

*CPU and GPU*: each kernel takes the larger of its FLOPs over the rates of their classes and its bytes over the
bandwidth. What XLA fused, recomputed in several fusions, copied or transposed is in the module, so it is counted; this
is what predictions from the traced program cannot know. Measured rates tell classes of work, the cache, kernels that
write in another order than they read, and steps of loops apart, by the formulas of the evaluator (``Hardware``); those
of data sheets do not.

*TPU*: XLA:TPU chooses windows and layouts by a model of the chip, and writes what that says of the choice into the
backend config of each kernel (``estimated_cycles``). Kernels without an estimate count by the rates of the device.

Limits: kernels side by side are not known, nor how well one kernel uses the device, beyond its class. Of a loop, the
kernels that count its steps are charged as others are, beside what a step costs. Collectives count as memory traffic,
copies between memories of a TPU as hidden. TPU compiles with the least effort choose small windows, so their estimates,
several times as high, say nothing of the program that will run; the text does not tell such a compile.
"""

from __future__ import annotations

import re
from dataclasses import replace

from remat_plan.compiled.hlo import Computation, Instruction, Module, parse
from remat_plan.compiled.traffic import traffic, turned_operands
from remat_plan.compiled.walk import ModuleSeconds, walk
from remat_plan.cost.hardware import Hardware

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = 2**63 - 1
"""Written where the model of the chip gave none, as for a softmax whose maximum is subtracted in its own kernel."""

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

_TYPICAL_HERTZ = 1.5e9
"""The clock of a TPU that is not in the table."""


def compiled_seconds(text: str, platform: str, hardware: Hardware) -> ModuleSeconds | None:
    """Read how long a compiled module takes.

    Args:
        text: ``compiled.as_text()``. For a TPU of a compile with default effort; of others the estimates are not true.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        hardware: rates of the device.

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
    return _cycles(module, hardware) if platform == "tpu" else _roofline(module, hardware)


def _roofline(module: Module, hardware: Hardware) -> ModuleSeconds:
    """Sum the kernels of a module by the rates of a device."""

    def price(module: Module, inside: Computation, found: Instruction) -> ModuleSeconds:
        return _kernel_seconds(module, inside, found, hardware)

    return walk(module, price, hardware.loop_seconds)


def _kernel_seconds(module: Module, inside: Computation, found: Instruction, hardware: Hardware) -> ModuleSeconds:
    """One kernel by the rates of a device."""
    done = traffic(module, inside, found)
    compute = sum(hardware.work_seconds(work, flops) for work, flops in done.work.items())
    turned = turned_operands(module, inside, found) if hardware.turned_bytes_per_second else 0
    seconds = hardware.kernel_seconds(compute, done.moved_bytes, turned)
    return ModuleSeconds(seconds, 1, done.matrix_flops, done.moved_bytes, opaque_kernels=int(done.is_opaque))


def _cycles(module: Module, hardware: Hardware) -> ModuleSeconds | None:
    """Sum the estimates of a module's kernels; None where no kernel has one."""
    hertz = CLOCK_HERTZ.get(hardware.name, _TYPICAL_HERTZ)
    rates = replace(hardware, step_seconds=0.0)  # without an estimate are counters of loops, which start no kernel
    estimated = 0

    def price(module: Module, inside: Computation, found: Instruction) -> ModuleSeconds:
        nonlocal estimated
        if found.opcode in _HIDDEN:
            return ModuleSeconds()
        estimate = _CYCLES.search(found.attributes)
        if estimate is not None and int(estimate.group(1)) < _NO_ESTIMATE:
            estimated += 1
            return ModuleSeconds(int(estimate.group(1)) / hertz, 1)
        return _kernel_seconds(module, inside, found, rates)

    made = walk(module, price, hardware.loop_seconds)
    return made if estimated or not made.kernels else None
