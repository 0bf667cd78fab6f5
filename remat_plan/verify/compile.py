"""Compile a function for a target and read what memory it needs, and how long it takes.

In: a function, avals of its arguments, a ``Target``; the rates of its device, where seconds are wanted.
Out: ``CompiledMemory``, per device: bytes from XLA's ``memory_analysis()``, seconds from the text of the module
(``compiled.seconds``).

The peak is arguments + outputs - aliased + temporaries on the device, and the program's constants. Read from:

* jaxlib >= 0.11.2: ``total_allocation_bytes``. On CPU and GPU it was measured to be exactly that sum plus the
  constants, which do occupy the device (4 bytes in a plain gradient; 4 MiB where the function closes over an
  array of 4 MiB). Host memory of offloaded values is not in it.
* older, CPU and GPU: the sum. Constants are not reported, so closed-over arrays are added here.
* older, TPU: ``peak_memory_in_bytes``. The sum counts twice there: temporaries include buffers shared with
  outputs. With host offload this field is max(device, host), so it errs on the high side.

``peak_memory_in_bytes`` is meaningless on CPU.

With a GPU, XLA times its own kernels (Triton) and NVIDIA's for each matrix product; what follows is fused into the one
kind and has memory of its own behind the other. Without it, it takes its own. So for an absent GPU a program is
compiled with either, and the total is the larger: an H100 needed 10 % more than the one said, and what the other did.

Limits: nothing is run. Above the memory of an attached GPU, XLA recomputes on its own: the total is what is
left after that. Nothing is written to JAX's persistent compilation cache.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from remat_plan import _compat
from remat_plan.compiled.collectives import Collective, collectives
from remat_plan.compiled.seconds import compiled_seconds
from remat_plan.cost.hardware import Hardware
from remat_plan.verify.place import device_bytes, place, platforms_of, returned_bytes
from remat_plan.verify.targets import Target, resolve

_OUT_OF_MEMORY = (
    re.compile(r"total memory required for HLO temporaries \(([\d.]+)([KMGT]?)\)"),  # found before allocation
    re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm"),  # found by it
)

_LIBRARY_KERNELS = {"xla_gpu_enable_triton_gemm": False}
"""What has XLA:GPU call NVIDIA's library for all matrix products; see the head of this module."""

_NO_ASSEMBLER = re.compile("No PTX compilation provider|ptxas too old")
_ASSEMBLER_HELP = (
    "XLA:GPU needs NVIDIA's assembler ptxas (of CUDA 12 for GPUs before the T4), but no GPU or driver. It "
    'comes with pip install "remat_plan[cuda12]" (the wheel nvidia-cuda-nvcc-cu12). Where another ptxas is '
    "found first, set XLA_FLAGS=--xla_gpu_cuda_data_dir=<site-packages>/nvidia/cuda_nvcc."
)


@dataclass(frozen=True, slots=True)
class CompiledMemory:
    """What one compiled program needs on one device.

    Attributes:
        total_bytes: the peak (see the head of this module).
        argument_bytes: arguments that the program uses; unused ones are dropped by ``jax.jit``.
        output_bytes: outputs, donated buffers included.
        alias_bytes: outputs that live in donated arguments.
        temp_bytes: temporaries.
        host_temp_bytes: temporaries in host memory, that is, what was offloaded.
        host_held_bytes: arguments and results in host memory, those in the place of others counted once.
        compile_seconds: time spent in XLA, lowering excluded.
        flops: XLA's count for the program, a loop's body counted once; None where the backend gives none.
        seconds: of one run, as the text of the module tells; None where it was not asked for, or does not tell.
        over_device_memory: True when ``total_bytes`` is more than the target has. Where the compiler refused
            the program for that reason (TPU), ``total_bytes`` is what it said it needs, to 10 MiB; arguments
            and outputs are then those of the function, and ``temp_bytes`` is the rest (see ``returned_bytes``).
        collectives: what devices send each other, as the text of the module tells, where seconds were asked for.
        argument_shardings: of each array among the arguments where it lies, None if unused; empty where unknown.
        executable: what was compiled (``jax.stages.Compiled``), where it was asked for and can be run as it is.
    """

    total_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    host_temp_bytes: int
    compile_seconds: float
    flops: float | None
    seconds: float | None = None
    over_device_memory: bool = False
    host_held_bytes: int = 0
    collectives: tuple[Collective, ...] = ()
    argument_shardings: tuple[Sharding | None, ...] = field(default=(), compare=False, repr=False)
    executable: Any = field(default=None, compare=False, repr=False)

    @property
    def host_bytes(self) -> int:
        """All that is in host memory."""
        return self.host_temp_bytes + self.host_held_bytes


