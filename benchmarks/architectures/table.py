"""The architectures by name, and predicted against compiled peaks of each.

In: nothing. Out: ``results/architectures.md``, and ``architectures.json`` with what was compiled: a schedule that is
still the same is not compiled again. Plain, and the first schedule of ``memory``; float32. Needs the extras ``cuda12``
and ``tpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.architectures import images, routed, sequences
from benchmarks.architectures.fresh import FRESH
from benchmarks.common import Options, Report, versions
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
_INTRO = """Other architectures than those of `peaks`, at small sizes. Four rules of the evaluator were read off them:
for associative scans (`lru`, `mamba`) and for operands of library calls on a CPU (`convnext`), for row reductions on a
GPU (`llama`), and for batches of matrices on a TPU (`swin`); nothing was fitted to the others. `memory`: the first
schedule of that strategy."""


def run(options: Options) -> Report:
    """Compile all; write and return the table."""
    report = Report("architectures", _INTRO, COLUMNS, options.results)
    kept = Kept(options.results / "architectures.json", Compiled, lambda compiled: compiled.key)
    chosen = partial(first_schedules, strategies=("memory",))
    ratios: dict[str, dict[str, float]] = {}
    for target in options.targets or TARGETS:
        found = ratios.setdefault(target, {})
        for name in QUICK if options.quick else options.choose(tuple(ARCHITECTURES)):
            for schedule, ratio in measure(report, ARCHITECTURES[name](), "float32", target, kept, chosen):
                found[f"{name} {schedule}"] = ratio
            report.facts = facts(ratios)
    made = dict.fromkeys([compiled.made for compiled in kept.read()] or [versions()])
    report.finish(facts(ratios) + [f"compiled with {each}" for each in made])
    return report
