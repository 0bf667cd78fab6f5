"""What slices gain: published loss heads and models with one large place, against slices by hand and against no slices.

In: ``benchmarks.split_models``. Out: ``results/split.md``, and what is in it as ``split.json``: a step that is kept
there is not made again, and the table has all that are kept. Nothing is run. Needs the extras ``cuda12`` and ``tpu``
for devices that are not here.

``python -m benchmarks.split <model> <target> <file>`` is the child: it makes the steps of one model for one target that
the file lacks. A step that takes longer than ``--timeout`` is given up, and the table says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

import remat_plan as rp
from benchmarks.common import Options, Report, raw_step, versions
from benchmarks.kept import Kept
from benchmarks.models import Model
from benchmarks.split_models import HEADS, MODELS, QUICK, again, maker, with_gradients
from benchmarks.split_table import PLAIN, SLICES, Row, fill, make_report, steps_of
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import Target, resolve

TARGETS = ("gpu:h100", "cpu", "tpu:v5e:1x1")
PLACES = (*MODELS, *HEADS)
"""The names of all."""

_PAUSE_SECONDS = 1.0
"""How often a child is asked whether it is done."""


@dataclass(frozen=True)
class Place:
    """A model on a target, whose steps are made one after another.

    Attributes:
        name: of the model.
        found: the rows that are there, by step.
    """

    name: str
    model: Model
    target: Target
    found: dict[str, Row]

    def make(self, step: str) -> Row:
        """Make a row, which is then found."""
        started = time.perf_counter()
        facts = self._facts(step)
        self.found[step] = Row(
            *(self.target.name, self.name, step), **facts, seconds=time.perf_counter() - started, made=versions()
        )
        return self.found[step]

    def _facts(self, step: str) -> dict[str, Any]:
        words = step.split(", ")
        if step == PLAIN:
            return self._written(self.model.loss)
        if words[0] == "by hand":
            return self._written({"again": again, "with gradients": with_gradients}[words[2]](int(words[1])))
        options = {"never_split": True} if words[-1] == "no slices" else {}
        if "least" in words:
            return self._planned(1, options)
        if words[0] == "ours":
            hand = self.found.get(f"by hand, {SLICES[0]}, {words[-1]}")
            if hand is None or hand.peak_bytes is None:
                return {"problem": "what it is set against is missing"}
            return self._planned(hand.peak_bytes, options)
        plain = self.found[PLAIN].peak_bytes
        assert plain is not None
        budget, least = int(float(words[0].rstrip("%")) / 100 * plain), self.found.get(", ".join(["least", *words[1:]]))
        if least and least.peak_bytes and least.peak_bytes > budget:
            return {"peak_bytes": least.peak_bytes, "refused": True}
        return self._planned(budget, options)

    def _written(self, loss: Callable[..., Any]) -> dict[str, Any]:
        """Compile the gradient step of a loss as somebody wrote it."""
        step, structs = raw_step(self.model, loss)
        memory = compile_memory(step, structs, self.target)
        hardware = hardware_for(self.target.name, self.target.platform)
        return {
            "peak_bytes": memory.total_bytes,
            "held_bytes": memory.argument_bytes + memory.output_bytes - memory.alias_bytes,
            "flops": evaluate(jax.make_jaxpr(step)(*structs), hardware).flops,
        }

    def _planned(self, budget: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plan for a number of bytes; where that is refused, the least."""
        model = self.model
        try:
            plan = rp.plan(model.loss, model.params, model.batch, budget=budget, target=self.target.name, **options)
        except BudgetError as error:
            return {"peak_bytes": error.minimum_bytes, "refused": True}
        compiled = plan.compiled_overhead
        return {
            "peak_bytes": plan.compiled_peak_bytes,
            "flops": plan.step_flops,
            "overhead": float(plan.overhead),
            "compiled_overhead": None if compiled is None else float(compiled),
        }


def _kept(path: Path) -> Kept[Row]:
    return Kept(path, Row, lambda row: (row.target, row.model, row.step))


def _found(kept: Kept[Row], name: str, target: str) -> dict[str, Row]:
    """The rows of a model on a target, by step."""
    return {row.step: row for row in kept.read() if (row.model, row.target) == (name, target)}


def make_missing(name: str, target: str, path: Path, quick: bool) -> None:
    """Make the steps that a file lacks; print each as a line of JSON."""
    place = Place(name, maker(name, quick)(), resolve(target), _found(_kept(path), name, target))
    for step in steps_of(name):
        if step not in place.found:
            print(json.dumps(asdict(place.make(step))), flush=True)


def run(options: Options) -> Report:
    """Make what is missing; write and return the table of all that is kept."""
    report = make_report(options.results)
    kept = _kept(options.results / "split.json")
    for target in options.targets or TARGETS:
        try:
            resolve(target)
        except (ImportError, RuntimeError) as error:
            print(f"{target}: no compiler here: {type(error).__name__}", flush=True)
            continue
        for name in options.choose(tuple(QUICK) if options.quick else PLACES):
            _make(kept, name, target, options, report)
    report.done = True
    fill(report, kept.read(), PLACES, TARGETS)
    print("\n".join(report.facts), flush=True)
    return report


def _make(kept: Kept[Row], name: str, target: str, options: Options, report: Report) -> None:
    """Have children make the steps of a model, each as far as it comes; all are shares of the step as written."""
    while True:
        found = _found(kept, name, target)
        missing = [step for step in steps_of(name) if step not in found]
        if not missing or (PLAIN in found and found[PLAIN].problem):
            return
        problem = _watch(kept, name, target, options, report)
        rest = [step for step in missing if step not in _found(kept, name, target)]
        if rest:
            kept.put(Row(target, name, rest[0], problem=problem, made=versions()))
        fill(report, kept.read(), PLACES, TARGETS)


def _watch(kept: Kept[Row], name: str, target: str, options: Options, report: Report) -> str:
    """Keep what a child makes; end it where one step takes too long. Return why it stopped early, or nothing."""
    command = [sys.executable, "-m", "benchmarks.split", name, target, str(kept.path)]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "err").open("w+") as err:
        out = Path(folder, "out")
        with out.open("w") as file:
            child = subprocess.Popen([*command, *(["quick"] if options.quick else [])], stdout=file, stderr=err)
        count, since = 0, time.perf_counter()
        try:
            while True:
                ended = child.poll() is not None
                lines = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("}\n")]
                for line in lines[count:]:
                    row = kept.put(Row(**json.loads(line)))
                    print(*row.cells(_found(kept, name, target)[PLAIN]), sep=" | ", flush=True)
                    fill(report, kept.read(), PLACES, TARGETS)
                if len(lines) > count:
                    count, since = len(lines), time.perf_counter()
                if ended:
                    break
                if time.perf_counter() - since > options.timeout_seconds:
                    return f"no result in {options.timeout_seconds:.0f} s"
                time.sleep(_PAUSE_SECONDS)
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            err.seek(0)
            return (err.read().strip().splitlines() or ["failed"])[-1][:120]
    return ""


if __name__ == "__main__":
    make_missing(sys.argv[1], sys.argv[2], Path(sys.argv[3]), quick="quick" in sys.argv[4:])
