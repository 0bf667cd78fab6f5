"""The picture of README: plans against `jax.checkpoint` on every block, in the same memory, by the clock.

In: the table ``timing`` in ``results``. Out: ``docs/images/measured.svg``. Run it after that benchmark:
``python -m benchmarks.picture``; it needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.common import RESULTS
from remat_plan.report.charts import AFTER, BEFORE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = Path(__file__).parent.parent / "docs/images/measured.svg"
TITLES = {
    "densenet": "DenseNet",
    "resnet50": "ResNet-50",
    "vit": "ViT",
    "unet": "U-Net",
    "gpt2": "GPT-2, 4 layers",
    "llama": "Llama, scanned",
}
HANDS = ("nothing_saveable", "full")
"""The names under which ``jax.checkpoint`` on every block stands in the table."""
_INK = "#7d8590"
"""Text and axes: readable on white and on a dark page, since the background is transparent."""
_GAP = 0.22
"""Half of what the line of plain JAX leaves out at each row, in rows: a little more than a label is high."""


class Pair(NamedTuple):
    """One model: megabytes and measured overhead in per cent, by hand and planned."""

    model: str
    hand_megabytes: float
    hand_overhead: float
    plan_megabytes: float
    plan_overhead: float


def rows_of(name: str, results: Path = RESULTS) -> list[dict[str, str]]:
    """The rows of a table as its columns' heads to cells."""
    lines = [
        line for line in (results / f"{name}.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    head, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in cells if set(row[0]) != {"-"}]


def pairs(results: Path = RESULTS) -> list[Pair]:
    """Each model with its hand-placed step and the plan at that peak, the largest gain first."""
    steps = {(row["model"], row["step"]): row for row in rows_of("timing", results)}
    found = []
    for (model, step), hand in steps.items():
        if step in HANDS and (plan := steps.get((model, f"plan at {step}"))) is not None:
            figures = (float(row[column]) for row in (hand, plan) for column in ("peak MB", "overhead %"))
            found.append(Pair(TITLES.get(model, model), *figures))
    return sorted(found, key=lambda pair: pair.plan_overhead - pair.hand_overhead)


def picture(rows: Sequence[Pair]) -> Figure:
    """The picture of some models."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 0.55 * len(rows) + 1.3), layout="constrained", facecolor="none")
    ax = figure.subplots()
    ax.set_facecolor("none")
    # The line of plain JAX ends above and below each row: labels of marks near it cross the place.
    gaps = [y + half for y in range(len(rows)) for half in (-_GAP, _GAP)]
    ends = [-0.5, *gaps, len(rows) - 0.5]
    ax.vlines([0] * (len(rows) + 1), ends[::2], ends[1::2], color=_INK, linewidth=1.0)
    for y, pair in enumerate(reversed(rows)):
        ax.plot([pair.hand_overhead, pair.plan_overhead], [y, y], color=_INK, linewidth=1.2, zorder=1)
        ax.scatter(
            pair.hand_overhead, y, 70, BEFORE, marker="D", zorder=2, label="" if y else "jax.checkpoint on every block"
        )
        ax.scatter(
            pair.plan_overhead,
            y,
            80,
            AFTER,
            marker="o",
            zorder=2,
            label="" if y else "remat_plan, in the same memory or less",
        )
        # The label stands on the outer side of each mark, where the line between the two is not.
        left_is_plan = pair.plan_overhead <= pair.hand_overhead
        for x, megabytes, colour, outer in (
            (pair.hand_overhead, pair.hand_megabytes, BEFORE, left_is_plan),
            (pair.plan_overhead, pair.plan_megabytes, AFTER, not left_is_plan),
        ):
            side = ("left", 8) if outer else ("right", -8)
            ax.annotate(
                f"{x:+.0f}% in {megabytes:.0f} MB",
                (x, y),
                (side[1], 0),
                textcoords="offset points",
                ha=side[0],
                va="center",
                color=colour,
                fontsize=9,
            )
    ax.set_yticks(range(len(rows)), [pair.model for pair in reversed(rows)], color=_INK, fontsize=10)
    ax.set_xlabel("measured seconds of the gradient step, against plain JAX (%)", color=_INK)
    reach = 1.6 * max(abs(x) for pair in rows for x in (pair.hand_overhead, pair.plan_overhead))  # room for labels
    ax.set_xlim(-reach, reach)
    ax.set_ylim(ends[0], ends[-1])
    ax.tick_params(colors=_INK)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(_INK)
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, labelcolor=_INK)
    return figure


def draw(path: Path, results: Path = RESULTS) -> None:
    """Draw the picture into a file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "measured"  # the same file from the same table
    figure = picture(pairs(results))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, transparent=True)


def main() -> None:
    """Parse the command line and draw."""
    about = "Draw the picture of README from the table of measured seconds."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=about)
    parser.add_argument(
        "--output", type=Path, default=PICTURE, help=f"file to write (default: docs/images/{PICTURE.name})"
    )
    draw(parser.parse_args().output)


if __name__ == "__main__":
    main()
