"""What decorating costs when a step is traced: GPT-2 small in Flax Linen, plain against planned.

In: nothing (shapes only; nothing is compiled). Out: ``results/decorating.md``.

Every variant is traced in turn, ``--repeats`` times over, in one process: ``jax.jit(jax.value_and_grad(loss)).trace``.
The figure is the median of the ratios to the plain trace of the same round. Plans are made before: this is what is
paid for every further trace (another jit, another transformation), not the planning, which happens once per shapes.

    python -m benchmarks decorating
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

import remat_plan as rp
from benchmarks.common import Options, Report, percent

BUDGET, QUICK_BUDGET = "50%", "98%"
REPEATS = 9


class Block(nn.Module):
    """One layer: x is float32[B, S, D]."""

    heads: int
    activation: Callable[[jax.Array], jax.Array]
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(jnp.zeros(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(self.heads)(y, mask=mask)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        y = nn.Dense(x.shape[-1])(self.activation(y))
        return x + nn.Dropout(self.dropout, deterministic=self.dropout == 0.0)(y)


@dataclasses.dataclass(frozen=True)
class Gpt:
    """A model: its size and what differs between variants."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 50257
    batch: int = 8
    length: int = 512
    activation: Callable[[jax.Array], jax.Array] = nn.gelu
    dropout: float = 0.0

    def loss(self, block: Any = Block) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A loss, and the shapes of its arguments; ``block`` is the class of the layers."""
        config = self

        class Model(nn.Module):
            @nn.compact
            def __call__(self, tokens: jax.Array) -> jax.Array:
                embed = nn.Embed(config.vocab, config.width)
                x = embed(tokens) + nn.Embed(config.length, config.width)(jnp.arange(config.length))
                for number in range(config.layers):
                    x = block(config.heads, config.activation, config.dropout, name=f"block_{number}")(x)
                return embed.attend(nn.LayerNorm()(x))

        model = Model()

        def loss(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
            logits: Any = model.apply(params, tokens, rngs={"dropout": key})
            scores = nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], axis=-1))

        tokens = jax.ShapeDtypeStruct((self.batch, self.length), jnp.int32)
        key = jax.eval_shape(lambda: jax.random.key(0))
        params = jax.eval_shape(
            lambda t: model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, t), tokens
        )
        return loss, (params, tokens, key)


def variants(gpt: Gpt, budget: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The ways to write the step, by name; the plain one first."""
    loss, args = gpt.loss()
    planned = rp.linen.remat(Block, strategy="nothing", verify=False)
    return {
        "plain": (loss, args),
        f"rp.remat(loss, budget={budget!r})": (rp.remat(loss, budget=budget, verify=False), args),
        "rp.remat(loss)": (rp.remat(loss, verify=False), args),
        "nn.remat(Block)": gpt.loss(nn.remat(Block)),
        "rp.linen.remat(Block, strategy='nothing')": gpt.loss(planned),
    }


def trace_seconds(loss: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Seconds to trace the gradient step, as a ``jax.jit`` that has not seen it does."""
    step = jax.jit(lambda *given: jax.value_and_grad(loss)(*given))
    started = time.perf_counter()
    step.trace(*args)
    return time.perf_counter() - started


def measure(gpt: Gpt, budget: str, repeats: int) -> list[tuple[str, float, float]]:
    """Per variant its name, median seconds, and the median of its ratios to plain."""
    steps = variants(gpt, budget)
    for loss, args in steps.values():  # plans are made here, and JAX's own caches are filled
        trace_seconds(loss, args)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, (loss, args) in steps.items():
            seconds[name].append(trace_seconds(loss, args))
    plain = seconds["plain"]
    return [
        (name, statistics.median(s), statistics.median(a / b for a, b in zip(s, plain, strict=True)))
        for name, s in seconds.items()
    ]


def run(options: Options) -> None:
    """Measure all models and write the table."""
    size: dict[str, Any] = (
        {"layers": 2, "width": 32, "heads": 2, "vocab": 64, "batch": 2, "length": 16} if options.quick else {}
    )
    models = {
        "gelu": Gpt(**size),
        "gelu, dropout": Gpt(dropout=0.1, **size),
        "relu": Gpt(activation=nn.relu, **size),
    }
    given = (QUICK_BUDGET, 1) if options.quick else (BUDGET, REPEATS)
    report = Report(
        "decorating",
        "Seconds to trace `jax.value_and_grad` of the loss of GPT-2 small in Flax Linen (12 layers of width 768, "
        f"unrolled; shapes only) when plans are there already: medians of {REPEATS} interleaved rounds in one process, "
        "and the median ratio to the plain step of the same round, less one.",
        ("model", "step", "trace, s", "more than plain, %"),
        options.results,
    )
    worst = -1.0
    for model, gpt in models.items():
        for name, seconds, ratio in measure(gpt, *given):
            report.add(model, name, f"{seconds:.3f}", "" if name == "plain" else percent(ratio - 1, 1))
            if name.startswith("rp."):
                worst = max(worst, ratio - 1)
    report.finish([f"most that any of ours adds: {percent(worst, 1)} % (below zero: it is traced faster than plain)"])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    run(Options())
