"""``python -m benchmarks.gpu.device``: run the models on the GPU that is here, and keep what was seen.

Each variant is a process of its own, so that the allocator's peak is its own. Those of one kind are compiled side by
side, then run one after the other, alone on the card. What fails is a row with its error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import optax

import remat_plan as rp
from benchmarks.architectures.table import ARCHITECTURES
from benchmarks.common import RESULTS, Session
from benchmarks.gpu.cases import PLANNED, SIZES, VARIANTS, loss_of, model, too_large
from benchmarks.models import concrete
from benchmarks.overheads import MEMORY
from benchmarks.peaks import first_schedules
from benchmarks.predictions import PLAIN
from remat_plan.verify.compile import compile_to_run
from remat_plan.verify.targets import resolve

STEPS, WARM, MOST_STEPS = 10, 2, 200
ENOUGH_SECONDS = 0.5
"""Short steps are repeated until so much time is over."""
_SPARE_SECONDS = 60
"""With less time left nothing is begun, and what is not compiled is ended."""

HERE = ("plain", "hand", *PLANNED)
GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *(("loss", name, VARIANTS) for name in SIZES),
    ("step", "too_large", ("plain", "hand", "fit")),
    *(("here", name, HERE + (("measured",) if name == "mlp" else ())) for name in SIZES),
    *(("held out", name, (PLAIN, MEMORY)) for name in ARCHITECTURES),
)
Call = Callable[[], float]
Row = dict[str, Any]


def _said(plan: rp.Plan | None) -> Row:
    if plan is None:
        return {}
    overheads = {"said_overhead": plan.overhead, "said_compiled_overhead": plan.compiled_overhead}
    return {"budget_bytes": plan.budget_bytes, "said_bytes": plan.compiled_peak_bytes, **overheads}


def _gradient(loss: Callable[..., jax.Array], name: str, quick: bool, plan: rp.Plan | None) -> tuple[Row, Call]:
    made = model(name, quick)
    memory = compile_to_run(jax.jit(jax.value_and_grad(loss)), (made.params, made.batch), resolve(None))
    step = memory.executable
    state: list[Any] = []

    def call() -> float:
        if not state:
            state.extend(jax.device_put(concrete(made)))
        value, grads = jax.block_until_ready(step(*state))
        del grads
        return float(value)

    return {"compiled_bytes": memory.total_bytes, **_said(plan)}, call


def planned_before(name: str, variant: str, quick: bool) -> tuple[Row, Call]:
    """A variant of ``cases``; its plan was made before."""
    loss, plan = loss_of(name, variant, quick)
    return _gradient(loss, name, quick, plan)


def planned_here(name: str, variant: str, quick: bool) -> tuple[Row, Call]:
    """The same, planned on the device that is here; ``measured``: for half of the bytes, by measured rates."""
    made = model(name, quick)
    if variant not in (*PLANNED, "measured"):
        return _gradient(loss_of(name, variant, quick)[0], name, quick, None)
    budget: Any = "80%" if quick else "50%"
    if variant == "at_hand":
        hand = compile_to_run(
            jax.jit(jax.value_and_grad(loss_of(name, "hand", quick)[0])), (made.params, made.batch), resolve(None)
        )
        budget = hand.total_bytes
    cost = "measured" if variant == "measured" else "table"
    plan = rp.plan(made.loss, made.params, made.batch, budget=budget, cost=cost)
    row, call = _gradient(plan.apply(made.loss), name, quick, plan)
    return {**row, "planning_seconds": plan.planning_seconds}, call


def held_out(name: str, variant: str, quick: bool) -> tuple[Row, Call]:
    """An architecture that no rule was read off, plain or by the first schedule of ``memory``; in float32."""
    del quick  # it is small as it is
    architecture = ARCHITECTURES[name]()
    session = Session(architecture, None)
    judge = session.judge
    schedules = dict(first_schedules(session, (MEMORY,)))
    plain, timeline = (judge.timeline(schedules[which]) for which in (PLAIN, variant))
    made = compile_to_run(jax.jit(judge.step(schedules[variant])), judge.structs, resolve(None))
    step = made.executable
    row: Row = {
        "said_bytes": timeline.peak_bytes,
        "said_overhead": timeline.seconds / plain.seconds - 1,
        "compiled_bytes": made.total_bytes,
        "said_seconds": timeline.seconds,
        "module_seconds": judge.compiled_seconds(schedules[variant]),
    }
    state: list[Any] = []

    def call() -> float:
        if not state:
            state.append(jax.device_put(jax.tree.leaves(concrete(architecture))))
        return float(jax.block_until_ready(step(*state[0]))[0])

    return row, call


def fitted(name: str, variant: str, quick: bool) -> tuple[Row, Call]:
    """A whole AdamW step, as written, by hand, or by ``rp.fit`` for 90 % of the device."""
    made, optimizer = too_large(quick), optax.adamw(1e-4)
    loss = made.loss_with(jax.checkpoint) if variant == "hand" else made.loss
    marked = rp.mark(loss) if variant == "fit" else loss

    def train_step(state: Any, batch: Any) -> Any:
        params, memory = state
        value, grads = jax.value_and_grad(marked)(params, batch)
        updates, memory = optimizer.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), value

    shapes = made.params, jax.eval_shape(optimizer.init, made.params)
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    row: Row = {"device_bytes": limit}
    if variant == "fit":
        budget = "80%" if quick or limit is None else int(0.9 * limit)
        step: Any = rp.fit(train_step, shapes, made.batch, budget=budget, donate_argnums=0)
        row |= {"budget_bytes": step.report.budget_bytes, "compiled_bytes": step.report.planned.peak_bytes}
        row |= {"said_overhead": step.report.overhead, "said_compiled_overhead": step.report.compiled_overhead}
    else:
        memory = compile_to_run(jax.jit(train_step, donate_argnums=0), (shapes, made.batch), resolve(None))
        step = memory.executable
        row |= {"compiled_bytes": memory.total_bytes}
    state: list[Any] = []

    def call() -> float:
        if not state:
            params, batch = jax.device_put(concrete(made))
            state.extend([(params, jax.jit(optimizer.init)(params)), batch])
        state[0], value = step(*state)
        return float(jax.block_until_ready(value))

    return row, call


_KINDS: Mapping[str, Callable[[str, str, bool], tuple[Row, Call]]] = {
    "loss": planned_before,
    "here": planned_here,
    "step": fitted,
    "held out": held_out,
}


def _say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def work(kind: str, name: str, variant: str, quick: bool) -> None:
    """Compile, say so, wait for a line, run, say what was seen."""
    try:
        start = time.perf_counter()
        row, call = _KINDS[kind](name, variant, quick)
        _say({**row, "compile_seconds": round(time.perf_counter() - start, 1)})
        sys.stdin.readline()
        seconds = []
        value = 0.0
        while len(seconds) < WARM + STEPS or (sum(seconds) < ENOUGH_SECONDS and len(seconds) < MOST_STEPS):
            began = time.perf_counter()
            value = call()
            seconds.append(time.perf_counter() - began)
        used = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        ms = 1e3 * statistics.median(seconds[WARM:])
        _say({"ms": ms, "best_ms": 1e3 * min(seconds[WARM:]), "used_bytes": used, "value": value})
    except Exception as error:  # out of memory is a result as well
        _say({"error": f"{type(error).__name__}: {str(error)[:300]}", "trace": traceback.format_exc()[-600:]})


def _start(kind: str, name: str, variant: str, quick: bool) -> subprocess.Popen[str]:
    # The allocator takes what is used only, so that processes can compile side by side and its peak says something.
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
    call = [sys.executable, "-m", "benchmarks.gpu.device", "--worker", kind, name, variant]
    call += ["--quick"] if quick else []
    pipe = subprocess.PIPE
    return subprocess.Popen(call, text=True, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def _first(process: subprocess.Popen[str]) -> str:
    """What a process says when it has compiled; nothing where it ended or was ended."""
    return process.stdout.readline() if process.stdout else ""


def _run(process: subprocess.Popen[str], first: str, seconds: float) -> Row:
    row = json.loads(first or '{"error": "Ended: without a word"}')
    if "error" not in row:
        try:
            row |= json.loads(process.communicate("go\n", timeout=seconds)[0] or '{"error": "Ended: without a word"}')
        except subprocess.TimeoutExpired:
            row["error"] = "TimeoutExpired: no time left"
    process.kill()
    process.communicate()
    return row


def drive(file: Path, quick: bool, minutes: float, only: list[str]) -> None:
    """Run the groups, all of one kind compiled side by side; write the file anew after each row."""
    deadline = time.monotonic() + 60 * minutes
    device = jax.devices()[0].device_kind
    versions = f"jax {jax.__version__}, python {sys.version.split()[0]}"
    kept = {"device": device, "versions": versions, "date": datetime.date.today().isoformat(), "rows": []}
    for kind in _KINDS:
        wanted = [g for g in GROUPS if g[0] == kind and (not only or kind in only or f"{kind}:{g[1]}" in only)]
        if not wanted or deadline - time.monotonic() < _SPARE_SECONDS:
            continue
        processes = {(m, v): _start(kind, m, v, quick) for _, m, variants in wanted for v in variants}
        with ThreadPoolExecutor(len(processes)) as pool:
            # What is not compiled in time is ended, so that the others can still run.
            first = {key: pool.submit(_first, process) for key, process in processes.items()}
            late = wait(first.values(), deadline - time.monotonic() - _SPARE_SECONDS).not_done
            for key in [key for key, said in first.items() if said in late]:
                processes[key].kill()
        for (name, variant), process in processes.items():
            left = max(30.0, deadline - time.monotonic())
            seen = _run(process, first[name, variant].result(), left)
            kept["rows"].append({"kind": kind, "model": name, "variant": variant, **seen})
            print(json.dumps(kept["rows"][-1]), flush=True)
            file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.device", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models, on any device")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all (default 8)")
    parser.add_argument("--only", default="", help="kind or kind:model, ...: these only, such as step,here:mlp")
    parser.add_argument("--out", type=Path, help="the file to write (default: gpu.json among the results)")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, name, variant = given.worker
        work(kind, name, variant, given.quick)
        return
    file = given.out or RESULTS / ("quick/" if given.quick else "") / "gpu.json"
    file.parent.mkdir(exist_ok=True)
    drive(file, given.quick, given.minutes, [name for name in given.only.split(",") if name])


if __name__ == "__main__":
    main()
