"""Gradient steps that run: of a traced call on its own arrays, on a device that is attached.

In: flat gradient steps (``verify.step``), their arguments, a ``Target``. Out: ``Run``s to be timed; the name of the
device, and the most memory it says it had in use.

Steps are jitted with the options under which plans are verified, and arguments are on the device before the clock runs.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from remat_plan.clock.turns import Run
from remat_plan.small.wording import short
from remat_plan.verify.compile import compiler_options
from remat_plan.verify.targets import Device, Target, resolve


def attached(name: str, what: str) -> Target:
    """Return the target of a name, on which ``what`` is to be run; ``ValueError`` says if it is not attached."""
    cause: ValueError | None = None
    if ":" not in name:
        try:
            return resolve(name)
        except ValueError as error:  # no such device in this process
            cause = error
    raise ValueError(
        f"{what} is for {name}, which is not attached to this process, so it cannot be run. plan.compiled_overhead "
        "is the compiler's own estimate for that device; to measure, plan for the attached device (target=None)."
    ) from cause


def run_of(step: Callable[..., Any], values: Sequence[Any], target: Target) -> Run:
    """Return a flat step on values as a ``Run``."""
    given = tuple([_on_device(value, target) for value in values])
    return Run(jax.jit(step, compiler_options=compiler_options(target) or None), lambda: given)


def check_arrays(leaves: Sequence[Any], door: str) -> None:
    """Raise ``TypeError`` where arguments that were given to a door are shapes only."""
    shapes = [leaf for leaf in leaves if isinstance(leaf, (jax.ShapeDtypeStruct, Tracer))]
    if shapes:
        raise TypeError(
            f"{door} runs the step, but {len(shapes)} of its arguments are shapes without values, the first "
            f"{type(shapes[0]).__name__} {short(shapes[0])}. Pass arrays, outside jax.jit, for example "
            "jax.tree.map(lambda s: jax.numpy.ones(s.shape, s.dtype), shapes)."
        )


def with_values(tree: Any) -> Any:
    """Return a tree whose ``ShapeDtypeStruct``s are arrays: small random numbers, integers and all else zeros.

    >>> with_values(jax.ShapeDtypeStruct((2, 2), "int32")).tolist()
    [[0, 0], [0, 0]]
    """

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return 0.1 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)

    return jax.tree.map(filled, tree)


def ones(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Return arrays of ones, the cotangents of a step that is no loss."""
    return [jnp.ones(shape.shape, shape.dtype) for shape in shapes]


def _on_device(value: Any, target: Target) -> Any:
    """A value where it is run; what is spread over several devices stays where it is."""
    if isinstance(value, jax.Array) and value.sharding.num_devices > 1:
        return value
    return jax.device_put(value, target.device)


def device_name(device: Device) -> str:
    """Return what a device is called: a GPU or TPU as JAX has it, a CPU by its model and number of processors."""
    return _processor() if device.platform == "cpu" else str(device.device_kind)


@functools.cache
def _processor() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_model() or platform.processor() or platform.machine()}, {count} processors"


def _model() -> str:
    """The model of the processor, where Linux tells; "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return ""
    told = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in told.items()}
    family = "/".join(fields[k] for k in ("cpu family", "model") if k in fields)
    return f"{fields.get('model name', '')} {family}".strip()


def peak_bytes(device: Device) -> int | None:
    """Return the most bytes the device had in use since the process began; None where it does not say (a CPU)."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use")
