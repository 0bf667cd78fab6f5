"""Measured rates, kept in a file of the user's cache folder.

In: a ``Target``, the word that a user said for ``cost``. Out: ``Hardware``: of the table, or measured, once for each
device and version of JAX.

The file is named by what the rates depend on: device, processor of the host, versions of jax and jaxlib. It is written
to a temporary name and renamed, so that it is whole; where it cannot be read, or holds something else, rates are
measured anew. ``REMAT_PLAN_CACHE`` names another folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

import jax

from remat_plan.clock.calibrate import calibrate
from remat_plan.clock.steps import device_name
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.verify.targets import Target, resolve

_LOG = logging.getLogger("remat_plan")

FORMAT = 4
"""Number of the form of the file and of the probes: one more with each change after which rates mean something else."""

Cost = Literal["table", "measured"]
COSTS = get_args(Cost)
"""By whose rates seconds are predicted: those of the table, or of the attached device, measured."""


def hardware_of(target: Target, cost: str = "table", say: Callable[[str], None] = lambda stage: None) -> Hardware:
    """Return what a target's work costs: by the rates of the table, or by those measured on the device, now or before.

    ``say`` is told what is being measured. Another word than these two, or a device that is to be measured and is not
    attached, is a ``ValueError``.
    """
    table = hardware_for(target.name, target.platform, getattr(target.device, "device_kind", ""))
    if check_cost(cost) == "table":
        return table
    if not target.attached:
        raise ValueError(
            f"cost='measured': {target.name} is not attached to this process, so its rates cannot be measured. "
            "Omit cost to use the rates of the table, or plan for the attached device (target=None)."
        )
    key = hashlib.sha256(json.dumps(_identity(target), sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder() / f"rates-{key}.json"
    found = _read(path, table)
    if found is None:
        with jax.ensure_compile_time_eval():  # a function under rp.remat is planned while jax.jit traces it
            found = calibrate(target, table, say)
        _write(path, found, target)
    return found


def check_cost(cost: str) -> str:
    """Return the word that says whose seconds plans go by, or raise ``ValueError``."""
    if cost not in COSTS:
        raise ValueError(f"cost={cost!r}: choose one of {', '.join(map(repr, COSTS))}.")
    return cost


def cache_folder() -> Path:
    """Return the folder for files that can be made again: ``remat_plan`` in the user's cache folder."""
    if named := os.environ.get("REMAT_PLAN_CACHE"):
        return Path(named)
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "remat_plan"


def _identity(target: Target) -> dict[str, str | int]:
    """What rates depend on."""
    return {
        "format": FORMAT,
        "device": device_name(target.device),
        "host": device_name(resolve("cpu").device),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
    }


_FIGURES = tuple(f.name for f in fields(Hardware) if f.name not in ("name", "measured", "rates"))


def _read(path: Path, table: Hardware) -> Hardware | None:
    """Read rates back; None where there are none, or what is there is not what this module wrote."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["hardware"]
        rates = dict(data.pop("rates").items())
        figures = {name: data.pop(name) for name in _FIGURES}
        if not all(map(_is_number, (*rates.values(), *figures.values()))) or not all(rates.values()):
            raise ValueError
    except FileNotFoundError:  # measured for the first time
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # JSON of any shape
        _LOG.warning("%s cannot be read (%s: %s), so the device is measured again", path, type(error).__name__, error)
        return None
    if data or not rates or not all(figures[n] > 0 for n in ("matrix_flops", "vector_flops", "bytes_per_second")):
        return None
    return Hardware(table.name, rates=rates, measured=True, **figures)


def _is_number(found: Any) -> bool:
    return type(found) in (int, float) and math.isfinite(found) and found >= 0


def _write(path: Path, hardware: Hardware, target: Target) -> None:
    """Write rates; where that is not possible, a warning in the log says that they will be measured again."""
    figures = {name: getattr(hardware, name) for name in _FIGURES}
    data = {**_identity(target), "hardware": {**figures, "rates": dict(hardware.rates)}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1, sort_keys=True)
            os.replace(beside, path)
        except OSError:  # a full disk: nothing half-written stays
            os.unlink(beside)
            raise
    except OSError as error:  # a folder that may not be written to: these rates still serve this process
        _LOG.warning(
            "measured rates cannot be stored in %s (%s), so every process will measure again; name another folder in "
            "REMAT_PLAN_CACHE",
            path.parent,
            error,
        )
