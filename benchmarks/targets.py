"""Plans for accelerators that are not here: an H100 and a TPU v5e, float32 and bfloat16.

In: GPT-2 and ResNet-50 at full size, compiled for those devices by XLA:GPU and XLA:TPU on the CPU.
Out: ``results/targets.md``, and what is in it as ``targets.json``: what is kept there is not planned again. Needs the
extras ``cuda12`` and ``tpu``.

``python -m benchmarks.targets <model> <dtype> <target>`` is the child: it prints one line of JSON per plan.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchmarks.common import Options, Report, Session, mb, mean, percent, versions
from benchmarks.kept import Kept
from benchmarks.models import MODELS, small
from remat_plan.small.budget import BudgetError

NAMES = ("gpt2", "resnet50")
TARGETS = ("gpu:h100", "tpu:v5e:1x1")
DTYPES = ("float32", "bfloat16")
SHARES = ("75%", "50%", "30%")
MINIMUM = "minimum"
_COLUMNS = tuple(
    "model|dtype|target|plain MB|budget|budget MB|compiled MB|slack %|predicted / compiled|overhead %|compiles"
    "|planning s".split("|")
)
_INTRO = """Budgets are shares of what the plain step compiles to on that target (`rp.plan(..., target=...)`), and the
least peak that `BudgetError` reports. Compiles, planning s: for that plan alone, the plain step included. A model,
dtype and target is one child process; rows that it had not made when its time was over are missing."""


@dataclass(frozen=True)
class Row:
    """One plan.

    Attributes:
        model, dtype, target, budget: what was asked for.
        budget_bytes: the budget.
        plain_bytes: the peak of the plain step; of a budget below the least peak, that peak.
        compiled_bytes, predicted_bytes: peaks of the plan; None where the budget is below the least peak.
        overhead: recomputed seconds over plain seconds.
        compiles, seconds: of this plan.
        made: with which versions, and when.
    """

    model: str
    dtype: str
    target: str
    budget: str
    budget_bytes: int
    plain_bytes: int
    compiled_bytes: int | None = None
    predicted_bytes: int = 0
    overhead: float = 0.0
    compiles: int = 0
    seconds: float = 0.0
    made: str = ""

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"{self.model} {self.dtype} {self.target} {self.budget}"

    def cells(self) -> tuple[str, ...]:
        """As text."""
        head = self.model, self.dtype, self.target
        if self.compiled_bytes is None:
            return (*head, "", self.budget, mb(self.budget_bytes), f"minimum is {mb(self.plain_bytes)}", *[""] * 5)
        return (
            *(*head, mb(self.plain_bytes), self.budget, mb(self.budget_bytes), mb(self.compiled_bytes)),
            percent(1 - self.compiled_bytes / self.budget_bytes),
            f"{self.predicted_bytes / self.compiled_bytes:.3f}",
            *(percent(self.overhead), str(self.compiles), f"{self.seconds:.0f}"),
        )


def measure(name: str, dtype: str, target: str, quick: bool) -> None:
    """Print the plans of one model for one target, as they are made."""
    model = small(name, dtype=dtype) if quick else MODELS[name](dtype=dtype)
    session = Session(model, target)
    for budget in (*SHARES, MINIMUM):
        row = _planned(session, (name, dtype, target), budget)
        print(json.dumps(asdict(row)), flush=True)


def _planned(session: Session, head: tuple[str, str, str], budget: str) -> Row:
    """The plan for one budget, or what is needed at least."""
    try:
        planned = session.plan(session.minimum_bytes() if budget == MINIMUM else budget)
    except BudgetError as error:
        return Row(*head, budget, error.budget_bytes, error.minimum_bytes, made=versions())
    plan = planned.plan
    plain_bytes = plan.written_peak_bytes
    assert plan.budget_bytes is not None
    assert plain_bytes is not None
    return Row(
        *(*head, budget, plan.budget_bytes, plain_bytes, plan.compiled_peak_bytes),
        *(plan.predicted_peak_bytes, plan.overhead, planned.compiles, planned.seconds, versions()),
    )


def run(options: Options) -> Report:
    """Run the children whose rows are not kept; write and return the table."""
    report = Report("targets", _INTRO, _COLUMNS, options.results)
    kept = Kept(options.results / "targets.json", Row, lambda row: row.title)
    made: list[Row] = []
    missing: list[str] = []
    for target in options.targets or TARGETS:
        for name in options.choose(NAMES):
            for dtype in DTYPES:
                rows, problem = _rows(name, dtype, target, options, kept)
                if problem:
                    missing.append(f"{name} {dtype} {target} ({len(rows)} of {len(SHARES) + 1} rows: {problem})")
                made += rows
                report.facts = facts(made, missing)
                for row in rows:
                    report.add(*row.cells())
    report.finish(facts(made, missing))
    return report


def _rows(name: str, dtype: str, target: str, options: Options, kept: Kept[Row]) -> tuple[list[Row], str]:
    """The rows of one model, dtype and target, and why some are missing."""
    found = [kept.find(f"{name} {dtype} {target} {budget}") for budget in (*SHARES, MINIMUM)]
    rows = [row for row in found if row is not None]
    if len(rows) == len(found):
        return rows, ""
    rows, problem = _child(name, dtype, target, options)
    return [kept.put(row) for row in rows], problem


def _child(name: str, dtype: str, target: str, options: Options) -> tuple[list[Row], str]:
    """Rows of one child, and why some are missing."""
    command = [sys.executable, "-m", "benchmarks.targets", name, dtype, target, *(["quick"] if options.quick else [])]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("w") as out_file, err.open("w") as err_file:
            problem = _wait(command, out_file, err_file, options.timeout_seconds)
        if problem == "failed":
            problem = (err.read_text().strip().splitlines() or ["failed"])[-1][:200]
        return [Row(**json.loads(line)) for line in out.read_text().splitlines() if line.startswith("{")], problem


def _wait(command: list[str], out: IO[str], err: IO[str], seconds: float) -> str:
    started = time.perf_counter()
    try:
        done = subprocess.run(command, stdout=out, stderr=err, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"out of time after {time.perf_counter() - started:.0f} s"
    return "failed" if done.returncode else ""


def facts(rows: list[Row], missing: list[str]) -> list[str]:
    """What must hold, checked."""
    pairs = [(row, row.compiled_bytes) for row in rows if row.compiled_bytes is not None]
    over = [row.title for row, compiled in pairs if compiled > row.budget_bytes]
    far = [f"{row.title} ({row.predicted_bytes / compiled:.2f})" for row, compiled in pairs
           if abs(row.predicted_bytes / compiled - 1) > 0.1]  # fmt: skip
    found = [
        f"over the budget: {', '.join(over) or 'none'} ({len(pairs)} plans)",
        f"prediction more than 10 % off: {', '.join(far) or 'none'}",
        f"missing: {', '.join(missing) or 'none'}",
    ]
    if pairs:
        slack = mean([1 - compiled / row.budget_bytes for row, compiled in pairs])
        compiles = mean([row.compiles for row, _ in pairs])
        found.append(f"{percent(slack)} % under the budget and {compiles:.1f} compiles on average")
    return found + [f"made with {made}" for made in dict.fromkeys(row.made for row in rows if row.made)]


if __name__ == "__main__":
    measure(*sys.argv[1:4], quick="quick" in sys.argv[4:])
