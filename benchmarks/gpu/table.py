"""The table of what a card did, against what was said without it.

In: ``results/gpu.json`` (rows of ``benchmarks.gpu.device``), ``results/gpu_ahead.json``. Out: ``results/gpu.md``.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from benchmarks.common import Options

_INTRO = """# gpu

Six models in bfloat16 on the card, each as written (`plain`), with `jax.checkpoint` around every block (`hand`),
planned for half of the plain peak (`half`) and for the peak of the hand (`at_hand`), both without the card; a training
step (AdamW, a scanned GPT-2 of 24 layers) that does not fit as written; plans made on the card (`here`). MB: compiled
ahead of time with XLA's own kernels and with the library's, the larger; as the card compiled it; the most that JAX's
allocator had in use, what trying kernels took included. ms: median of ten steps or more after two, each to its end.
Time: against plain, as measured, as the plan predicted it, as the compiled modules told.

"""
_NEAR = 0.02
"""So near to what was compiled ahead of time a program counts as the same."""

_COLUMNS = (
    "model", "variant", "budget MB", "ahead MB", "card MB", "in use MB",
    "ms", "time % measured", "predicted", "of modules",
)  # fmt: skip


def _mb(count: float | None) -> str:
    return "" if count is None else f"{count / 1e6:.0f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f}"


def rows_of(device: list[dict[str, Any]], ahead: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the card, each with its bytes ahead of time and its time against the plain step."""
    known = {(row["model"], row["variant"]): row.get("ahead_bytes") for row in ahead}
    plain = {(row["kind"], row["model"]): row.get("ms") for row in device if row["variant"] == "plain"}
    made = []
    for row in device:
        base = plain.get(("loss" if row["kind"] == "here" else row["kind"], row["model"]))
        over = row["ms"] / base - 1 if base and "ms" in row else None
        bytes_ahead = known.get((row["model"], row["variant"])) if row["kind"] == "loss" else None
        made.append({**row, "over": over, "ahead_bytes": bytes_ahead})
    return made


def facts_of(rows: list[dict[str, Any]]) -> list[str]:
    """What the rows come to."""
    losses = [row for row in rows if row["kind"] == "loss" and "ms" in row]
    planned = [row for row in losses if "said_overhead" in row and row["over"] is not None]
    off = [row["compiled_bytes"] / row["ahead_bytes"] - 1 for row in losses if row["ahead_bytes"]]
    by_rates = [abs(row["said_overhead"] - row["over"]) for row in planned]
    by_modules = [abs(row["said_compiled_overhead"] - row["over"]) for row in planned]
    hands = {row["model"]: row for row in losses if row["variant"] == "hand"}
    ours = [(row, hands[row["model"]]) for row in losses if row["variant"] == "at_hand" and row["model"] in hands]
    faster = [f"{row['model']} {_percent(row['ms'] / hand['ms'] - 1)} %" for row, hand in ours]
    return [
        f"ours against the hand's time, planned for its bytes: {', '.join(faster)}",
        f"card's bytes over those ahead: median {_percent(statistics.median(off))} %, {_percent(min(off))} to "
        f"{_percent(max(off))} %; within {_NEAR:.0%} in {sum(abs(o) <= _NEAR for o in off)} of {len(off)} programs",
        f"time predicted, off by: median {100 * statistics.median(by_rates):.1f} points, worst "
        f"{100 * max(by_rates):.1f}; of modules: {100 * statistics.median(by_modules):.1f}, "
        f"{100 * max(by_modules):.1f}",
    ]


def run(options: Options) -> None:
    """Write the table of what is kept."""
    kept = json.loads((options.results / "gpu.json").read_text("utf-8"))
    rows = rows_of(kept["rows"], json.loads((options.results / "gpu_ahead.json").read_text("utf-8")))
    lines = [line for note in kept.get("notes", ()) for line in (note, "")]
    lines += [
        f"{kept['device']}, {kept['versions']}, {kept['date']}. Command: `make gpu`, `python -m benchmarks gpu`.",
        "",
    ]
    lines += [f"| {' | '.join(_COLUMNS)} |", "| " + "--- | " * (len(_COLUMNS) - 1) + "--- |"]
    for row in rows:
        variant = row["variant"] if row["kind"] == "loss" else f"{row['kind']}: {row['variant']}"
        sizes = [_mb(row.get(key)) for key in ("budget_bytes", "ahead_bytes", "compiled_bytes", "used_bytes")]
        told = [_percent(row.get(key)) for key in ("over", "said_overhead", "said_compiled_overhead")]
        ms = f"{row['ms']:.1f}" if "ms" in row else row["error"].split(":")[1].strip()
        lines.append(f"| {' | '.join([row['model'], variant, *sizes, ms, *told])} |")
    lines += ["", *(f"* {fact}" for fact in facts_of(rows))]
    text = _INTRO + "\n".join(lines) + "\n"
    (options.results / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
