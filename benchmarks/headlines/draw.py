"""The pictures of ``docs/headlines.md``: memory and overhead against depth or length.

In: the tables in ``results/headlines``. Out: ``docs/images/headlines/*.svg``. Run it after that benchmark:
``python -m benchmarks.headlines.draw``; it needs matplotlib.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.picture import rows_of

TABLES = RESULTS / "headlines"
PICTURES = Path(__file__).parents[2] / "docs/images/headlines"
Row = dict[str, str]
Lines = dict[str, list[tuple[float, float]]]


def lines_of(rows: Iterable[Row], x: str, y: str, name: str = "schedule") -> Lines:
    """A line for each schedule: column ``y`` over column ``x``; rows without a number are left out."""
    found: Lines = {}
    for row in rows:
        value = _number(row[y])
        if value is not None:
            label = "binomial" if row[name].startswith("binomial") else row[name]
            found.setdefault(label, []).append((float(row[x]), value))
    return {label: sorted(line) for label, line in found.items()}


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def draw_depth(rows: list[Row], x: str, title: str, path: Path) -> None:
    """Temporaries (logarithmic) and predicted overhead against depth or length, side by side."""
    figure, (left, right) = _figure(title)
    for axes, column in ((left, "temporaries GB"), (right, "predicted +%")):
        for label, line in lines_of(rows, x, column).items():
            axes.plot(*zip(*line, strict=True), marker="o", markersize=3.5, linewidth=1.4, label=label)
        axes.set_xlabel(x)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({float(row[x]) for row in rows}))
        _plain_numbers(axes.xaxis)
    left.set_yscale("log", base=2)
    _plain_numbers(left.yaxis)
    left.set_ylabel("temporaries (GB, compiled)")
    right.set_ylabel("overhead (%, predicted)")
    right.set_ylim(bottom=-2)
    _legend(figure, left)
    _save(figure, path)


def draw_logarithm(rows: list[Row], path: Path) -> None:
    """States and forward runs over the number of layers, with the lines of theory."""
    figure, (left, right) = _figure("O(log n) memory for O(n log n) forward runs")
    for axes, column in ((left, "temporaries"), (right, "forward runs")):
        for written, style in (("scanned", "o"), ("unrolled", "x")):
            for label, line in lines_of([r for r in rows if r["written"] == written], "layers", column).items():
                if label != "plain":
                    shown = [(x, y if axes is left else y / x) for x, y in line]
                    axes.plot(*zip(*shown, strict=True), style, markersize=5, label=f"{label}, {written}")
        axes.set_xlabel("layers n")
        axes.set_xscale("log", base=2)
        _plain_numbers(axes.xaxis)
    layers = sorted({float(row["layers"]) for row in rows})
    left.plot(layers, [math.log2(n) for n in layers], "k-", linewidth=0.9, label="log2 n")
    left.plot(layers, [2 * math.log2(n) for n in layers], "k:", linewidth=0.9, label="2 log2 n")
    right.plot(layers, [math.log2(n) for n in layers], "k-", linewidth=0.9, label="log2 n")
    right.plot(layers, [1 + math.log2(n) / 2 for n in layers], "k:", linewidth=0.9, label="1 + log2(n) / 2")
    left.set_ylabel("temporaries (states, compiled)")
    right.set_ylabel("forward runs of a layer")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=7)
    _save(figure, path)


def _plain_numbers(axis: Any) -> None:
    """Label ticks by the number itself, not by a power."""
    axis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.set_minor_formatter(lambda value, position: "")


def _legend(figure: Any, axes: Any) -> None:
    """One legend below both pictures."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)


def _figure(title: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = title  # the same file from the same tables
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained", facecolor="white")
    axes = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=10)
    for each in axes:
        each.grid(visible=True, alpha=0.25, linewidth=0.6)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _imagenet(rows: list[Row], path: Path) -> None:
    draw_depth(rows, "layers", "ResNet on ImageNet, batch 32, float32, scanned stages", path)


def _unrolled(rows: list[Row], path: Path) -> None:
    draw_depth(rows, "layers", "ResNet on ImageNet, batch 32, float32, unrolled stages", path)


def _cifar(rows: list[Row], path: Path) -> None:
    draw_depth(rows, "layers", "ResNet on CIFAR-10, batch 1280, float32, scanned stages", path)


def _lstm(rows: list[Row], path: Path) -> None:
    draw_depth(rows, "steps", "LSTM of four layers, batch 64, float32, one scan", path)


PICTURE: dict[str, Callable[[list[Row], Path], None]] = {
    "imagenet": _imagenet,
    "imagenet_unrolled": _unrolled,
    "cifar": _cifar,
    "lstm": _lstm,
    "logarithm": draw_logarithm,
}
"""What draws the table of each name."""


def draw(output: Path = PICTURES, tables: Path = TABLES) -> list[Path]:
    """Draw the pictures of the tables that are there; return their files."""
    made = []
    for name, drawing in PICTURE.items():
        if (tables / f"{name}.md").exists():
            made.append(output / f"{name}.svg")
            drawing(rows_of(name, tables), made[-1])
    return made


def main() -> None:
    """Parse the command line and draw."""
    about = "Draw the pictures of docs/headlines.md from the tables."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.headlines.draw", description=about)
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder (default: docs/images/headlines)")
    for path in draw(parser.parse_args().output):
        print(path)


if __name__ == "__main__":
    main()