def compiler_options(target: Target | None = None) -> dict[str, str]:
    """Return what ``jax.jit(..., compiler_options=...)`` needs for ``jax.checkpoint`` to save memory.

    Empty nearly everywhere. XLA:CPU up to jaxlib 0.11.0 drops the barriers of ``jax.checkpoint`` in unrolled
    code early and merges what is recomputed with the first computation, so that little or nothing is saved
    (48 layers in segments of 8: temporaries of 54 carry-sizes instead of 14). One option keeps them. Scans
    need no help.

    Args:
        target: where the program will run; None for the default device of this process.

    >>> step = jax.jit(lambda x: 2 * x, compiler_options=compiler_options())
    """
    platform = resolve(None).platform if target is None else target.platform
    if platform == "cpu" and _compat.drops_checkpoint_barriers():
        return {"xla_disable_hlo_passes": "cse_barrier_expander"}
    return {}


def compile_memory(
    fn: Callable[..., Any],
    args_avals: tuple[Any, ...],
    target: Target,
    *,
    fast: bool = False,
    donate_argnums: int | tuple[int, ...] = (),
    compiler_options: Mapping[str, Any] | None = None,
    hardware: Hardware | None = None,
    keep_executable: bool = False,
) -> CompiledMemory:
    """Compile ``jax.jit(fn)`` for a target and return what memory it needs. Nothing is run.

    A function that is jitted already keeps its own settings (donation, static arguments). Leaves of arguments with
    shape and dtype are used as avals, others are passed as they are. A ``sharding`` over several devices is kept; where
    those are not the target's, the same mesh is laid over ``target.devices``.

    Args:
        fn, args_avals: the whole step, and one pytree for each positional argument.
        target: from ``resolve``.
        fast: TPU only: compile with XLA's least effort, 5 to 30 times faster. Memory mostly comes out within
            2.5 %; at worst it was 13 % too high, in small programs of unrolled layers, where full effort
            keeps a value in on-chip memory. Search with it, confirm without. Not for unrolled offload.
        donate_argnums: as in ``jax.jit``.
        compiler_options: more options for XLA; they win over those of ``compiler_options(target)``.
        hardware: rates, for the seconds of the module; None: they are not read. Nor are they of a ``fast`` compile,
            whose kernels are not those that will run.
        keep_executable: return what was compiled too, where it is what would run: not that of a CPU, whose machine
            code is made in less time and worse here, nor that of a device that is not this process's default.

    Raises:
        MemoryError: the compiler ran out of device memory and did not say how much it wanted. (Where it did
            say, the total is returned with ``over_device_memory``.)
        ValueError: shardings that do not fit the target's devices.
        RuntimeError: the program came out compiled for another platform, or the compiler failed.

    >>> x = jax.ShapeDtypeStruct((256, 256), "float32")
    >>> compile_memory(lambda x: x @ x, (x,), resolve("cpu")).argument_bytes
    262144
    """
    avals = place(args_avals, target)
    options = _options(target, fast, compiler_options)
    is_jitted = hasattr(fn, "trace") and donate_argnums == ()
    jitted = fn if is_jitted else jax.jit(fn, donate_argnums=donate_argnums)
    rates = None if fast and target.platform == "tpu" else hardware
    with _compat.without_key_checks():  # what is recomputed draws its random numbers again
        memory, platforms = _compile(jitted, avals, target, options, rates, _compat.without_cache_writes())
    if platforms - {target.platform} and not target.attached:
        # No argument is used, so that no sharding told XLA where to go, and it took the default device.
        there = jax.jit(jitted, out_shardings=SingleDeviceSharding(target.device))
        memory, platforms = _compile(there, avals, target, options, rates, _compat.without_cache_writes())
    if platforms - {target.platform}:
        raise RuntimeError(
            f"Asked for target {target.name!r}, but XLA compiled for {', '.join(sorted(platforms))}. Use no "
            "shardings on the arguments, or shardings on the target's devices."
        )
    runs = target.attached and not fast and target.platform != "cpu" and target.platform == jax.default_backend()
    return memory if keep_executable and runs else replace(memory, executable=None)


def compile_to_run(jitted: Any, args: Any, target: Target) -> CompiledMemory:
    """Compile a jitted function as a call with these arguments would, with the options that it has; see above.

    Into JAX's persistent compilation cache it goes like any other program that runs.
    """
    return _compile(jitted, tuple(args), target, {}, None, nullcontext())[0]


def _options(target: Target, fast: bool, more: Mapping[str, Any] | None) -> dict[str, Any]:
    options: dict[str, Any] = dict(compiler_options(target))
    if target.platform == "cpu":
        options["xla_backend_optimization_level"] = 0  # of machine code, which is made after memory was assigned
    if fast and target.platform == "tpu":
        options["optimization_level"] = 9  # an enumeration in XLA: 9 is O0, the least effort
    return options | dict(more or {})


