"""Devices as two rates, and the roofline that turns FLOPs and bytes into seconds.

In: FLOPs of matrix units, FLOPs of vector units, bytes moved.
Out: predicted seconds on a ``Hardware``.

Rates are peak figures of public data sheets, used only to weigh one recomputation against another; a plan
depends on their ratios, not on their size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device as its peak rates.

    Attributes:
        name: what is shown to the user.
        matrix_flops: FLOP/s of matrix products and convolutions at the precision in use.
        vector_flops: FLOP/s of element-wise work.
        bytes_per_second: memory bandwidth.
        step_seconds: fixed cost of starting one kernel.
    """

    name: str
    matrix_flops: float
    vector_flops: float
    bytes_per_second: float
    step_seconds: float = 0.0

    def seconds(self, matrix_flops: float, vector_flops: float, moved_bytes: float) -> float:
        """Return the roofline seconds: the larger of compute and memory traffic.

        >>> Hardware("toy", 1e9, 1e9, 1e9).seconds(2e9, 0.0, 1e9)
        2.0
        """
        compute = matrix_flops / self.matrix_flops + vector_flops / self.vector_flops
        return max(compute, moved_bytes / self.bytes_per_second) + self.step_seconds


_TABLE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("cpu", 1.0e11, 2.5e10, 2.0e10),
        Hardware("gpu:t4", 8.1e12, 4.0e12, 3.2e11),
        Hardware("gpu:v100", 1.57e13, 1.4e13, 9.0e11),
        Hardware("gpu:a10g", 3.1e13, 1.5e13, 6.0e11),
        Hardware("gpu:l4", 3.0e13, 1.5e13, 3.0e11),
        Hardware("gpu:a100", 1.56e14, 1.9e13, 2.0e12),
        Hardware("gpu:h100", 4.9e14, 6.0e13, 3.35e12),
        Hardware("gpu:h200", 4.9e14, 6.0e13, 4.8e12),
        Hardware("tpu:v2", 2.2e13, 1.5e12, 7.0e11),
        Hardware("tpu:v3", 6.1e13, 2.0e12, 9.0e11),
        Hardware("tpu:v4", 1.37e14, 4.0e12, 1.2e12),
        Hardware("tpu:v5e", 1.0e14, 3.0e12, 8.2e11),
        Hardware("tpu:v5p", 2.3e14, 6.0e12, 2.76e12),
        Hardware("tpu:v6e", 4.6e14, 7.0e12, 1.64e12),
        Hardware("tpu:tpu7x", 1.1e15, 1.5e13, 7.4e12),
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

    Args:
        target_name: the target.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        device_kind: what JAX calls an attached device, for targets whose name does not say.
    """
    parts = target_name.split(":")
    key = ":".join(parts[:2]).split("-")[0] if len(parts) > 1 else target_name
    if key in _TABLE:
        return _TABLE[key]
    for part, row in _KINDS:
        if part in device_kind.lower() and row.startswith(platform):
            return _TABLE[row]
    return _TABLE[_FALLBACK.get(platform, "cpu")]
