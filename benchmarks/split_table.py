"""The tables of what slices gain: of the models, of the heads, and every step.

In: rows of ``benchmarks.split``. Out: a ``Report`` of three tables, with what must hold below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Report, mb, percent
from benchmarks.split_models import HEADS

PLAIN = "as written"
KINDS = ("again", "with gradients")
SLICES = (8, 32)
"""By hand: what is computed, and how often."""

SHARES = ("30%", "20%")
"""Budgets of models, of the peak as written."""

_MORE_FLOPS = 1.01
"""Beyond so many times the FLOPs of a hand a head is behind."""
_MORE_OVERHEAD = 1e-3
"""Beyond so much more overhead than without slices a model is behind."""

_MODELS = tuple(
    "model|target|as written MB|least MB|least, no slices MB|with over without %|30%|30%, no slices|20%|20%, no slices"
    "".split("|")
)
_HEADS = tuple(
    "head|target|by hand|FLOPs by hand %|FLOPs, ours %|least by hand MB|least, ours MB|ours over by hand %".split("|")
)
_STEPS = tuple(
    "model|target|step|peak MB|temporaries MB|of plain %|FLOPs %|overhead %|compiled overhead %|seconds".split("|")
)
_INTRO = """Whole models, and one gated layer: temporaries of the step as written, and at the least that a budget of one
byte names, with slices and with `never_split=True`; overheads in % at 30 and 20 % of the compiled peak as written,
predicted (in brackets: of the compiled modules, where they tell). Temporaries are compiled peaks without arguments and
results. Nothing was run."""
_HEADS_INTRO = """Published loss heads. By hand: a scan over slices of the rows in `jax.checkpoint` (*again*), which
adds up the gradients of weights in bfloat16, or one that makes the gradients meanwhile (*with gradients*), in float32
as ours. FLOPs, over those of the plain step: of 8 slices by hand, and of
our plan in their bytes. Least: temporaries of 32 slices by hand, and of ours."""
_STEPS_INTRO = """Compiled peaks and temporaries; FLOPs of the jaxpr over those of the plain step; overheads predicted
and of the compiled modules; seconds that the row took to make, of one process that others share the machine with. Of a
step that is refused, the peak is the least that the error names; shares below the least of their model are refused
without a further search."""


@dataclass(frozen=True)
class Row:
    """One step of one model on one target.

    Attributes:
        target, model, step: what it is.
        peak_bytes: compiled; the least where a budget was refused; None where there is none.
        held_bytes: arguments and results, of a step as written.
        flops: of the jaxpr.
        overhead, compiled_overhead: over the plain step, predicted and of the compiled modules.
        refused: whether the budget was.
        problem: why there is no figure.
        seconds: to make the row.
        made: with which versions, and when.
    """

    target: str
    model: str
    step: str
    peak_bytes: int | None = None
    held_bytes: int = 0
    flops: float | None = None
    overhead: float | None = None
    compiled_overhead: float | None = None
    refused: bool = False
    problem: str = ""
    seconds: float = 0.0
    made: str = ""

    def temporaries(self, plain: Row) -> int | None:
        """Bytes beside arguments and results."""
        return None if self.peak_bytes is None else self.peak_bytes - plain.held_bytes

    def cells(self, plain: Row) -> tuple[str, ...]:
        """The row as text."""
        head = self.model, self.target, self.step
        if self.peak_bytes is None or not plain.peak_bytes or not plain.flops:
            return (*head, self.problem, *"------")
        refused = self.refused and "least" not in self.step
        return (
            *(*head, f"refused: least {mb(self.peak_bytes)}" if refused else mb(self.peak_bytes)),
            *(mb(self.peak_bytes - plain.held_bytes), percent(self.peak_bytes / plain.peak_bytes)),
            "-" if self.flops is None else percent(self.flops / plain.flops),
            *("-" if share is None else percent(share) for share in (self.overhead, self.compiled_overhead)),
            f"{self.seconds:.0f}",
        )


def steps_of(name: str) -> tuple[str, ...]:
    """The steps of a head or a model, in the order they are made: later ones need figures of earlier ones."""
    if name in HEADS:
        by_hand = [f"by hand, {slices}, {kind}" for slices in SLICES for kind in KINDS]
        ours = [f"ours, in the bytes of {SLICES[0]}, {kind}" for kind in KINDS]
        return PLAIN, *by_hand, *ours, "ours, least"
    shares = [f"{share}{word}" for share in SHARES for word in ("", ", no slices")]
    return PLAIN, "least", "least, no slices", *shares


Rows = Mapping[str, Row]
"""The rows of a model on a target, by step."""


def make_report(results: Path) -> Report:
    """The tables, without rows."""
    report = Report("split", _INTRO, _MODELS, results)
    report.table("heads", _HEADS_INTRO, _HEADS)
    report.table("every step", _STEPS_INTRO, _STEPS)
    return report


def fill(report: Report, rows: Sequence[Row], models: Sequence[str], targets: Sequence[str]) -> None:
    """Put all rows into the tables, in the order of models and targets, and write them."""
    heads, steps = report.tables
    for table in (report, heads, steps):
        table.rows.clear()
    behind: list[str] = []
    known = [*targets, *dict.fromkeys(row.target for row in rows if row.target not in targets)]
    for target in known:
        for name in models:
            found = {row.step: row for row in rows if (row.target, row.model) == (target, name)}
            if PLAIN not in found:
                continue
            if name in HEADS:
                heads.rows += head_cells(found)
            else:
                report.rows.append(model_cells(found))
            behind += head_behind(found) if name in HEADS else model_behind(found)
            steps.rows += [row.cells(found[PLAIN]) for row in found.values()]
    untried = [
        f"{name} {target} ({count} of {len(steps_of(name))} steps)"
        for target in known
        for name in models
        if (count := len(set(steps_of(name)) - {row.step for row in rows if (row.target, row.model) == (target, name)}))
    ]
    missing = [f"{row.model} {row.target} {row.step} ({row.problem})" for row in rows if row.problem]
    report.facts = [f"behind: {', '.join(behind) or 'none'}", f"given up: {', '.join(missing) or 'none'}"]
    report.facts += [f"not tried: {', '.join(untried) or 'none'}"]
    report.facts += [f"made with {made}" for made in dict.fromkeys(row.made for row in rows if row.made)]
    report.write()


def model_cells(found: Rows) -> tuple[str, ...]:
    """The answers of one model."""
    plain = found[PLAIN]
    with_slices, without = _temporaries(found, "least"), _temporaries(found, "least, no slices")
    steps = [step for share in SHARES for step in (share, f"{share}, no slices")]
    return (
        *(plain.model, plain.target, _mb(plain.temporaries(plain)), _mb(with_slices), _mb(without)),
        _ratio(with_slices, without),
        *(_overhead(found.get(step)) for step in steps),
    )


def head_cells(found: Rows) -> Iterator[tuple[str, ...]]:
    """The answers of one head, beside each kind of slices by hand."""
    plain, least = found[PLAIN], _temporaries(found, "ours, least")
    for kind in KINDS:
        hand = _temporaries(found, f"by hand, {SLICES[1]}, {kind}")
        flops = [_flops(found, s) for s in (f"by hand, {SLICES[0]}, {kind}", _ours(kind))]
        yield (plain.model, plain.target, kind, *flops, _mb(hand), _mb(least), _ratio(least, hand))


def model_behind(found: Rows) -> Iterator[str]:
    """Where slices gain less than half of the temporaries, or cost time."""
    title = f"{found[PLAIN].model} {found[PLAIN].target}"
    with_slices, without = _temporaries(found, "least"), _temporaries(found, "least, no slices")
    if with_slices is not None and without is not None and with_slices > without / 2:
        yield f"{title} temporaries at the least over half of those without slices"
    for share in SHARES:
        ours, other = found.get(share), found.get(f"{share}, no slices")
        if other is None or other.overhead is None or ours is None or ours.problem:
            continue
        if ours.overhead is None or ours.overhead > other.overhead + _MORE_OVERHEAD:
            yield f"{title} {share}"


def head_behind(found: Rows) -> Iterator[str]:
    """Where a hand computes less in its bytes, or needs less."""
    title = f"{found[PLAIN].model} {found[PLAIN].target}"
    for kind in KINDS:
        hand, ours = found.get(f"by hand, {SLICES[0]}, {kind}"), found.get(_ours(kind))
        if hand is None or hand.flops is None or ours is None or ours.problem:
            continue
        if ours.flops is None or ours.flops > _MORE_FLOPS * hand.flops:
            yield f"{title} {kind}"
    hands = [_temporaries(found, f"by hand, {SLICES[1]}, {kind}") for kind in KINDS]
    least = _temporaries(found, "ours, least")
    if least is not None and any(hand is not None and least > hand for hand in hands):
        yield f"{title} least"


def _ours(kind: str) -> str:
    return f"ours, in the bytes of {SLICES[0]}, {kind}"


def _temporaries(found: Rows, step: str) -> int | None:
    row = found.get(step)
    return None if row is None else row.temporaries(found[PLAIN])


def _mb(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else mb(size_bytes)


def _ratio(ours: int | None, other: int | None) -> str:
    return "-" if ours is None or not other else percent(ours / other, 1)


def _overhead(row: Row | None) -> str:
    if row is None or row.problem:
        return "-"
    if row.overhead is None:
        return "refused"
    compiled = "" if row.compiled_overhead is None else f" ({percent(row.compiled_overhead, 1)})"
    return percent(row.overhead, 1) + compiled


def _flops(found: Rows, step: str) -> str:
    row, plain = found.get(step), found[PLAIN]
    if row is None or row.problem:
        return "-"
    return "refused" if row.flops is None or not plain.flops else percent(row.flops / plain.flops)
