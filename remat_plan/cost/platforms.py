"""Which backend judges which platform.

In: a ``Hardware``, whose name tells the platform; backends of one's own. Out: its ``Backend``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remat_plan.cost.backend import GENERIC, Backend
from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.backends.tpu import TPU
from remat_plan.cost.hardware import Hardware

_BACKENDS = {"cpu": CPU, "gpu": GPU, "tpu": TPU}


def register_backend(platform: str, backend: Backend) -> None:
    """Make the rules of another compiler known: ``Hardware`` whose name begins with its platform is judged by them.

    The platform is a new name, such as ``"npu"``; what follows a colon in the name of a ``Hardware`` is left out.
    """
    if ":" in platform or platform in _BACKENDS:
        raise ValueError(f"platform {platform!r}: give a new name without a colon; this one has rules already.")
    _BACKENDS[platform] = backend


def backend_for(hardware: Hardware) -> Backend:
    """Return the rules of a device's backend; those of a fusing compiler where none are registered.

    >>> from remat_plan.cost.hardware import hardware_for
    >>> backend_for(hardware_for("gpu:h100", "gpu")) is GPU
    True
    """
    return _BACKENDS.get(hardware.name.split(":")[0], GENERIC)


@contextmanager
def judged_by(platform: str, backend: Backend) -> Iterator[None]:
    """Within this context, a platform goes by other rules: predictions without one show what it is worth."""
    before = _BACKENDS[platform]
    _BACKENDS[platform] = backend
    try:
        yield
    finally:
        _BACKENDS[platform] = before
