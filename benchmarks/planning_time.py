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

import remat_plan as rp
from benchmarks.common import Options, Report, percent, raw_step
from benchmarks.models import MODELS, small

BUDGETS = {"gpt2": "50%", "chain": "75%"}
_COLUMNS = tuple(
    "model|equations|budget|trace s|plan s|plan CPU s|XLA compile s (plain)|XLA CPU s|plan / compile|CPU s / CPU s"
    "|predicted overhead %".split("|")
)
_INTRO = """One fresh process per model, imports left out. Plan: `rp.plan(..., verify=False)` from call
to return, its tracing included; it is the first work of the process. Compile: `jax.jit(step).lower().compile()` of the
plain gradient step, only `compile()` is timed. CPU s: processor seconds of all threads, which other work on the
machine does not change. Trace: `jax.make_jaxpr` of the gradient step, with JAX's caches as the plan left them."""


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Plan and compile one model; timed."""
    model = small(name) if quick else MODELS[name]()
    budget = "90%" if quick else BUDGETS[name]
    start = _now()
    plan = rp.plan(model.loss, model.params, model.batch, budget=budget, target="cpu", verify=False)
    planned = _now()
    step, structs = raw_step(model, model.loss)
    jax.make_jaxpr(step)(*structs)
    traced = _now()
    lowered = jax.jit(step).lower(*structs)
    begun = _now()
    lowered.compile()
    return {
        "equations": len(plan.program.equations),
        "budget": plan.budget,
        "plan": _since(start, planned),
        "trace": _since(planned, traced),
        "compile": _since(begun, _now()),
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
        (wall, cpu), (compile_wall, compile_cpu) = row["plan"], row["compile"]
        if cpu > compile_cpu:
            slower.append(name)
        report.add(
            *(
                name,
                row["equations"],
                row["budget"],
                f"{row['trace'][0]:.2f}",
                f"{wall:.2f}",
                f"{cpu:.2f}",
                f"{compile_wall:.2f}",
            ),
            *(f"{compile_cpu:.2f}", f"{wall / compile_wall:.2f}", f"{cpu / compile_cpu:.2f}"),
            percent(row["overhead"]),
        )
    report.finish([f"planning slower than compiling: {', '.join(slower) or 'none'}"])
    return report


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], "quick" in sys.argv[2:])))
