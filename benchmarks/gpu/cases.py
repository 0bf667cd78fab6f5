"""What is run: models at sizes that fill a good part of an H100, and a training step that does not fit.

A variant is the same loss made to need less: as written (``plain``), every block under ``jax.checkpoint`` (``hand``),
planned for half of what it needs as written (``half``), planned for the bytes of the hand (``at_hand``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import remat_plan as rp
from benchmarks.models import MODELS, Model, small

PLANS = Path(__file__).with_name("plans")
PLANNED = ("half", "at_hand")
VARIANTS = ("plain", "hand", *PLANNED)
SIZES: dict[str, dict[str, int]] = {
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "batch": 16, "sequence": 1024, "vocab": 50304},
    "resnet50": {"batch": 256},
    "gpt2_scan": {"layers": 24, "width": 1024, "heads": 16, "batch": 8, "sequence": 1024, "vocab": 32768},
    "vit": {"layers": 24, "width": 1024, "heads": 16, "batch": 64},
    "unet": {"batch": 16, "size": 256},
    "mlp": {"layers": 24, "width": 4096, "batch": 16384},
}
# AdamW on a scanned GPT-2 that needs more than twice an H100 as written.
TOO_LARGE = {"layers": 24, "width": 1024, "heads": 16, "batch": 40, "sequence": 1024, "vocab": 32768}


def model(name: str, quick: bool) -> Model:
    """A model at its size here, in bfloat16; ``quick``: a tiny one in float32, for a CPU."""
    return small(name) if quick else MODELS[name](**SIZES[name], dtype=jnp.bfloat16)


def too_large(quick: bool) -> Model:
    """The model of the step that does not fit."""
    return small("gpt2_scan") if quick else MODELS["gpt2_scan"](**TOO_LARGE, dtype=jnp.bfloat16)


def plan_file(name: str, variant: str, quick: bool) -> Path:
    """Where the plan of a variant is kept."""
    return PLANS / f"{'small-' if quick else ''}{name}-{variant}.json"


def loss_of(name: str, variant: str, quick: bool) -> tuple[Callable[..., jax.Array], rp.Plan | None]:
    """The loss to differentiate, and the plan that was applied to it, if any."""
    made = model(name, quick)
    if variant in PLANNED:
        if not (file := plan_file(name, variant, quick)).exists():
            raise FileNotFoundError(f"no plan is kept, make it with python -m benchmarks.gpu.ahead {name}")
        plan = rp.Plan.from_json(file.read_text(encoding="utf-8"))
        return plan.apply(made.loss), plan
    return (made.loss_with(jax.checkpoint) if variant == "hand" else made.loss), None
