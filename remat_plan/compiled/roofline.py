"""Seconds of a compiled module by the rates of a device.

In: a ``Module``, a ``Hardware``. Out: ``ModuleSeconds``.

Each kernel takes the larger of its FLOPs over the rate of their units and its bytes over the bandwidth. What XLA fused,
recomputed in several fusions, copied or transposed is in the module, so it is counted; this is what predictions from
the traced program cannot know.

Limits: caches, kernels side by side, and how well one kernel uses the device are not known. Collectives count as memory
traffic.
"""

from __future__ import annotations

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.compiled.traffic import traffic
from remat_plan.compiled.walk import ModuleSeconds, walk
from remat_plan.cost.hardware import Hardware


def roofline(module: Module, hardware: Hardware) -> ModuleSeconds:
    """Sum the kernels of a module by the rates of a device."""

    def price(module: Module, inside: Computation, found: Instruction) -> ModuleSeconds:
        return kernel_seconds(module, inside, found, hardware)

    return walk(module, price)


def kernel_seconds(module: Module, inside: Computation, found: Instruction, hardware: Hardware) -> ModuleSeconds:
    """One kernel by the rates of a device."""
    done = traffic(module, inside, found)
    seconds = hardware.seconds(done.matrix_flops, done.vector_flops, done.moved_bytes)
    return ModuleSeconds(seconds, 1, done.matrix_flops, done.moved_bytes, opaque_kernels=int(done.is_opaque))
