"""Seconds of a compiled module by the rates of a device.

In: a ``Module``, a ``Hardware``. Out: ``ModuleSeconds``.

Each kernel takes the larger of its FLOPs over the rates of their classes and its bytes over the bandwidth. What XLA
fused, recomputed in several fusions, copied or transposed is in the module, so it is counted; this is what predictions
from the traced program cannot know. Measured rates tell classes of work, the cache, kernels that write in another order
than they read, and steps of loops apart, by the formulas of the evaluator (``Hardware``); those of data sheets do not.

Limits: kernels side by side are not known, nor how well one kernel uses the device, beyond its class. Of a loop, the
kernels that count its steps are charged as others are, beside what a step costs. Collectives count as memory traffic.
"""

from __future__ import annotations

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.compiled.traffic import traffic
from remat_plan.compiled.turns import turned_operands
from remat_plan.compiled.walk import ModuleSeconds, walk
from remat_plan.cost.hardware import Hardware


def roofline(module: Module, hardware: Hardware) -> ModuleSeconds:
    """Sum the kernels of a module by the rates of a device."""

    def price(module: Module, inside: Computation, found: Instruction) -> ModuleSeconds:
        return kernel_seconds(module, inside, found, hardware)

    return walk(module, price, hardware.loop_seconds)


def kernel_seconds(module: Module, inside: Computation, found: Instruction, hardware: Hardware) -> ModuleSeconds:
    """One kernel by the rates of a device."""
    done = traffic(module, inside, found)
    compute = sum(hardware.work_seconds(work, flops) for work, flops in done.work.items())
    turned = turned_operands(module, inside, found) if hardware.turned_bytes_per_second else 0
    seconds = hardware.kernel_seconds(compute, done.moved_bytes, turned)
    return ModuleSeconds(seconds, 1, done.matrix_flops, done.moved_bytes, opaque_kernels=int(done.is_opaque))
