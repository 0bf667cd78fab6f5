"""Plans for accelerators that are not here: an H100 and a TPU v5e, float32 and bfloat16.

In: GPT-2 and ResNet-50 at full size, compiled for those devices by XLA:GPU and XLA:TPU on the CPU.
Out: ``results/targets.md``. Needs the extras ``cuda12`` and ``tpu``.

``python -m benchmarks.targets <model> <dtype> <target>`` is the child: it prints one line of JSON per plan.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.common import Options, Report, Session, mb, percent
from benchmarks.models import MODELS, small
from remat_plan.units import BudgetError

NAMES = ("gpt2", "resnet50")
TARGETS = ("gpu:h100", "tpu:v5e:1x1")
DTYPES = ("float32", "bfloat16")
SHARES = (75, 50, 30)
_COLUMNS = tuple(
    "model|dtype|target|plain MB|budget|budget MB|compiled MB|slack %|predicted / compiled|overhead %|compiles"
    "|planning s".split("|")
)
_INTRO = """Budgets are shares of what the plain step compiles to on that target (`rp.plan(..., target=...)`), and the
least peak that `BudgetError` reports. Compiles, planning s: for that plan alone, the plain step included. A model,
dtype and target is one child process; rows that it had not made when its time was over are missing."""


def measure(name: str, dtype: str, target: str, quick: bool) -> None:
    """Print the plans of one model for one target, as they are made."""
    model = small(name, dtype=dtype) if quick else MODELS[name](dtype=dtype)
    session = Session(model, target)
    budgets: list[int | str] = [f"{share}%" for share in SHARES]
    for budget in [*budgets, 1]:
        text = budget if isinstance(budget, str) else "minimum"
        try:
            wanted = session.minimum_bytes() if text == "minimum" else budget
            planned = session.plan(wanted)
        except BudgetError as error:
            _emit(budget=text, budget_bytes=error.budget_bytes, minimum=error.minimum_bytes)
            continue
        plan = planned.plan
        _emit(
            budget=text, budget_bytes=plan.budget_bytes, plain=plan.written_peak_bytes,
            compiled=plan.compiled_peak_bytes, predicted=plan.predicted_peak_bytes, overhead=plan.overhead,
            compiles=planned.compiles, seconds=planned.seconds,
        )  # fmt: skip


def _emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def run(options: Options) -> Report:
    """Run the children; write and return the table."""
    report = Report("targets", _INTRO, _COLUMNS, options.results)
    made: list[dict[str, Any]] = []
    missing: list[str] = []
    for target in TARGETS:
        for name in options.choose(NAMES):
            for dtype in DTYPES:
                title = f"{name} {dtype} {target}"
                rows, problem = _child(name, dtype, target, options)
                for row in rows:
                    made.append({"title": f"{title} {row['budget']}", **row})
                    report.add(name, dtype, target, *_cells(row))
                if problem:
                    missing.append(f"{title} ({len(rows)} of {len(SHARES) + 1} rows: {problem})")
                report.facts = facts(made, missing)
    report.finish(facts(made, missing))
    return report


def _child(name: str, dtype: str, target: str, options: Options) -> tuple[list[dict[str, Any]], str]:
    """Rows of one child, and why some are missing."""
    command = [sys.executable, "-m", "benchmarks.targets", name, dtype, target, *(["quick"] if options.quick else [])]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("w") as out_file, err.open("w") as err_file:
            problem = _wait(command, out_file, err_file, options.timeout_seconds)
        if problem == "failed":
            problem = (err.read_text().strip().splitlines() or ["failed"])[-1][:200]
        return [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")], problem


def _wait(command: list[str], out: IO[str], err: IO[str], seconds: float) -> str:
    started = time.perf_counter()
    try:
        done = subprocess.run(command, stdout=out, stderr=err, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"out of time after {time.perf_counter() - started:.0f} s"
    return "failed" if done.returncode else ""


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "compiled" not in row:
        least = f"minimum is {mb(row['minimum'])}"
        return ("", row["budget"], mb(row["budget_bytes"]), least, *[""] * 5)
    return (
        *(mb(row["plain"]), row["budget"], mb(row["budget_bytes"]), mb(row["compiled"])),
        *(percent(1 - row["compiled"] / row["budget_bytes"]), f"{row['predicted'] / row['compiled']:.3f}"),
        *(percent(row["overhead"]), str(row["compiles"]), f"{row['seconds']:.0f}"),
    )


def facts(rows: list[dict[str, Any]], missing: list[str]) -> list[str]:
    """What must hold, checked."""
    plans = [r for r in rows if "compiled" in r]
    over = [r["title"] for r in plans if r["compiled"] > r["budget_bytes"]]
    far = [f"{r['title']} ({r['predicted'] / r['compiled']:.2f})" for r in plans
           if abs(r["predicted"] / r["compiled"] - 1) > 0.1]  # fmt: skip
    return [
        f"over the budget: {', '.join(over) or 'none'} ({len(plans)} plans)",
        f"prediction more than 10 % off: {', '.join(far) or 'none'}",
        f"missing: {', '.join(missing) or 'none'}",
    ]


if __name__ == "__main__":
    measure(*sys.argv[1:4], quick="quick" in sys.argv[4:])
