"""Seconds to plan (prediction only) against seconds that XLA needs to compile the plain step.

In: GPT-2 and a chain of 1000 layers, each in a process of its own. Out: ``results/planning_time.md``.

``python -m benchmarks.planning_time gpt2`` is the child: it prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import jax
import scipy.sparse.csgraph  # noqa: F401  the first plan would import it

import remat_plan as rp
import remat_plan.api  # the first plan would import it
from benchmarks.common import Options, Report, percent, raw_step
from benchmarks.models import MODELS, Model, gpt2_scan, small

BUDGETS = {"gpt2": "50%", "gpt2_scan12": "50%", "gpt2_scan48": "50%", "gpt2_scan126": "50%", "chain": "75%"}
_COLUMNS = tuple(
    "model|equations|budget|plan s|plan CPU s|again CPU s|XLA s|XLA CPU s|plan / XLA (CPU)|first call CPU s"
    "|XLA CPU s (planned)|predicted overhead %".split("|")
)
_INTRO = """One fresh process per model, imports left out, also those that the first plan makes (SciPy's). Plan:
`rp.plan(..., verify=False)` from call to return, its tracing included; it is the first work of the process. CPU s:
processor seconds of all threads, which other work on the machine does not change much. XLA: `compile()` alone, of the
plain gradient step and of the planned. Again: another plan in the same process, for a twentieth more bytes. First
call: what `jax.jit` does before the plain step can run: tracing, lowering, compiling. gpt2_scanN: GPT-2 with N
scanned layers."""


def model_of(name: str, quick: bool) -> Model:
    """A model by its name in this table."""
    if name.startswith("gpt2_scan"):
        return small("gpt2_scan") if quick else gpt2_scan(layers=int(name.removeprefix("gpt2_scan")))
    return small(name) if quick else MODELS[name]()


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Plan and compile one model; timed."""
    model = model_of(name, quick)
    budget = "90%" if quick else BUDGETS[name]
    start = _now()
    plan = rp.plan(model.loss, model.params, model.batch, budget=budget, target="cpu", verify=False)
    planned = _now()
    assert plan.budget_bytes is not None
    more = int(1.05 * plan.budget_bytes)
    rp.plan(model.loss, model.params, model.batch, budget=more, target="cpu", verify=False)
    replanned = _now()
    step, structs = raw_step(model, model.loss)
    first = _now()
    lowered = jax.jit(step).lower(*structs)
    begun = _now()
    lowered.compile()
    compiled = _now()
    fitting, _ = raw_step(model, plan.apply(model.loss))
    ready = jax.jit(fitting).lower(*structs)
    again = _now()
    ready.compile()
    return {
        "equations": len(plan.program.equations),
        "budget": plan.budget,
        "plan": _since(start, planned),
        "again": _since(planned, replanned),
        "first": _since(first, compiled),
        "compile": _since(begun, compiled),
        "planned": _since(again, _now()),
        "overhead": plan.overhead,
    }


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return end[0] - start[0], end[1] - start[1]


def run(options: Options) -> Report:
    """Run the children; write and return the table."""
    report = Report("planning_time", _INTRO, _COLUMNS, options.results)
    slower: list[str] = []
    for name in options.choose(tuple(BUDGETS)):
        command = [sys.executable, "-m", "benchmarks.planning_time", name, *(["quick"] if options.quick else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout_seconds, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            report.add(name, *["failed"] * (len(_COLUMNS) - 1))
            slower.append(f"{name} ({str(error.stderr)[-300:]})")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        (wall, cpu), (xla_wall, xla_cpu) = row["plan"], row["compile"]
        if cpu > xla_cpu:
            slower.append(name)
        report.add(
            *(name, row["equations"], row["budget"], f"{wall:.2f}", f"{cpu:.2f}", f"{row['again'][1]:.2f}"),
            *(f"{xla_wall:.2f}", f"{xla_cpu:.2f}", f"{cpu / xla_cpu:.2f}", f"{row['first'][1]:.2f}"),
            *(f"{row['planned'][1]:.2f}", percent(row["overhead"])),
        )
    report.finish([f"planning takes more processor time than compiling the plain step: {', '.join(slower) or 'none'}"])
    return report


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], "quick" in sys.argv[2:])))
