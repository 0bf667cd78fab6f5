"""Devices as rates, and the roofline that turns work and bytes into seconds.

In: FLOPs by class of work (``work``), bytes moved, bytes of memory that is touched for the first time.
Out: predicted seconds on a ``Hardware``.

Of the devices in the table, rates are peak figures of data sheets, two for all work and some more for TPUs and for
the CPU of this process (``_cpu``); a plan depends on their ratios, not on their size. Rates that were measured on an
attached device (``clock.calibrate``) have a figure for each class, and what kernels, loops and fresh memory cost beside
the roofline.

Sources. GPUs: NVIDIA's data sheets; products in 32 bits (TF32 from the A100 on), element-wise work in 32 bits, without
sparsity. TPUs: JAX's ``tpu_info`` and Google Cloud's pages, of what JAX calls one device (a core of v2, v3 and 7x, else
a chip); products in bfloat16 at 97 per cent of the peak, as XLA estimates large ones. Links to the host: seven eighths
of what PCI Express has each way in 16 lanes (a payload of 256 bytes beside headers, acknowledgements and requests), of
its third generation up to the V100, the fourth up to the L4, the fifth from the H100 on; of TPUs 16 GB/s a chip, 32
from v6e on (Austin et al., *How to scale your model*, 2025).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from remat_plan.cost.work import NARROW, REORDERED, SHALLOW, SMALL, is_product


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as its rates.

    Attributes:
        name: what is shown to the user.
        matrix_flops: FLOP/s of matrix products and convolutions at the precision in use.
        vector_flops: FLOP/s of element-wise work.
        bytes_per_second: memory bandwidth.
        step_seconds: fixed cost of starting one kernel.
        element_seconds: what a kernel takes for an element that it stores in 16 bits, or that it reduces, beside
            arithmetic and memory traffic.
        rates: FLOP/s by class of work, with or without its type, where they are known; a class that is not there goes
            by the two rates above.
        cache_bytes: a kernel that moves no more than this moves it at the next rate; 0: none does.
        cache_bytes_per_second: bandwidth of the cache.
        turned_bytes_per_second: bandwidth of a kernel that writes what it reads in another order, of one operand; 0: as
            any other kernel.
        turned_operand_bytes_per_second: the same of a kernel that computes with several operands on the way, each of
            which is read in strides.
        fresh_seconds_per_byte: what a byte of temporary memory costs that the system hands out anew in each run of the
            program, as it does on a CPU.
        fresh_least_bytes: memory below this is not handed out anew.
        loop_seconds: fixed cost of one step of a loop.
        link_bytes_per_second: bandwidth between the device's memory and its host's, each way, beside kernels; 0: its
            memory is the host's.
        measured: whether rates were measured on the device, so that differences of either sign mean something.
    """

    name: str
    matrix_flops: float
    vector_flops: float
    bytes_per_second: float
    step_seconds: float = 0.0
    element_seconds: float = 0.0
    rates: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    cache_bytes: int = 0
    cache_bytes_per_second: float = 0.0
    turned_bytes_per_second: float = 0.0
    turned_operand_bytes_per_second: float = 0.0
    fresh_seconds_per_byte: float = 0.0
    fresh_least_bytes: int = 0
    loop_seconds: float = 0.0
    link_bytes_per_second: float = 0.0
    measured: bool = False

    def kernel_seconds(
        self,
        compute_seconds: float,
        moved_bytes: float,
        turned_operands: int = 0,
        far_bytes: float = 0.0,
        elements: float = 0.0,
    ) -> float:
        """Return the seconds of one kernel: the larger of its arithmetic and its memory traffic.

        Of the bytes that it moves no cache holds the ``far_bytes``; so many operands it writes in another order than it
        reads them; ``elements`` are those that it stores in 16 bits or reduces.

        >>> Hardware("toy", 1e9, 1e9, 1e9, cache_bytes=10, cache_bytes_per_second=1e10).kernel_seconds(0.0, 10)
        1e-09
        """
        rate = self.bytes_per_second
        if turned_operands and self.turned_bytes_per_second:
            rate = self.turned_bytes_per_second if turned_operands == 1 else self.turned_operand_bytes_per_second
            return max(compute_seconds, moved_bytes / rate) + self.step_seconds
        near = moved_bytes - far_bytes
        if 0 < near <= self.cache_bytes:
            moving = near / self.cache_bytes_per_second + far_bytes / rate
        else:
            moving = moved_bytes / rate
        return max(compute_seconds, moving + elements * self.element_seconds) + self.step_seconds

    def clearing_seconds(self, written_bytes: int) -> float:
        """Return the seconds of writing zeros into arrays that no cache holds."""
        return self.kernel_seconds(0.0, written_bytes, far_bytes=written_bytes) if written_bytes else 0.0

    def work_seconds(self, work: str, flops: float) -> float:
        """Return the seconds of so many FLOPs of a class of work (see ``work.work_class``).

        >>> Hardware("toy", 1e9, 1e6, 1e9, rates={"exp float32": 1e3}).work_seconds("exp float32", 1e3)
        1.0
        """
        return flops / self.work_rate(work)

    def work_rate(self, work: str) -> float:
        """Return the FLOPs of a class of work in a second."""
        rate = self.rates.get(work) or self.rates.get(work.rpartition(" ")[0])
        return rate or (self.matrix_flops if is_product(work) else self.vector_flops)

    def link_seconds(self, size_bytes: float) -> float:
        """Return the seconds of moving bytes to the host's memory, or back.

        >>> hardware_for("gpu:h100", "gpu").link_seconds(int(5.5125e10)), hardware_for("cpu", "cpu").link_seconds(1)
        (1.0, 0.0)
        """
        return size_bytes / self.link_bytes_per_second if self.link_bytes_per_second else 0.0

    def fresh_seconds(self, temporary_bytes: int) -> float:
        """Return what a program's temporary memory costs in each run, beside what is done in it."""
        return self.fresh_seconds_per_byte * temporary_bytes if temporary_bytes >= self.fresh_least_bytes else 0.0


