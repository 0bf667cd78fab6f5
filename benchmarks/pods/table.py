"""Training steps of Llama 3 70B and 405B for pods that are not here: by hand, and fitted.

In: ``benchmarks.pods.configs``. Out: ``results/pods.md``, and what is in it as ``pods.json``: a step that is kept there
is not made again. Nothing is run. Needs the extras ``tpu`` and ``cuda12``.

``python -m benchmarks.pods.table <name> <step> <file>`` is the child: it makes one step of one pod and prints it as a
line of JSON. One that takes longer than ``--timeout`` is given up, and the table says so.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import jax

import remat_plan as rp
from benchmarks.authors.record import Wrap, identity
from benchmarks.common import Options, Report, percent, versions
from benchmarks.pods.configs import PODS, QUICK, Pod
from benchmarks.pods.decoder import Training, build, by_hand
from benchmarks.steps_kept import StepTable, listed
from remat_plan.compiled.collectives import AGAIN, BACKWARD, PASSES, Collective
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve, traced_for_target

HAND, DEVICE, SAME = STEPS = "each layer by hand", "fitted, device", "fitted, bytes of hand"
_COLUMNS = tuple(
    "model|chips|fsdp x tensor|step|budget GB|peak GB|under %|FLOPs %|time %|forward GB|again GB"
    "|backward GB|compiles|minutes|CPU minutes".split("|")
)  # fmt: skip
_CLOSE = 0.03
_SAME_BYTES = 0.005
"""What two steps send that differs by no more than this share is the same."""

_INTRO = """Whole training steps: bfloat16 compute, AdamW on float32 parameters, state donated, 8192 tokens and one
sequence for each chip, layers in `lax.scan`, written for `jax.jit` on a mesh of automatic axes as
`benchmarks/pods/decoder.py` shows; attention is JAX's splash kernels on TPUs, a flash attention in Pallas on GPUs. By
hand: each layer in `jax.checkpoint`. Fitted: `rp.fit` of the step without it, from shapes alone, in the bytes of the
device less 5 % and in those of the step by hand; `rp.mark(..., never_recompute=())`, as `jax.checkpoint` gathers
weights again.

