"""What authors' policies and our plans in their bytes come to, compiled for the chips that MaxText ships them for.

In: ``benchmarks.shipped.configs``. Out: ``results/shipped.md``, and what is in it as ``shipped.json``: a step that is
kept there is not made again. Nothing is run. Needs the extra ``tpu``.

``python -m benchmarks.shipped.table <name> <step> <file>`` is the child: it makes one step of one configuration and
prints it as a line of JSON. One that takes longer than ``--timeout`` is given up, and the table says so.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import Options, Report, Session, mb, percent, raw_step, versions
from benchmarks.shipped.configs import QUICK, SHIPPED, Shipped
from benchmarks.shipped.decoders import build
from benchmarks.steps_kept import StepTable
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Request
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

THEIRS, OURS = "theirs", "ours"
_COLUMNS = tuple(
    "configuration|chips|policy|step|device MB|temporaries MB|host MB|TFLOPs|seconds|FLOPs %|time %|compiles|minutes"
    .split("|")
)  # fmt: skip
_SAME = 0.01
"""FLOPs or seconds of two steps that differ by no more than this share are the same."""

_INTRO = """Ten configurations that MaxText ships, with the policy that their authors chose (*theirs*), and planned in
the device bytes which the compiler says that needs (*ours*; `rp.plan(..., never_recompute=())`, which lets gathered
weights be gathered again as under a policy). Where the policy moves values to the host, ours may, up to the same bytes;
the others plan without. The gradient step of one chip of all that are named, compiled for these: bytes of arguments,
outputs and temporaries, of temporaries alone (TPUs count those that become outputs), and of those on the host; FLOPs of
the jaxpr; seconds of the compiled module by XLA's own cycles, transfers beside kernels, collectives as memory traffic;
none where the compiler refuses the step for its bytes. FLOPs %, time %: over theirs. Compiles, minutes: of the plan, on
a machine with other work.

