"""What each rule of the evaluator gains: predictions without it, against peaks and overheads that were compiled.

In: ``peaks.json``, ``architectures.json``, ``overheads.json`` and ``overheads_held_out.json`` of the folder of results,
as far as they are there. Out: ``results/predict.md``, with the table of ``docs/limits.md`` below. Nothing is compiled.

The rules were read off the models of ``peaks`` and ``overheads`` and off the architectures, but for those of
``architectures.fresh``, which are held out for good; no rule about time was read off any architecture. ``--without``
names the rules to leave out, one at a time; its table is printed, and not written over that of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import overheads
from benchmarks.architectures.fresh import FRESH
from benchmarks.architectures.table import ARCHITECTURES
from benchmarks.common import Options, Report, mean
from benchmarks.kept import Kept
from benchmarks.models import MODELS, Model, small
from benchmarks.peaks import SIZES, Compiled
from benchmarks.predictions import Steps, restored, steps_of
from remat_plan.cost.backend import GENERIC, Backend
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.platforms import backend_for, judged_by

_COLUMNS = (
    *("target", "without", "rows changed", "in sample", "architectures", "held out", "overheads"),
    *("overheads held out", "gain in sample", "but for one model", "gain in architectures", "gain held out"),
    *("gain in overheads", "gain in overheads held out"),
)
_INTRO = """How far predictions are off without each rule of a backend: mean |predicted / compiled - 1| of peaks, in per
cent. *In sample*: the models of `peaks`, which most rules were read off; *architectures*: those of `architectures` that
others were; *held out*: those that none was, and none will be. *Overheads* (of `overheads`, in sample, and of all
architectures, which no rule about time was read off): mean |predicted - compiled|, in points. Gains are what the rule
takes off these means; *but for one model* is the gain in sample without the model that gains most. Empty: no figures
are kept for the target. A rule stays if it gains held out, or at least 0.1 points of overheads, or half a point in
sample or over the architectures on several models and nothing is lost held out."""

_RANGES = "Predicted over compiled peak in sample, lowest and highest row, by target, type and model."

_AS_IT_IS, _ALL = "nothing", "all rules"
_CHANGED = 1e-3
"""The share by which a prediction has to move to count as changed."""

Figure = tuple[str, str]
"""A model, and a schedule or step of it."""


@dataclass
class Offs:
    """How far predictions of one kind are off, by figure, for one target and one variant of its rules."""

    predicted: dict[Figure, float] = field(default_factory=dict)
    compiled: dict[Figure, float] = field(default_factory=dict)

    def put(self, figure: Figure, predicted: float, compiled: float) -> None:
        """Add one figure."""
        self.predicted[figure], self.compiled[figure] = predicted, compiled

    def off(self, besides: str = "") -> float:
        """The mean, without one model."""
        return mean([abs(p - self.compiled[f]) for f, p in self.predicted.items() if f[0] != besides])

    def changed(self, other: Offs) -> int:
        """How many figures differ from another variant's."""
        return sum(abs(p - other.predicted[f]) > _CHANGED for f, p in self.predicted.items())

    def gain(self, full: Offs) -> float:
        """What the rules that are left out here take off the mean."""
        return self.off() - full.off()

    def gain_but_for_one(self, full: Offs) -> float:
        """The same, without the model that gains most."""
        models = dict.fromkeys(model for model, _ in self.predicted)
        return min([self.off(m) - full.off(m) for m in models], default=self.gain(full)) if len(models) > 1 else 0.0


Offsets = defaultdict[tuple[str, str], dict[str, Offs]]
"""By target and what is left out, and by kind of figure."""

IN_SAMPLE, LEARNED, HELD_OUT, OVERHEADS, OVERHEADS_HELD_OUT = KINDS = (
    *("in sample", "architectures", "held out"),
    *("overheads", "overheads held out"),
)


def variants(target: str, wanted: Sequence[str]) -> dict[str, Backend]:
    """The rules of a target as they are, without any, and without each one (that is ``wanted``, if some are)."""
    full = backend_for(hardware_for(target, _platform(target)))
    single = {rule: full.without(rule) for rule in full.habits() if not wanted or rule in wanted}
    return {_AS_IT_IS: full, **single, _ALL: GENERIC}


