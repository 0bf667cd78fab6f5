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
from benchmarks.common import Options, Report, raw_step
from benchmarks.models import MODELS, small

NAMES = ("gpt2", "chain")
_COLUMNS = (
    "model",
    "equations",
    "budget",
    "trace s",
    "plan s",
    "XLA compile s (plain)",
    "plan / compile",
    "predicted overhead %",
)
_INTRO = """One fresh process per model, imports left out. Plan: `rp.plan(..., budget="50%", verify=False)` from call
to return, tracing included. Trace: `jax.make_jaxpr` of the loss, in the same process before that (its caches warm for
the plan). Compile: `jax.jit(step).lower().compile()` of the plain gradient step, only `compile()` is timed."""


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Plan and compile one model; timed."""
    model = small(name) if quick else MODELS[name]()
    started = time.perf_counter()
    jax.make_jaxpr(model.loss)(model.params, model.batch)
    traced = time.perf_counter()
    plan = rp.plan(model.loss, model.params, model.batch, budget="50%" if not quick else "90%", verify=False)
    planned = time.perf_counter()
    step, structs = raw_step(model, model.loss)
    lowered = jax.jit(step).lower(*structs)
    begun = time.perf_counter()
    lowered.compile()
    return {
        "equations": len(plan.program.equations),
        "budget": plan.budget,
        "trace": traced - started,
        "plan": planned - traced,
        "compile": time.perf_counter() - begun,
        "overhead": plan.overhead,
    }


def run(options: Options) -> Report:
    """Run the children; write and return the table."""
    report = Report("planning_time", _INTRO, _COLUMNS, options.results)
    slower: list[str] = []
    for name in options.choose(NAMES):
        command = [sys.executable, "-m", "benchmarks.planning_time", name, *(["quick"] if options.quick else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout_seconds, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            report.add(name, *["failed"] * (len(_COLUMNS) - 1))
            slower.append(f"{name} ({str(error.stderr)[-300:]})")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        share = row["plan"] / row["compile"]
        if share > 1:
            slower.append(name)
        report.add(
            *(name, row["equations"], row["budget"], f"{row['trace']:.2f}", f"{row['plan']:.2f}"),
            *(f"{row['compile']:.2f}", f"{share:.2f}", f"{100 * row['overhead']:.2f}"),
        )
    report.finish([f"planning slower than compiling: {', '.join(slower) or 'none'}"])
    return report


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], "quick" in sys.argv[2:])))
