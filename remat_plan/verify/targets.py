"""Devices to plan for: those of this process, and TPUs and GPUs that are not here.

In: a name, such as ``"cpu"``, ``"gpu:h100"``, ``"tpu:v5e:1x1"``, or none for this process's default device.
Out: a ``Target`` whose ``device`` can be put into a sharding, so that ``jax.jit(...).lower().compile()``
compiles for it.

XLA:TPU and XLA:GPU compile on any machine that has their wheels (``libtpu``; ``jax-cuda12-plugin``,
``jax-cuda12-pjrt`` and, for the assembler ``ptxas``, ``nvidia-cuda-nvcc-cu12``), and ``memory_analysis()`` of
the result tells the real figures. JAX calls the devices of such a compile-only backend a topology
(``jax.experimental.topologies``).

Limits: what is compiled for an absent target cannot run. A TPU process of its own holds libtpu's lock file;
``ALLOW_MULTIPLE_LIBTPU_LOAD=1`` is set here (if unset) so that several processes can compile at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import jax
from jax.experimental import topologies

from remat_plan.small.wording import did_you_mean, short
from remat_plan.verify.gpu_specs import GPUS, config_text, enlarge_memory

F = TypeVar("F", bound=Callable[..., Any])
Device: TypeAlias = Any
"""A ``jax.Device`` (which is no type to a type checker)."""

KNOWN_TPUS = (
    *("v2:1x1", "v3:1x1", "v4:1x1x1", "v4:2x2x1", "v5e:1x1", "v5e:2x2", "v5e:2x4", "v5p:1x1x1", "v5p:2x2x1"),
    *("v6e:1x1", "v6e:2x2", "v6e:2x4", "tpu7x:1x1x1", "tpu7x:2x2x1"),
)
"""Topologies that libtpu is known to accept; larger ones of the same chips work too."""

_ABSENT = (*(f"gpu:{name}" for name in GPUS), *(f"tpu:{name}" for name in KNOWN_TPUS))
"""Devices that need not be here, as a user names them."""

_TPU_MEMORY_MIB: Mapping[str, int] = {
    "TPU v2": 7662,
    "TPU v3": 15854,
    "TPU v4": 31485,
    "TPU v5 lite": 16126,
    "TPU v5": 98025,
    "TPU v6 lite": 31992,
    "TPU7x": 97012,
}
"""HBM that XLA lets a program use, by ``device_kind``: found by bisecting the largest argument that compiles
(libtpu 0.0.50). It is what is on the chip (per device) less what XLA reserves, 258 MiB on v5e."""

_TPU_ENVIRONMENT: Mapping[str, str] = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process aborts on a lock file
    "TPU_SKIP_MDS_QUERY": "1",  # do not ask Google Cloud which machine this is
    "TPU_WORKER_HOSTNAMES": "localhost",  # this and the next only silence complaints
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
}

_CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


@dataclass(frozen=True, slots=True)
class Target:
    """A device to compile for.

    Attributes:
        name: as the user wrote it, ``"default"`` for none.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"`` (JAX's name of the backend).
        attached: True when ``device`` belongs to this process and can run programs.
        device: put it into a sharding to compile for it.
        device_memory_bytes: memory of one device; None where unknown. Attached accelerators: the limit of
            JAX's allocator (by default 75 % of a GPU). Absent GPUs: what CUDA reports for the whole device.
            TPUs: what XLA lets a program use. CPU: physical memory, or the container's limit if lower.
        devices: all devices of the target, to build a ``jax.sharding.Mesh`` from; the first is ``device``.
    """

    name: str
    platform: str
    attached: bool
    device: Device
    device_memory_bytes: int | None
    devices: tuple[Device, ...] = field(default=(), repr=False)

    @property
    def compiles_slowly(self) -> bool:
        """Whether a compile takes minutes, so that few are made: for an absent TPU."""
        return self.platform == "tpu" and not self.attached


def resolve(target: str | None) -> Target:
    """Find the device that a name means.

    Args:
        target: one of

            * None or ``"default"``: the device on which ``jax.jit`` runs in this process;
            * ``"cpu"``, ``"gpu"``, ``"tpu"``: the first device of that kind in this process;
            * ``"gpu:<model>"``, for example ``"gpu:h100"``: an NVIDIA GPU that need not be here;
              ``"gpu:h100:8"`` is a host with eight; ``"gpu:<file>.txtpb"`` reads XLA's own
              description of a GPU (``GpuTargetConfigProto`` text);
            * ``"tpu:<topology>"``, for example ``"tpu:v5e:1x1"`` or ``"tpu:v5p:2x2x1"``: any that libtpu
              knows.

    Raises:
        ValueError: unknown name; the text lists those known.
        ImportError: the compiler of that platform is not installed; the text says what to install.
        RuntimeError: the compiler is installed and refused, for example because it is too old.

    >>> resolve("cpu").platform
    'cpu'
    """
    if target is None or target == "default":
        return _attached("default", _default_device())
    if not isinstance(target, str):
        raise ValueError(f"target must be a name such as 'gpu:h100' or None, got {type(target).__name__}.")
    family, _, rest = target.partition(":")
    if family not in ("cpu", "gpu", "tpu") or (family == "cpu" and rest):
        raise ValueError(_unknown(target))
    if rest:
        return _absent_gpu(target, rest) if family == "gpu" else _absent_tpu(target, rest)
    try:
        devices = jax.local_devices(backend=family)
    except RuntimeError as err:
        raise ValueError(
            f"Target {target!r} means a {family.upper()} of this process, but there is none. To plan for one that "
            f"is not attached, name it. {_known()}"
        ) from err
    return _attached(target, devices[0])


_FAMILIES = {"cuda": "gpu", "rocm": "gpu", "nvidia": "gpu"}
"""What else the devices of a family are called."""


def traced_for_target(door: F) -> F:
    """Decorate a function that takes a ``target``: kernels of Pallas that it traces are for a GPU that is not here.

    They ask what device they are for while they are traced. Inside a mesh that is set, its word is taken.
    """

    @functools.wraps(door)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with _presenting(kwargs.get("target")):
            return door(*args, **kwargs)

    return cast(F, inside)


def _presenting(name: Any) -> AbstractContextManager[Any]:
    """A context in which a GPU that is not here is the device; one without effect for other targets."""
    is_absent_gpu = isinstance(name, str) and name.startswith("gpu:") and jax.sharding.get_abstract_mesh().empty
    try:
        device = resolve(name).device if is_absent_gpu else None
    except (ValueError, ImportError, RuntimeError):  # the function itself says so, after what else is wrong
        device = None
    if device is None:
        return contextlib.nullcontext()
    abstract = jax.sharding.AbstractDevice(device.device_kind, device.core_count, "gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=abstract))


def _unknown(name: str, complaint: str = "") -> str:
    known = ["default", "cpu", "gpu", "tpu", *_ABSENT]
    said = f": {complaint.rstrip('.')}" if complaint else ""
    return f"Unknown target {short(name)}{said}.{did_you_mean(_FAMILIES.get(name, name), known)} {_known()}"


def _known() -> str:
    return f"Known: default, cpu, gpu, tpu (devices of this process), {', '.join(_ABSENT)} (and larger topologies)."


def _default_device() -> Device:
    chosen = jax.config.jax_default_device  # from jax.default_device(...): a device, a platform, or None
    if isinstance(chosen, jax.Device):
        return chosen
    return jax.local_devices(backend=chosen)[0]


def _attached(name: str, device: Device) -> Target:
    on_host = device.platform == "cpu"
    memory = _host_memory_bytes() if on_host else (device.memory_stats() or {}).get("bytes_limit")
    same = jax.local_devices(backend=device.platform)
    devices = (device, *(other for other in same if other != device))
    return Target(name, device.platform, True, device, memory, devices)


def _host_memory_bytes() -> int | None:
    """Physical memory, or the limit of the control group (container, batch job) where that is lower."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return total