def run(options: Options) -> Report:
    """Predict all; write and return the table."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.without else options.results
        report = Report("predict", _INTRO, _COLUMNS, folder)
        ranges = report.table("Lowest and highest", _RANGES, ("", *SIZES))
        found: Offsets = defaultdict(lambda: {kind: Offs() for kind in KINDS})
        for kind, model, steps, rows in _models(options):
            print(kind, model, flush=True)
            for target in sorted({row.target for row in rows}):
                mine = [row for row in rows if row.target == target]
                for name, rules in variants(target, options.without).items():
                    with judged_by(_platform(target), rules):
                        for step, predicted, compiled in _figures(steps, target, mine):
                            found[target, name][kind].put((model, step), predicted, compiled)
        for target, name in sorted(found, key=lambda key: key[0]):
            report.add(target, name, *_cells(found[target, name], found[target, _AS_IT_IS]))
            if name == _AS_IT_IS:
                for row in ranges_of(target, found[target, name][IN_SAMPLE].predicted):
                    ranges.add(*row)
        report.finish(_facts(found))
    return report


def ranges_of(target: str, predicted: Mapping[Figure, float]) -> Iterator[tuple[str, ...]]:
    """The least and the most of each model of ``peaks``, a row for each type; empty where no figure is kept."""
    found: dict[str, dict[str, list[float]]] = {}
    for (model, step), ratio in predicted.items():
        found.setdefault(step.split()[-1], {}).setdefault(model, []).append(ratio)
    for dtype, models in found.items():
        shown = (f"{min(r):.2f} - {max(r):.2f}" if (r := models.get(name)) else "" for name in SIZES)
        yield f"{target}, {dtype}", *shown


def _models(options: Options) -> Iterator[tuple[str, str, Steps, Sequence[Compiled | overheads.Compiled]]]:
    """Each model that figures are kept of: their kind, its name, its steps, and the figures."""
    architectures = {make().name: make for make in ARCHITECTURES.values()}

    def tuned(name: str, dtype: str) -> Model:
        return small(name, dtype=dtype) if options.quick else MODELS[name](**SIZES[name], dtype=dtype)

    def other(name: str, _: str) -> Model:
        return architectures[name]()

    files: tuple[tuple[str, str, Callable[[str, str], Model]], ...] = (
        (IN_SAMPLE, "peaks.json", tuned),
        (LEARNED, "architectures.json", other),
    )
    for of_file, file, make in files:
        kept = Kept(options.results / file, Compiled, lambda compiled: compiled.key).read()
        for name, dtype in dict.fromkeys((row.model, row.dtype) for row in kept):
            rows = [row for row in kept if (row.model, row.dtype) == (name, dtype) and _asked(row.target, options)]
            rows = [replace(row, name=f"{row.name} {dtype}") for row in rows]
            yield HELD_OUT if name in FRESH else of_file, name, Steps(name, make(name, dtype), {}), rows
    of_time: tuple[tuple[str, str, Callable[[str], Steps]], ...] = (
        (OVERHEADS, overheads.IN_SAMPLE, partial(steps_of, options=options, sizes=overheads.SIZES)),
        (OVERHEADS_HELD_OUT, overheads.HELD_OUT, overheads.held_out),
    )
    for kind, file, steps in of_time:
        compiled = Kept(
            options.results / file, overheads.Compiled, lambda row: (row.target, row.model, row.step)
        ).read()
        for name in dict.fromkeys(row.model for row in compiled):
            yield kind, name, steps(name), [r for r in compiled if r.model == name and _asked(r.target, options)]


def _figures(
    steps: Steps, target: str, rows: Sequence[Compiled | overheads.Compiled]
) -> Iterator[tuple[str, float, float]]:
    """Of each row: its name, what is predicted, and what was compiled; peaks as shares of what was compiled."""
    hardware = hardware_for(target, _platform(target))
    for row in rows:
        if isinstance(row, Compiled):
            timeline = steps.timeline(row.name, restored(row.schedule), hardware)
            yield row.name, timeline.peak_bytes / row.peak_bytes, 1.0
    for row in overheads.rows_of(steps, target, [row for row in rows if isinstance(row, overheads.Compiled)]):
        yield row.found.step, row.predicted, row.compiled


def _cells(offs: dict[str, Offs], full: dict[str, Offs]) -> list[str]:
    changed = sum(offs[kind].changed(full[kind]) for kind in KINDS)
    means = [_points(offs[kind].off(), "") for kind in KINDS]
    if offs is full:
        return ["", *means, *[""] * (len(KINDS) + 1)]
    gains = [_points(offs[kind].gain(full[kind]), "+") for kind in KINDS]
    others = _points(offs[IN_SAMPLE].gain_but_for_one(full[IN_SAMPLE]), "+") if gains[0] else ""
    return [str(changed), *means, gains[0], others, *gains[1:]]


def _facts(found: Offsets) -> list[str]:
    lines = []
    for target in dict.fromkeys(target for target, _ in sorted(found)):
        full, none = found[target, _AS_IT_IS], found[target, _ALL]
        parts = [
            f"{kind} {_points(full[kind].off(), '')} ({_points(none[kind].off(), '')} without any rule, "
            f"{len(full[kind].predicted)} rows)"
            for kind in KINDS
            if full[kind].predicted
        ]
        lines.append(f"{target}: off by {'; '.join(parts)}")
    return lines


def _points(share: float, sign: str) -> str:
    return "" if share != share else f"{100 * share:{sign}.2f}"


def _platform(target: str) -> str:
    return target.split(":")[0]


def _asked(target: str, options: Options) -> bool:
    return not options.targets or target in options.targets