Widths, batches, sequences, trip counts and names are theirs; parameters in float32, spread over all chips (FSDP; GPT-3:
two chips share a layer), gathered in bfloat16 in each layer. Attention is JAX's splash kernels in blocks of 512, opaque
to plans, which tell XLA the FLOPs of the blocks that they run. The optimizer is not part of the step, and XLA's flags
are its defaults. Losses in parts (`num_vocab_tiling`) are theirs alone: ours are planned of the loss as one."""


@dataclass(frozen=True)
class Row:
    """One compiled step of a configuration."""

    name: str
    step: str
    peak_bytes: int = 0
    temp_bytes: int = 0
    host_bytes: int = 0
    flops: float = 0.0
    seconds: float | None = None
    compiles: int = 0
    minutes: float = 0.0
    problem: str = ""
    made: str = ""

    def cells(self, c: Shipped, theirs: Row | None) -> tuple[str, ...]:
        """As text, beside the step of the authors."""
        start = self.name, c.target, c.policy, self.step
        if self.problem:
            return *start, self.problem, *[""] * (len(_COLUMNS) - 5)
        ratio = percent(self.flops / theirs.flops, 1) if theirs and theirs.flops else ""
        share = percent(self.seconds / theirs.seconds, 1) if theirs and theirs.seconds and self.seconds else ""
        return (
            *(*start, mb(self.peak_bytes), mb(self.temp_bytes), mb(self.host_bytes), f"{self.flops / 1e12:.1f}"),
            *("" if self.seconds is None else f"{self.seconds:.3f}", ratio, share),
            *((str(self.compiles), f"{self.minutes:.1f}") if self.step == OURS else ("", "")),
        )


def make_theirs(name: str, c: Shipped) -> Row:
    """The step as the authors wrote it."""
    model, loss = build(c)
    step, structs = raw_step(model, loss)
    target = resolve(c.target)
    hardware = hardware_for(target.name, target.platform)
    made = compile_memory(step, structs, target, hardware=hardware)
    flops = evaluate(jax.make_jaxpr(step)(*structs), hardware).flops
    sizes = made.total_bytes, made.temp_bytes, made.host_temp_bytes
    return Row(name, THEIRS, *sizes, flops, made.seconds, made=versions())


def make_ours(name: str, c: Shipped, theirs: Row) -> Row:
    """The step planned in the bytes of theirs."""
    started = time.perf_counter()
    session = Session(build(c)[0], c.target)
    asked: dict[str, Any] = {"never_recompute": ()}
    if theirs.host_bytes:
        asked |= {"offload": True, "host_budget": theirs.host_bytes}
        session.judge.host_bytes = theirs.host_bytes
    request = Request(lookup("auto"), True, (0,), False, (), "replan", make_constraints(**asked))
    row = Row(name, OURS, made=versions())
    try:
        plan = session.make_plan(theirs.peak_bytes, request)
    except BudgetError as error:
        row = replace(row, problem=f"least {mb(error.minimum_bytes)}")
    else:
        compiled, timeline = session.judge.compiled(plan.schedule), session.judge.timeline(plan.schedule)
        sizes = compiled.total_bytes, compiled.temp_bytes, compiled.host_temp_bytes
        row = replace(
            row,
            **dict(zip(("peak_bytes", "temp_bytes", "host_bytes"), sizes, strict=True)),
            flops=timeline.flops,
            seconds=compiled.seconds,
        )
    minutes = (time.perf_counter() - started) / 60
    return replace(row, compiles=len(set(session.judge.asked)), minutes=minutes)


def facts_of(rows: Sequence[Row], names: Iterable[str] = ()) -> list[str]:
    """What must hold, checked: what is behind a policy, and in what; of all ``names``, what is missing."""
    known = {(row.name, row.step): row for row in rows}
    behind, unknown, count = [], [], 0
    for row in rows:
        theirs = known.get((row.name, THEIRS))
        if row.problem:
            unknown.append(f"{row.name} {row.step} ({row.problem})")
        if row.problem or row.step != OURS or theirs is None or theirs.problem:
            continue
        count += 1
        reasons = [
            f"{what} {percent(ours / their - 1, 1)} % more"
            for what, ours, their, slack in (
                ("device bytes", row.peak_bytes, theirs.peak_bytes, 0.0),
                ("host bytes", row.host_bytes, max(theirs.host_bytes, 1), 0.0),
                ("FLOPs", row.flops, theirs.flops, _SAME),
                ("time", row.seconds or 0.0, theirs.seconds or float("inf"), _SAME),
            )
            if ours > (1 + slack) * their
        ]
        if reasons:
            behind.append(f"{row.name} ({', '.join(reasons)})")
    missing = [f"{name} {step}" for name in names for step in (THEIRS, OURS) if (name, step) not in known]
    told = "; ".join(behind) or "none"
    return [
        f"behind the policy of the authors: {len(behind)} of {count}: {told}",
        f"without a figure: {', '.join(unknown) or 'none'}",
        f"not made yet: {', '.join(missing) or 'none'}",
        *(f"made with {made}" for made in dict.fromkeys(row.made for row in rows if row.made)),
    ]


TABLE = StepTable("shipped", _INTRO, _COLUMNS, "benchmarks.shipped.table", Row, (THEIRS, OURS), facts_of)


def run(options: Options) -> Report:
    """Make what is missing; write and return the table of all that is kept."""
    return TABLE.run(options, QUICK if options.quick else SHIPPED)


def make(name: str, step: str, path: Path) -> Row:
    """One step of a configuration; ours in the bytes of theirs, which is kept in a file."""
    c = {**SHIPPED, **QUICK}[name]
    if step == THEIRS:
        return make_theirs(name, c)
    theirs = TABLE.kept(path).find((name, THEIRS))
    assert theirs is not None
    return make_ours(name, c, theirs)


if __name__ == "__main__":
    print(json.dumps(asdict(make(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))