@functools.cache
def _absent_tpu(name: str, topology: str) -> Target:
    if not (_has_module("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise ImportError(
            f"Target {name!r} needs XLA's TPU compiler, the wheel libtpu, which is not installed (no TPU is "
            'needed). Install it with: pip install "remat_plan[tpu]"'
        )
    if jax.default_backend() != "tpu":  # asked first, so that a real TPU is found with its own settings
        for variable, value in _TPU_ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
    devices = _tpu_devices(name, topology)
    mebibytes = _TPU_MEMORY_MIB.get(devices[0].device_kind)
    return Target(name, "tpu", False, devices[0], None if mebibytes is None else mebibytes << 20, devices)


def _tpu_devices(name: str, topology: str) -> tuple[Device, ...]:
    options: dict[str, Any] = {}
    if topology.startswith("v4:"):
        # One device a chip, as JAX runs on real v4; without this libtpu describes two of half the memory.
        options["chip_config_name"] = "megacore"
    layout = [int(n) for n in re.findall(r"\d+", topology.partition(":")[2])]
    failure: Exception | None = None
    # Older libtpu (jax 0.10) takes 2x2x1 chips a host for granted and refuses 1x1 unless told otherwise.
    for extra in ({}, {"chips_per_host_bounds": (*layout, 1, 1, 1)[:3]}):
        try:
            found = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options, **extra)
            return tuple(found.devices)
        except Exception as err:  # whatever the foreign library raises is reported below, none is hidden
            failure = failure or err
    complaint = str(failure).partition("\n")[0] or type(failure).__name__
    if complaint.startswith("INVALID_ARGUMENT"):
        raise ValueError(_unknown(name, complaint)) from failure
    raise RuntimeError(
        f"Target {name!r}: libtpu {_version('libtpu')} with jaxlib {_version('jaxlib')} said: {complaint} Each JAX "
        'release needs its own libtpu: pip install -U "remat_plan[tpu]"'
    ) from failure


