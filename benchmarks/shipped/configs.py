"""The configurations: sizes, chips, batches, and what the authors of MaxText keep, move and compute again.

Facts of https://github.com/AI-Hypercomputer/maxtext (August 2026): ``src/maxtext/configs/models`` has the sizes,
``benchmarks/maxtext_*_model_configs.py`` the rest. Where a configuration names no number of chips, it is that of the
recipes which Google publishes for it; for Llama 3 8B on a v6e, where none was found, 256.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from benchmarks.authors.llama import DecoderSizes

INPUT = "decoder_layer_input"
QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
PRODUCTS = (*QKV, "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")


@dataclass(frozen=True)
class Sizes(DecoderSizes):
    """Sizes of a decoder and of what its layers see.

    Attributes:
        theta: base of the rotary positions, of layers that see all positions.
        windows: of the layers in one step of the scan: the positions each sees, 0 for all.
        family: what a layer looks like.
    """

    theta: float = 10_000.0
    windows: tuple[int, ...] = (0,)
    family: Literal["llama", "gpt3", "gemma3"] = "llama"


@dataclass(frozen=True)
class Shipped:
    """A configuration.

    Attributes:
        sizes: of the model.
        target: the chips, as ``rp.plan`` calls them; ``tensor`` of them share one layer, the others its batch.
        batch: sequences of each chip, of all that share a layer where these are several.
        sequence: tokens of each.
        policy: what the authors call what they do with a layer.
        kept, moved: named values that it keeps on the device, and on the host; a layer's input is kept anyhow.
        tiles: how many parts the loss is computed in.
    """

    sizes: Sizes
    target: str
    batch: int
    sequence: int
    policy: str
    kept: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    tiles: int = 1
    tensor: int = 1
    kernels: bool = field(default=True)


_LLAMA2_7B = Sizes(32, 4096, 32, 32, 128, 11008, 32000)
_LLAMA2_13B = Sizes(40, 5120, 40, 40, 128, 13824, 32000)
_LLAMA2_70B = Sizes(80, 8192, 64, 8, 128, 28672, 32000)
_LLAMA3_8B = Sizes(32, 4096, 32, 8, 128, 14336, 128_256, 500_000.0)
_LLAMA3_405B = Sizes(126, 16384, 128, 8, 128, 53248, 128_256, 500_000.0)
_MISTRAL_7B = Sizes(32, 4096, 32, 8, 128, 14336, 32000, 1_000_000.0)
_GPT3_175B = Sizes(96, 12288, 96, 96, 128, 49152, 50304, family="gpt3")
_GEMMA3_12B = Sizes(48, 3840, 16, 8, 256, 15360, 262_144, 1_000_000.0, (1024,) * 5 + (0,), "gemma3")
_FIVE = (INPUT, "out_proj", *QKV[:3])

SHIPPED: dict[str, Shipped] = {
    "llama2_7b_v5e": Shipped(_LLAMA2_7B, "tpu:v5e:16x16", 4, 2048, "save_qkv_proj", kept=QKV),
    "llama2_13b_v5e": Shipped(_LLAMA2_13B, "tpu:v5e:16x16", 6, 2048, "qkv_proj_offloaded", moved=QKV[:3]),
    "llama3_1_8b_v5e": Shipped(_LLAMA3_8B, "tpu:v5e:16x16", 2, 8192, "five offloaded", moved=_FIVE),
    "mistral_7b_v6e": Shipped(_MISTRAL_7B, "tpu:v6e:2x4", 6, 8192, "five offloaded", moved=_FIVE),
    "llama3_8b_v6e": Shipped(_LLAMA3_8B, "tpu:v6e:16x16", 8, 8192, "full"),
    "llama2_7b_v5p": Shipped(_LLAMA2_7B, "tpu:v5p:4x4x4", 4, 4096, "minimal", kept=PRODUCTS),
    "llama2_70b_v5p": Shipped(
        _LLAMA2_70B, "tpu:v5p:4x4x4", 2, 4096, "save_dot_except_mlpwi", kept=(*QKV, "out_proj", "mlpwo")
    ),
    "gpt3_175b_v5p": Shipped(
        *(_GPT3_175B, "tpu:v5p:4x4x4", 1, 4096, "save_dot_with_context_except_mlp"),
        kept=(*QKV, "context", "out_proj"),
        tensor=2,
    ),
    "gemma3_12b_v6e": Shipped(_GEMMA3_12B, "tpu:v6e:16x16", 1, 32768, "inputs kept", kept=(INPUT,), tiles=16),
    "llama3_1_405b_v5p": Shipped(
        _LLAMA3_405B, "tpu:v5p:8x8x8", 2, 8192, "two offloaded", kept=(INPUT,), moved=("context", "mlpwo"), tiles=4
    ),
}
"""By name, the smallest first."""

QUICK: dict[str, Shipped] = {
    "llama": Shipped(Sizes(4, 64, 4, 2, 16, 128, 256), "cpu", 2, 64, "save_qkv_proj", kept=QKV, tiles=2, kernels=False),
    "gpt3": Shipped(
        Sizes(4, 64, 4, 4, 16, 128, 256, family="gpt3"), "cpu", 2, 64, "minimal", kept=PRODUCTS, kernels=False
    ),
    "gemma3": Shipped(
        Sizes(4, 64, 4, 2, 16, 128, 256, windows=(16, 0), family="gemma3"), "cpu", 2, 64, "full", kernels=False
    ),
}
"""Tiny ones, of each family."""