def _compile(
    jitted: Any,
    avals: tuple[Any, ...],
    target: Target,
    options: dict[str, Any],
    hardware: Hardware | None,
    cache: AbstractContextManager[None],
) -> tuple[CompiledMemory, set[str]]:
    """Compile; return the memory, and the platforms of what the program reads (else of what it returns)."""
    traced = jitted.trace(*avals)
    is_absent_gpu = target.platform == "gpu" and not target.attached
    lowered = _compat.lower_for_absent_gpu(traced) if is_absent_gpu else traced.lower()
    start = time.perf_counter()
    try:
        with cache:
            compiled = lowered.compile(compiler_options=options or None)
            others = [lowered.compile(compiler_options=options | _LIBRARY_KERNELS)] if is_absent_gpu else []
    except RuntimeError as err:  # JaxRuntimeError is one
        donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
        told = _refused(err, avals, donated, lowered.out_info, target, time.perf_counter() - start)
        return told, {target.platform}
    seconds = time.perf_counter() - start
    stats = compiled.memory_analysis()
    if stats is None:
        raise RuntimeError(f"Target {target.name!r}: this backend does not report the memory that a program needs.")
    stats = max([stats, *(c.memory_analysis() for c in others)], key=lambda s: _total_bytes(s, target.platform, traced))
    total = _total_bytes(stats, target.platform, traced)
    text = (compiled.as_text() or "") if hardware is not None else ""
    memory = CompiledMemory(
        total_bytes=total,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        host_temp_bytes=stats.host_temp_size_in_bytes,
        compile_seconds=seconds,
        flops=_flops(compiled.cost_analysis()),
        seconds=None if hardware is None else _seconds(text, stats.temp_size_in_bytes, target, hardware),
        over_device_memory=target.device_memory_bytes is not None and total > target.device_memory_bytes,
        host_held_bytes=_held_bytes(stats, "host_"),
        collectives=collectives(text),
        argument_shardings=tuple(jax.tree.leaves(compiled.input_shardings[0], is_leaf=lambda x: x is None)),
        executable=compiled,
    )
    return memory, platforms_of(compiled.input_shardings) or platforms_of(compiled.output_shardings)


def _seconds(text: str, temp_bytes: int, target: Target, hardware: Hardware) -> float | None:
    """What one run takes, by the text of a compiled module, if it has one, and its temporaries; None if unknown."""
    found = compiled_seconds(text, target.platform, hardware)
    return None if found is None or found.unknown_loops else found.seconds + hardware.fresh_seconds(temp_bytes)


def _total_bytes(stats: Any, platform: str, traced: Any) -> int:
    """Apply the rule at the head of this module."""
    total = getattr(stats, "total_allocation_bytes", 0)
    if total:
        return total
    if platform == "tpu":
        return stats.peak_memory_in_bytes
    constants = sum(getattr(value, "nbytes", 0) for value in _compat.open_jaxpr(traced.jaxpr)[1])
    return _held_bytes(stats) + stats.temp_size_in_bytes + constants


def _held_bytes(stats: Any, memory: str = "") -> int:
    """Arguments and results, those in the place of others counted once."""
    given, made, shared = (getattr(stats, f"{memory}{what}_size_in_bytes") for what in ("argument", "output", "alias"))
    return given + made - shared


def _flops(analysis: Any) -> float | None:
    """Read the FLOPs from ``cost_analysis()``: a dict, a list of one, or None (XLA:GPU without a GPU)."""
    if isinstance(analysis, list):
        analysis = analysis[0] if analysis else None
    flops = (analysis or {}).get("flops")
    return float(flops) if flops is not None and flops >= 0 else None  # XLA says -1 for "unknown"


def _refused(
    err: RuntimeError, avals: Any, donated: Any, outputs: Any, target: Target, seconds: float
) -> CompiledMemory:
    """Turn "out of device memory" at compile time into a result; raise everything else, naming the target."""
    text = str(err)
    if "RESOURCE_EXHAUSTED" not in text:
        if target.attached:
            raise err
        if _NO_ASSEMBLER.search(text):
            text = f"{text.splitlines()[0]} {_ASSEMBLER_HELP}"
        raise RuntimeError(f"Target {target.name!r}: the compiler failed: {text}") from err
    found = next((match for pattern in _OUT_OF_MEMORY if (match := pattern.search(text))), None)
    if found is None:
        raise MemoryError(f"Target {target.name!r}: the compiler ran out of device memory: {text}") from err
    total = math.ceil(float(found.group(1)) * 1024 ** " KMGT".index(found.group(2) or " "))
    arguments, (returned, shared) = device_bytes(avals), returned_bytes(avals, donated, outputs)
    temporary = max(0, total - arguments - returned + shared)
    return CompiledMemory(total, arguments, returned, shared, temporary, 0, seconds, None, over_device_memory=True)
