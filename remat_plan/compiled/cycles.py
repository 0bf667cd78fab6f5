"""Seconds of a module compiled for a TPU, by the compiler's own estimates.

In: a ``Module``, a ``Hardware`` that names the TPU. Out: ``ModuleSeconds``, or None where the compiler gave none.

XLA:TPU chooses windows and layouts by a model of the chip, and writes what that says of the choice into the backend
config of each kernel (``estimated_cycles``). Kernels without an estimate count by the rates of the device.

Limits: copies between memories that run beside the kernels count as hidden. Compiles with the least
effort choose small windows, so their estimates, several times as high, say nothing of the program that will run; the
text does not tell such a compile.
"""

from __future__ import annotations

import re
from dataclasses import replace

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.compiled.roofline import kernel_seconds
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


def cycles(module: Module, hardware: Hardware) -> ModuleSeconds | None:
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
        return kernel_seconds(module, inside, found, rates)

    made = walk(module, price, hardware.loop_seconds)
    return made if estimated or not made.kernels else None
