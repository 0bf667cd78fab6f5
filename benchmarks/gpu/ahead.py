"""``python -m benchmarks.gpu.ahead [MODEL ...]``: plan for an H100 that is not here, and keep plans and bytes.

A plan belongs to a program as one version of JAX traces it: use that of the machine with the card. Two cores take about
an hour. With ``--quick``, tiny models for this machine's CPU.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import jax

import remat_plan as rp
from benchmarks.common import RESULTS
from benchmarks.gpu.cases import PLANNED, PLANS, SIZES, VARIANTS, loss_of, model, plan_file
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

TARGET = "gpu:h100"


def ahead(name: str, variant: str, quick: bool) -> dict[str, Any]:
    """The bytes of a variant without the card, and what its plan says; a plan is made and kept for it first."""
    made = model(name, quick)
    target = None if quick else TARGET
    if variant in PLANNED:
        budget = "50%" if variant == "half" else ahead(name, "hand", quick)["ahead_bytes"]
        try:
            plan = rp.plan(made.loss, made.params, made.batch, budget=budget, target=target)
        except rp.BudgetError as error:
            return {"model": name, "variant": variant, "refused_bytes": error.minimum_bytes}
        PLANS.mkdir(exist_ok=True)
        plan_file(name, variant, quick).write_text(plan.to_json(), encoding="utf-8")
    loss, _ = loss_of(name, variant, quick)
    memory = compile_memory(jax.value_and_grad(loss), (made.params, made.batch), resolve(target))
    return {"model": name, "variant": variant, "ahead_bytes": memory.total_bytes}


def main() -> None:
    """Plan what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.ahead", description=__doc__)
    parser.add_argument("models", nargs="*", default=[*SIZES], metavar="model", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--quick", action="store_true", help="tiny models for this machine's CPU")
    given = parser.parse_args()
    file = RESULTS / ("quick/" if given.quick else "") / "gpu_ahead.json"
    file.parent.mkdir(exist_ok=True)
    rows = {(r["model"], r["variant"]): r for r in (json.loads(file.read_text("utf-8")) if file.exists() else [])}
    for name in given.models:
        for variant in VARIANTS:
            rows[name, variant] = ahead(name, variant, given.quick)
            print(json.dumps(rows[name, variant]), flush=True)
            file.write_text(json.dumps([*rows.values()], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
