"""Seconds that a compiled module takes, read from its text.

In: the text of an optimised module, the platform it was compiled for, the rates of the device. Out: ``ModuleSeconds``,
or None where the text does not tell.

It is a second opinion on overhead, independent of the evaluator that chose a schedule: of the compiler's cycles on a
TPU, of the kernels that it made elsewhere.
"""

from __future__ import annotations

from remat_plan.compiled.cycles import cycles
from remat_plan.compiled.hlo import parse
from remat_plan.compiled.roofline import roofline
from remat_plan.compiled.walk import ModuleSeconds
from remat_plan.cost.hardware import Hardware


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
    return cycles(module, hardware) if platform == "tpu" else roofline(module, hardware)