Bytes are of one chip, compiled; under: the budget that is left. FLOPs: of the loss and its gradient by the evaluator,
on all chips, but inside `shard_map` on one, so that attention hardly counts; time: of the compiled module (XLA's own
cycles on TPUs, a roofline on GPUs, collectives as memory traffic); both over the step by hand.
Forward, again, backward: what collectives of the compiled module move in each pass, loops by their trip count; again is
what recomputation repeats, backward what sums gradients and what is gathered for them. Compiles, minutes: of `rp.fit`,
the step as written among them, on two cores with other work; and what it took of these."""


@dataclass(frozen=True)
class Row:
    """One training step of a pod; ``collectives`` are those of the compiled module, [count, bytes] by pass and kind."""

    name: str
    step: str
    budget_bytes: int = 0
    peak_bytes: int = 0
    plain_bytes: int = 0
    flops: float = 0.0
    seconds: float | None = None
    collectives: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    compiles: int = 0
    minutes: float = 0.0
    cpu_minutes: float = 0.0
    problem: str = ""
    made: str = ""

    def sent(self, when: str, *kinds: str) -> int:
        """Bytes of the collectives of a pass: of some kinds, or all."""
        found = self.collectives.get(when, {})
        return sum(size_bytes for kind, (_, size_bytes) in found.items() if kind in kinds or not kinds)

    @property
    def summed(self) -> int:
        """Bytes that the backward pass sums over chips."""
        return self.sent(BACKWARD, "all-reduce", "reduce-scatter")

    @property
    def slack(self) -> float:
        """The share of the budget that is left."""
        return 1 - self.peak_bytes / self.budget_bytes if self.budget_bytes else 0.0

    def over(self, hand: Row | None, what: str) -> float | None:
        """By which share a figure is above that of the step by hand; None where one of them is not known."""
        own, theirs = getattr(self, what), getattr(hand, what, None)
        return own / theirs - 1 if own and theirs else None

    def cells(self, pod: Pod, hand: Row | None) -> tuple[str, ...]:
        """As text, beside the step by hand."""
        start = pod.model, pod.target, f"{pod.fsdp} x {pod.tensor}", self.step
        if self.problem:
            return *start, self.problem, *[""] * (len(_COLUMNS) - 5)
        sent = [_gb(self.sent(when)) for when in PASSES]
        if self.step == HAND:
            return *start, "", _gb(self.peak_bytes), "", "", "", *sent, "", "", ""
        ratios = [self.over(hand, what) for what in ("flops", "seconds")]
        return (
            *(*start, _gb(self.budget_bytes), _gb(self.peak_bytes), percent(self.slack, 1)),
            *("" if ratio is None else percent(ratio, 1) for ratio in ratios),
            *(*sent, str(self.compiles), f"{self.minutes:.1f}", f"{self.cpu_minutes:.1f}"),
        )


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f}"


def _by_pass(found: Iterable[Collective]) -> dict[str, dict[str, list[int]]]:
    table: dict[str, dict[str, list[int]]] = {}
    for one in found:
        table.setdefault(one.pass_name, {})[one.kind] = [one.count, one.size_bytes]
    return table


def _predicted(training: Training, wrap: Wrap, hardware: Hardware) -> Timeline:
    """The loss and its gradient by the evaluator."""
    gradient = jax.value_and_grad(training.loss(wrap))
    return evaluate(jax.make_jaxpr(gradient)(training.state[0], training.batch), hardware)


@traced_for_target
def make_hand(name: str, pod: Pod, *, target: str) -> Row:
    """The step with each layer in ``jax.checkpoint``, for the target of the pod."""
    training, device = build(pod), resolve(target)
    hardware = hardware_for(device.name, device.platform)
    step = jax.jit(training.step(by_hand, identity), donate_argnums=0)
    made = compile_memory(step, (training.state, training.batch), device, hardware=hardware)
    predicted = _predicted(training, by_hand, hardware)
    figures = made.total_bytes, 0, predicted.flops, made.seconds
    return Row(name, HAND, 0, *figures, _by_pass(made.collectives), made=versions())


@traced_for_target
def make_fitted(name: str, step: str, pod: Pod, hand: Row, *, target: str) -> Row:
    """The step as ``rp.fit`` makes it, for the target of the pod."""
    training = build(pod)
    started, used = time.perf_counter(), time.process_time()
    mark = partial(rp.mark, never_recompute=())
    row = Row(name, step, made=versions())
    try:
        fitted = rp.fit(
            *(training.step(identity, mark), training.state, training.batch),
            budget="device" if step == DEVICE else hand.peak_bytes,
            target=target,
            donate_argnums=0,
        )
    except BudgetError as error:
        row = replace(row, problem=f"least {_gb(error.minimum_bytes)} GB")
    else:
        report, plan = fitted.report, fitted.plan
        row = replace(
            row,
            budget_bytes=report.budget_bytes,
            peak_bytes=report.planned.peak_bytes,
            plain_bytes=report.plain.peak_bytes,
            flops=plan.step_flops,
            seconds=report.planned.seconds,
            collectives=_by_pass(report.planned.collectives),
            compiles=report.compiles,
        )
    minutes = [(now - then) / 60 for now, then in ((time.perf_counter(), started), (time.process_time(), used))]
    return replace(row, minutes=minutes[0], cpu_minutes=minutes[1])


def facts_of(rows: Sequence[Row], names: Iterable[str] = ()) -> list[str]:
    """What must hold, checked; of all ``names``, what is missing."""
    known = {(row.name, row.step): row for row in rows}
    fitted = [row for row in rows if row.step != HAND and not row.problem]
    pairs = [(row, known[row.name, HAND]) for row in fitted if (row.name, HAND) in known]

    missing = [f"{name} ({step})" for name in names for step in STEPS if (name, step) not in known]
    changed = (row for row, hand in pairs if abs(row.summed - hand.summed) > _SAME_BYTES * hand.summed)
    again = (row for row, hand in pairs if row.sent(AGAIN) > (1 + _SAME_BYTES) * hand.sent(AGAIN))
    return [
        f"over the budget: {listed(row for row in fitted if row.slack < 0)} ({len(fitted)} fitted steps)",
        f"more than 3 % under it: {listed(row for row in fitted if row.slack > _CLOSE)}",
        f"more FLOPs than by hand: {listed(row for row, hand in pairs if row.flops > hand.flops)}",
        f"more sent again than by hand: {listed(again)}",
        f"another amount summed over chips in the backward pass: {listed(changed)}",
        f"more than 15 minutes of two cores: {listed(row for row in fitted if row.cpu_minutes > 2 * 15)}",
        f"without a figure: {', '.join(f'{r.name} ({r.step}: {r.problem})' for r in rows if r.problem) or 'none'}",
        f"not made yet: {', '.join(missing) or 'none'}",
        *(f"made with {made}" for made in dict.fromkeys(row.made for row in rows if row.made)),
    ]


TABLE = StepTable("pods", _INTRO, _COLUMNS, "benchmarks.pods.table", Row, STEPS, facts_of)


def run(options: Options) -> Report:
    """Make what is missing; write and return the table of all that is kept."""
    return TABLE.run(options, QUICK if options.quick else PODS)


def make(name: str, step: str, path: Path) -> Row:
    """One step of a pod; those that are fitted beside that by hand, which is kept in a file."""
    pod = {**PODS, **QUICK}[name]
    if step == HAND:
        return make_hand(name, pod, target=pod.target)
    hand = TABLE.kept(path).find((name, HAND))
    assert hand is not None
    return make_fitted(name, step, pod, hand, target=pod.target)


if __name__ == "__main__":
    print(json.dumps(asdict(make(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))
