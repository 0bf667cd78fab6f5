"""The architectures by name, and predicted against compiled peaks of each.

In: nothing. Out: ``results/architectures.md``, and ``architectures.json`` with what was compiled: a schedule that is
still the same is not compiled again. Plain, and the first schedule of ``memory``; float32. Needs the extras ``cuda12``
and ``tpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.architectures import images, routed, sequences
from benchmarks.common import Options, Report, Session, versions
from benchmarks.kept import Kept
from benchmarks.models import Model
from benchmarks.peaks import COLUMNS, Compiled, facts, measure
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.limits import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import make_task
from remat_plan.planning.strategies.records import Settings
from remat_plan.planning.strategies.registry import Strategies

ARCHITECTURES: dict[str, Callable[[], Model]] = {
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
    "experts": routed.experts,
}
TARGETS = ("cpu", "gpu:h100", "tpu:v5e:1x1")
QUICK = ("experts",)
_INTRO = """Architectures at small sizes that no rule of the evaluator was fitted to before this table, but those for
loops of state-space models and library calls on a CPU, for row reductions on a GPU and for batches of products on a
TPU. `memory`: the first schedule of that strategy."""


def schedules(session: Session) -> Iterator[tuple[str, Schedule]]:
    """The schedules to compile, by name."""
    yield "plain", session.program.plain
    find = Strategies()["memory"].find
    assert find is not None
    yield (
        "memory",
        find(make_task(session.program.graph, session.judge.hardware, NO_CONSTRAINTS, Settings())).schedules[0],
    )


def run(options: Options) -> Report:
    """Compile all; write and return the table."""
    report = Report("architectures", _INTRO, COLUMNS, options.results)
    kept = Kept(options.results / "architectures.json", Compiled, lambda compiled: compiled.key)
    ratios: dict[str, dict[str, float]] = {}
    for target in options.targets or TARGETS:
        found = ratios.setdefault(target, {})
        for name in QUICK if options.quick else options.choose(tuple(ARCHITECTURES)):
            for schedule, ratio in measure(report, ARCHITECTURES[name](), "float32", target, kept, schedules):
                found[f"{name} {schedule}"] = ratio
            report.facts = facts(ratios)
    made = dict.fromkeys([compiled.made for compiled in kept.read()] or [versions()])
    report.finish(facts(ratios) + [f"compiled with {each}" for each in made])
    return report
