"""The pods: models, chips, meshes, batches.

In: nothing. Out: ``PODS`` by name.

Sizes are those of the Llama 3 herd (https://arxiv.org/abs/2407.21783, table 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.authors.llama import DecoderSizes

LLAMA3_70B = DecoderSizes(80, 8192, 64, 8, 128, 28672, 128_256)
LLAMA3_405B = DecoderSizes(126, 16384, 128, 8, 128, 53248, 128_256)


@dataclass(frozen=True)
class Pod:
    """A training step on a mesh of ``fsdp`` x ``tensor`` chips.

    Attributes:
        model: what it is called.
        sizes: of the model.
        target: the chips, as ``rp.fit`` calls them.
        chips: how many of them the mesh has.
        tensor: so many share one layer; as many times fewer share its parameters.
        batch: sequences for each chip.
        sequence: tokens of each.
        kernels: whose attention: ``"splash"``, ``"flash"`` (Pallas for GPUs), ``"scores"`` of all pairs of tokens.
    """

    model: str
    sizes: DecoderSizes
    target: str
    chips: int
    tensor: int
    batch: int = 1
    sequence: int = 8192
    kernels: str = "splash"

    @property
    def fsdp(self) -> int:
        """How many chips share the parameters of what one chip has of a layer."""
        return self.chips // self.tensor

    def with_layers(self, layers: int) -> Pod:
        """The same with fewer layers."""
        return replace(self, sizes=replace(self.sizes, layers=layers))


PODS: dict[str, Pod] = {
    "llama3_70b_v5p_64": Pod("Llama 3 70B", LLAMA3_70B, "tpu:v5p:4x4x4", 64, 4),
    "llama3_70b_v5p_256": Pod("Llama 3 70B", LLAMA3_70B, "tpu:v5p:4x8x8", 256, 4),
    "llama3_405b_v5p_256": Pod("Llama 3 405B", LLAMA3_405B, "tpu:v5p:4x8x8", 256, 8),
    "llama3_70b_h100_256": Pod("Llama 3 70B", LLAMA3_70B, "gpu:h100:256", 256, 8, kernels="flash"),
    "llama3_405b_h100_256": Pod("Llama 3 405B", LLAMA3_405B, "gpu:h100:256", 256, 8, kernels="flash"),
}
"""By name, the smallest first."""

QUICK: dict[str, Pod] = {
    "tiny": Pod("tiny", DecoderSizes(4, 64, 4, 2, 16, 128, 256), "cpu", 1, 1, 2, 128, "scores"),
}
