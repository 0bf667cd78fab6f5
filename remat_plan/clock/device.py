"""What is known of the device that things are timed on: its name, and the most memory it says it had in use.

In: a ``jax.Device``. Out: text; bytes, or None where the device does not say.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from remat_plan.verify.targets import Device


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
