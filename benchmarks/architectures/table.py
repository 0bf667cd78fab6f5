"""The architectures by name, and predicted against compiled peaks of each.

In: nothing. Out: ``results/architectures.md``, with those that are held out for good (``fresh``) in a table of their
own, and ``architectures.json`` with what was compiled: a schedule that is still the same is not compiled again. Plain,
and the first schedule of ``memory``; float32. Needs the extras ``cuda12`` and ``tpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.architectures import images, routed, sequences
from benchmarks.architectures.fresh import FRESH
from benchmarks.common import Options, Report, mean, versions
from benchmarks.kept import Kept
from benchmarks.models import Model
from benchmarks.peaks import COLUMNS, Compiled, facts, first_schedules, measure

LEARNED: dict[str, Callable[[], Model]] = {
    "lru": partial(sequences.lru, False),
    "lru_complex": partial(sequences.lru, True),
    "mamba": sequences.mamba,
    "llama": sequences.llama,
    "hyena": sequences.hyena,
    "linear_attention": sequences.linear_attention,
    "perceiver": sequences.perceiver,
    "gru": sequences.gru,
    "wavenet": sequences.wavenet,
    "swin": images.swin,
    "mixer": images.mixer,
    "convnext": images.convnext,
    "upscaled": images.upscaled,
    "vqvae": images.vqvae,
    "messages": routed.messages,
    "graph_attention": routed.graph_attention,
    "experts": routed.experts,
}
"""Those that rules may be read off."""

ARCHITECTURES = LEARNED | FRESH
TARGETS = ("cpu", "gpu:h100", "tpu:v5e:1x1")
QUICK = ("experts",)
_INTRO = """Other architectures than those of `peaks`, at small sizes. Rules of the evaluator are read off these: for
associative scans (`lru`, `mamba`), operands of library calls on a CPU (`convnext`), row reductions on a GPU (`llama`),
batches of matrices on a TPU (`swin`), rows that indices fetch (`messages`, `graph_attention`), Fourier transforms
(`hyena`). `memory`: the first schedule of that strategy."""
_FRESH_INTRO = """No rule was read off these, and none will be."""


def run(options: Options) -> Report:
    """Compile all; write and return the table."""
    report = Report("architectures", _INTRO, COLUMNS, options.results)
    fresh = report.table("Held out", _FRESH_INTRO, COLUMNS)
    kept = Kept(options.results / "architectures.json", Compiled, lambda compiled: compiled.key)
    chosen = partial(first_schedules, strategies=("memory",))
    ratios: dict[str, dict[str, float]] = {}
    for target in options.targets or TARGETS:
        for name in QUICK if options.quick else options.choose(tuple(ARCHITECTURES)):
            table, group = (fresh, f"{target}, held out") if name in FRESH else (report, target)
            for schedule, ratio in measure(table, ARCHITECTURES[name](), "float32", target, kept, chosen):
                ratios.setdefault(group, {})[f"{name} {schedule}"] = ratio
            report.facts = [*means(ratios), *facts(ratios)]
    made = dict.fromkeys([compiled.made for compiled in kept.read()] or [versions()])
    report.finish([*means(ratios), *facts(ratios), *(f"compiled with {each}" for each in made)])
    return report


def means(ratios: dict[str, dict[str, float]]) -> list[str]:
    """How far off the peaks of each group are on average."""
    return [f"{group}: off by {100 * mean([abs(r - 1) for r in found.values()]):.1f} % on average"
            for group, found in ratios.items()]  # fmt: skip
