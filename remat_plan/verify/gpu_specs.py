"""NVIDIA GPUs as XLA's compiler wants them described: one template, one table row each.

In: the short name of a GPU, such as ``"h100"``.
Out: the text of XLA's ``GpuTargetConfigProto`` for it (``xla/stream_executor/device_description.proto``), and
the bytes of memory that such a GPU has.

The rows are facts from NVIDIA's data sheets and the CUDA occupancy tables; memory is what CUDA reports, which
is a little less than what is printed on the box. Memory use hardly depends on anything but the compute
capability (it selects the kernels); clock and bandwidth only weigh one fusion against another.

The text always claims ``COMPILE_MEMORY_BYTES`` of device memory. Above the memory that is claimed XLA:GPU
does not fail: it starts a recomputation pass of its own, which would hide what the program needs (seen:
10.0 GB became 5.6 GB with an 8 GB device). So compile with room to spare, and compare with
``GpuSpec.memory_bytes``.

Limits: single GPUs of CUDA platforms; AMD and Intel GPUs are not described here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COMPILE_MEMORY_BYTES = 1 << 40
"""The device memory that compiled-for GPUs claim to have: 1 TiB, so that XLA never recomputes on its own."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU.

    Attributes:
        title: what the driver calls it.
        capability: CUDA compute capability, (major, minor).
        cores: streaming multiprocessors.
        fpus: single-precision units of one multiprocessor.
        clock_ghz: boost clock.
        bandwidth_gb_per_second: memory bandwidth, 10^9 bytes a second.
        l2_mib: second-level cache, MiB.
        shared_kib: shared memory of one multiprocessor, KiB.
        threads: resident threads of one multiprocessor.
        memory_mib: device memory as CUDA reports it, MiB rounded down.
    """

    title: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    clock_ghz: float
    bandwidth_gb_per_second: float
    l2_mib: int
    shared_kib: int
    threads: int
    memory_mib: int

    @property
    def memory_bytes(self) -> int:
        """Device memory in bytes."""
        return self.memory_mib << 20


GPUS: dict[str, GpuSpec] = {
    "t4": GpuSpec("Tesla T4", (7, 5), 40, 64, 1.59, 320.064, 4, 64, 1024, 15_109),
    "v100": GpuSpec("Tesla V100-SXM2-16GB", (7, 0), 80, 64, 1.53, 898.048, 6, 96, 2048, 16_151),
    "v100-32gb": GpuSpec("Tesla V100-SXM2-32GB", (7, 0), 80, 64, 1.53, 898.048, 6, 96, 2048, 32_494),
    "rtx3090": GpuSpec("NVIDIA GeForce RTX 3090", (8, 6), 82, 128, 1.695, 936.096, 6, 100, 1536, 24_258),
    "a6000": GpuSpec("NVIDIA RTX A6000", (8, 6), 84, 128, 1.8, 768.096, 6, 100, 1536, 48_676),
    "a10g": GpuSpec("NVIDIA A10G", (8, 6), 80, 128, 1.71, 600.096, 6, 100, 1536, 22_589),
    "a100": GpuSpec("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 2039.04, 40, 164, 2048, 81_157),
    "a100-40gb": GpuSpec("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 1.41, 1555.2, 40, 164, 2048, 40_339),
    "a100-80gb": GpuSpec("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 2039.04, 40, 164, 2048, 81_157),
    "l4": GpuSpec("NVIDIA L4", (8, 9), 58, 128, 2.04, 300.096, 48, 100, 1536, 22_558),
    "l40s": GpuSpec("NVIDIA L40S", (8, 9), 142, 128, 2.52, 864.096, 96, 100, 1536, 45_466),
    "rtx4090": GpuSpec("NVIDIA GeForce RTX 4090", (8, 9), 128, 128, 2.52, 1008.096, 72, 100, 1536, 24_207),
    "h100": GpuSpec("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 3352.32, 50, 228, 2048, 81_007),
    "h100-pcie": GpuSpec("NVIDIA H100 PCIe", (9, 0), 114, 128, 1.755, 2039.04, 50, 228, 2048, 81_007),
    "h200": GpuSpec("NVIDIA H200", (9, 0), 132, 128, 1.98, 4800.0, 60, 228, 2048, 143_155),
    "b200": GpuSpec("NVIDIA B200", (10, 0), 148, 128, 1.965, 7672.32, 126, 228, 2048, 182_642),
}
"""The GPUs that can be named after ``gpu:``."""


def config_text(spec: GpuSpec) -> str:
    """Return the ``GpuTargetConfigProto`` text of a GPU, with ``COMPILE_MEMORY_BYTES`` of memory.

    >>> "major: 7 minor: 5" in config_text(GPUS["t4"])
    True
    """
    major, minor = spec.capability
    # A block may ask for all shared memory of a multiprocessor but 1 KiB, which the driver keeps from 8.0 on.
    usable_kib = spec.shared_kib - (1 if major >= 8 else 0)
    extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    return f"""\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {spec.shared_kib << 10}
  threads_per_core_limit: {spec.threads}
  core_count: {spec.cores}
  fpus_per_core: {spec.fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {round(spec.bandwidth_gb_per_second * 1e9)}
  l2_cache_size: {spec.l2_mib << 20}
  clock_rate_ghz: {spec.clock_ghz}
  device_memory_size: {COMPILE_MEMORY_BYTES}
  shared_memory_per_block_optin: {usable_kib << 10}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  pcie_bandwidth: 34359738368
  ecc_enabled: true
  name: "{spec.title}"
  driver_version: "13.0.0"
  runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{spec.title}"
"""


def enlarge_memory(text: str) -> tuple[str, int | None]:
    """Replace the device memory in a configuration by ``COMPILE_MEMORY_BYTES``; also return the bytes it had.

    >>> enlarge_memory("gpu_device_info { device_memory_size: 8000 }")
    ('gpu_device_info { device_memory_size: 1099511627776 }', 8000)
    """
    found = re.search(r"device_memory_size:\s*(\d+)", text)
    if found is None:
        return text, None
    return text[: found.start(1)] + str(COMPILE_MEMORY_BYTES) + text[found.end(1) :], int(found.group(1))