@functools.cache
def _absent_gpu(name: str, rest: str) -> Target:
    model, count = _gpu_parts(name, rest)
    if model.endswith(".txtpb"):
        text, memory = enlarge_memory(Path(model).read_text())
    else:
        text, memory = config_text(GPUS[model]), GPUS[model].memory_bytes
    if not any(_has_module(plugin) for plugin in _CUDA_PLUGINS):
        raise ImportError(
            f"Target {name!r} needs XLA's GPU compiler, the wheels jax-cuda12-plugin, jax-cuda12-pjrt and "
            "nvidia-cuda-nvcc-cu12, which are not installed (no GPU or driver is needed). Install them with: "
            'pip install "remat_plan[cuda12]"'
        )
    devices = _gpu_devices(name, text, count)
    return Target(name, "gpu", False, devices[0], memory, devices)


def _gpu_parts(name: str, rest: str) -> tuple[str, int]:
    """Split ``"h100"`` or ``"h100:8"`` into a model (or an existing file) and the number of GPUs."""
    model, colon, number = rest.rpartition(":")
    if not (colon and number.isdigit()):
        model, number = rest, "1"
    known = Path(model).is_file() if model.endswith(".txtpb") else model in GPUS
    if not known or int(number) < 1:
        raise ValueError(_unknown(name))
    return model, int(number)


def _gpu_devices(name: str, text: str, count: int) -> tuple[Device, ...]:
    options = {"platform": "cuda", "target_config": text, "topology": f"1x1x{count}"}
    try:
        try:
            found = topologies.get_topology_desc(**options)
        except NotImplementedError:  # "topology not implemented for cuda": JAX dropped the plugin, see below
            _register_cuda()
            found = topologies.get_topology_desc(**options)
    except Exception as err:  # whatever the foreign library raises is reported, none is hidden
        raise RuntimeError(
            f"Target {name!r}: the CUDA plugin (jax-cuda12-pjrt {_version('jax-cuda12-pjrt')}) with jaxlib "
            f"{_version('jaxlib')} said: {err} Each JAX release needs its own: pip install -U "
            '"remat_plan[cuda12]"'
        ) from err
    return tuple(found.devices)


def _register_cuda() -> None:
    """Register the CUDA plugin where JAX itself dropped it because the CUDA libraries are missing.

    They are needed to run, not to compile. JAX makes no such check when JAX_PLATFORMS=cpu. The default device
    is settled first, so that the plugin, once registered, cannot become it.
    """
    jax.devices()
    variable = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    before = os.environ.get(variable)
    try:
        os.environ[variable] = "1"
        plugin = next(plugin for plugin in _CUDA_PLUGINS if _has_module(plugin))
        importlib.import_module(plugin).initialize()
    finally:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # found as a module, not as an installed distribution
        return "(version unknown)"
