"""The picture of README: GPT-2 small at many budgets, and the policies that people put on its layers by hand.

In: the tables ``budgets`` and ``stock`` in ``results``. Out: ``docs/images/gpt2.svg``. Run it after those benchmarks:
``python -m benchmarks.picture``; it needs matplotlib.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common import RESULTS
from remat_plan.report.palette import AFTER, BEFORE

PICTURE = Path(__file__).parent.parent / "docs/images/gpt2.svg"
MODEL = "gpt2"


def rows_of(name: str, results: Path = RESULTS) -> list[dict[str, str]]:
    """The rows of a table as its columns' heads to cells."""
    lines = [
        line for line in (results / f"{name}.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    head, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in cells if set(row[0]) != {"-"}]


def plans(results: Path = RESULTS) -> list[tuple[float, float]]:
    """Compiled GB and overhead in per cent of our plans, those at the peaks of the policies among them."""
    rows = [row for row in rows_of("budgets", results) if row["model"] == MODEL]
    found = [(float(row["compiled MB"]) / 1e3, float(row["overhead %"])) for row in rows]
    return sorted([*found, *((gigabytes, overhead) for gigabytes, overhead, _ in _each_block("our", results))])


def by_hand(results: Path = RESULTS) -> list[tuple[float, float, str]]:
    """Compiled GB, overhead in per cent and name of the policies on every layer."""
    return _each_block("stock", results)


def _each_block(whose: str, results: Path) -> list[tuple[float, float, str]]:
    """Of the policies on every layer: compiled GB, overhead and name, theirs or those of our plans."""
    found = [row for row in rows_of("stock", results) if row["model"] == MODEL]
    plain = min(float(row["our s"]) for row in found)
    return [
        (float(row[f"{whose} MB"]) / 1e3, 100 * (float(row[f"{whose} s"]) / plain - 1), row["policy"])
        for row in found
        if row["placement"] == "each block" and row["policy"] != "everything_saveable"
    ]


def draw(path: Path, results: Path = RESULTS) -> None:
    """Draw the picture."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = MODEL  # the same file from the same tables
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.8), layout="constrained", facecolor="white")
    ax = figure.subplots()
    ax.plot(*zip(*plans(results), strict=True), color=AFTER, marker="o", linewidth=1.8, label="remat_plan, any budget")
    hand = by_hand(results)
    ax.plot([x for x, _, _ in hand], [y for _, y, _ in hand], "D", color=BEFORE, label="jax.checkpoint on every layer")
    for gigabytes, overhead, name in hand:
        ax.annotate(name, (gigabytes, overhead), (8, 7), textcoords="offset points", fontsize=8, color=BEFORE)
    ax.set_xlabel("compiled peak of the gradient step (GB)")
    ax.set_ylabel("overhead (% of seconds, predicted)")
    ax.set_title("GPT-2 small, 8 x 512 tokens, float32: memory against time")
    ax.set_xlim(left=0)
    ax.set_ylim(-2, 80)
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Parse the command line and draw."""
    about = "Draw the picture of README from the tables."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=about)
    parser.add_argument("--output", type=Path, default=PICTURE, help="file to write (default: docs/images/gpt2.svg)")
    draw(parser.parse_args().output)


if __name__ == "__main__":
    main()
