"""The headline results of the papers that remat_plan follows, redone: one module and one table for each.

In: ``Options``; ``--models`` chooses among ``HEADLINES``. Out: ``results/headlines/<name>.md``. ``draw`` makes
the pictures of ``docs/headlines.md`` from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.common import Options, Report
from benchmarks.headlines import checkmate, cifar, imagenet, logarithm, lstm, monet

HEADLINES: dict[str, Callable[[Options], Report]] = {
    "imagenet": imagenet.run_scanned,
    "logarithm": logarithm.run,
    "lstm": lstm.run,
    "cifar": cifar.run,
    "imagenet_unrolled": imagenet.run_unrolled,
    "monet": monet.run,
    "checkmate": checkmate.run,
    "imagenet_h100": imagenet.run_h100,
}
"""By name, in the order in which they are run."""


def run(options: Options) -> None:
    """Measure those that are chosen; write their tables."""
    inside = replace(options, results=options.results / "headlines")
    for name in options.choose(tuple(HEADLINES)):
        HEADLINES[name](inside)