_PCIE_3, _PCIE_4, _PCIE_5 = (7 / 8 * 15.75e9 * doubled for doubled in (1, 2, 4))


def _tpu(
    name: str, matrix_flops: float, vector_flops: float, bytes_per_second: float, mebibytes: int, link: float = 1.6e10
) -> Hardware:
    """A TPU with so much memory on the chip, where XLA keeps what is read again, and such a link to its host.

    Vector units do four operations on 1024 elements (eight rows of 128 lanes) in a cycle. The rest is by XLA's own
    estimates for a v5e, of single kernels and of the models of ``benchmarks/overheads.py``: traffic at three quarters
    of the bandwidth, and 3.6 times as fast on the chip; eight cycles for 1024 elements that are stored in 16 bits or
    reduced; 1.2 us for the least kernel.
    """
    bytes_per_second *= 0.75
    return Hardware(
        name,
        matrix_flops,
        vector_flops,
        bytes_per_second,
        step_seconds=1.2e-6,
        element_seconds=8 * 4 / vector_flops,
        cache_bytes=mebibytes << 20,
        cache_bytes_per_second=3.6 * bytes_per_second,
        link_bytes_per_second=link,
    )


def _cpu(cores: int) -> Hardware:
    """A CPU with so many cores, by what XLA:CPU of jaxlib 0.12 does on one and two of a server of 2022 (Zen 4).

    Arithmetic, turning one operand and touching fresh memory take half as long on two cores; all other traffic goes at
    the rate of the memory, which they share; a kernel that turns one of several operands is not faster on two, nor is a
    small product. Gradients of the kernels of convolutions, convolutions over few places, and those in loops that XLA
    leaves in another order reach so small a share of what products do (the last 0.2 to 13 GFLOP/s on two cores, 1 at
    most sizes). What else ``clock.calibrate`` measures (functions of one element, caches) moves the errors of
    ``benchmarks/timing.py`` by less than a point in the median. Memory from 32 MiB on is handed out anew.
    """
    products = 8e10 * cores
    rates = {
        "convolution kernel-gradient": 0.45 * products,
        NARROW: 0.035 * products,
        SMALL: 6.4e10,
        SHALLOW: 3e10,
        REORDERED: 0.006 * products,
    }
    return Hardware(
        "cpu",
        matrix_flops=products,
        vector_flops=4e10 * cores,
        bytes_per_second=5e10,
        rates=MappingProxyType(rates),
        turned_bytes_per_second=4.5e9 * cores,
        turned_operand_bytes_per_second=2.5e9,
        fresh_seconds_per_byte=5.6e-10 / cores,
        fresh_least_bytes=32 << 20,
    )


def _cores() -> int:
    """The cores that this process may run on, as XLA:CPU counts its threads."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_TABLE: dict[str, Hardware] = {
    h.name: h
    for h in (
        _cpu(_cores()),
        Hardware("gpu:t4", 8.1e12, 4.0e12, 3.2e11, link_bytes_per_second=_PCIE_3),
        Hardware("gpu:v100", 1.57e13, 1.4e13, 9.0e11, link_bytes_per_second=_PCIE_3),
        Hardware("gpu:a10g", 3.1e13, 1.5e13, 6.0e11, link_bytes_per_second=_PCIE_4),
        Hardware("gpu:l4", 3.0e13, 1.5e13, 3.0e11, link_bytes_per_second=_PCIE_4),
        Hardware("gpu:a100", 1.56e14, 1.9e13, 2.0e12, link_bytes_per_second=_PCIE_4),
        Hardware("gpu:h100", 4.9e14, 6.0e13, 3.35e12, link_bytes_per_second=_PCIE_5),
        Hardware("gpu:h200", 4.9e14, 6.0e13, 4.8e12, link_bytes_per_second=_PCIE_5),
        _tpu("tpu:v2", 2.2e13, 2.8e12, 3.5e11, 16),
        _tpu("tpu:v3", 6.8e13, 3.9e12, 4.1e11, 16),
        _tpu("tpu:v4", 2.7e14, 8.4e12, 1.2e12, 128),
        _tpu("tpu:v5e", 1.9e14, 6.0e12, 8.2e11, 128),
        _tpu("tpu:v5p", 4.5e14, 1.4e13, 2.76e12, 128),
        _tpu("tpu:v6e", 8.9e14, 6.9e12, 1.64e12, 128, link=3.2e10),
        _tpu("tpu:tpu7x", 1.1e15, 8.7e12, 3.7e12, 64, link=3.2e10),
    )
}
_FALLBACK = {"cpu": "cpu", "gpu": "gpu:a100", "tpu": "tpu:v5e"}
_KINDS = (
    ("h200", "gpu:h200"),
    ("h100", "gpu:h100"),
    ("a100", "gpu:a100"),
    ("v100", "gpu:v100"),
    ("a10", "gpu:a10g"),
    ("l4", "gpu:l4"),
    ("t4", "gpu:t4"),
    ("v6 lite", "tpu:v6e"),
    ("v5 lite", "tpu:v5e"),
    ("v5", "tpu:v5p"),
    ("v4", "tpu:v4"),
    ("v3", "tpu:v3"),
    ("v2", "tpu:v2"),
)
"""Parts of ``device.device_kind`` and the row they mean; the first match counts."""


def hardware_for(target_name: str, platform: str, device_kind: str = "") -> Hardware:
    """Return the rates for a target such as ``"gpu:h100"`` or ``"tpu:v5e:1x1"``; a typical one when unknown.

    ``device_kind`` is what JAX calls an attached device, for targets whose name does not say.
    """
    parts = target_name.split(":")
    key = ":".join(parts[:2]).split("-")[0] if len(parts) > 1 else target_name
    if key in _TABLE:
        return _TABLE[key]
    for part, row in _KINDS:
        if part in device_kind.lower() and row.startswith(platform):
            return _TABLE[row]
    return _TABLE[_FALLBACK.get(platform, "cpu")]
