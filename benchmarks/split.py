"""What slices gain: published loss heads and models with one large place, against slices by hand and against no slices.

In: four heads (inputs, one matrix, mean cross entropy), and models in which logits, attention scores or a first level
set the peak. Out: ``results/split.md``. For an H100 that is not here, which needs the extra ``cuda12``; nothing is run.

By hand is what people write: a ``lax.scan`` over slices of the rows, each of them in ``jax.checkpoint``; or one that
makes the gradients meanwhile, summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import remat_plan as rp
from benchmarks.common import Options, Report, mb, percent, raw_step
from benchmarks.models import Model, gpt2, small, unet, vit
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import Target, resolve

HEADS = {
    "marin": (32768, 2560, 128256),
    "inductor": (32768, 768, 50257),
    "cce": (8192, 2304, 256000),
    "trl": (16384, 2048, 248320),
}
"""Rows, width and classes of the heads: Marin's, of the test of PyTorch's Inductor, of Cut Cross-Entropy (Gemma 2 2B),
of TRL."""

TARGETS = ("gpu:h100",)
SHARES = (0.3, 0.2)
_SLICES = (8, 32)
_COLUMNS = ("model", "target", "step", "peak MB", "temporaries MB", "of plain %", "FLOPs %", "overhead %")
_INTRO = """Compiled peaks and temporaries; FLOPs of the jaxpr over those of the plain step; overheads predicted. *By
hand*: a scan over slices of the rows in `jax.checkpoint` (*again*), or one that makes the gradients meanwhile (*with
gradients*). *Least*: what a budget below it names. *No slices*: with `never_split=True`."""


def head(rows: int, width: int, classes: int) -> Model:
    """A loss head: inputs bfloat16[rows, width], a matrix bfloat16[width, classes], logits in float32."""
    low = jnp.bfloat16
    params = {
        "x": jax.ShapeDtypeStruct((rows, width), low),
        "w": jax.ShapeDtypeStruct((width, classes), low),
    }

    def loss(p: Any, labels: Any) -> jax.Array:
        return _summed(p["w"], p["x"], labels) / rows

    labels = jax.ShapeDtypeStruct((rows,), jnp.int32)
    return Model("head", loss, params, labels, lambda wrap: wrap(loss), classes)


def _summed(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    """The sum of the cross entropies of some rows."""
    logits = (x @ w).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked)


def again(slices: int) -> Callable[..., jax.Array]:
    """The loss of a head as a scan over checkpointed slices."""

    def loss(p: Any, labels: jax.Array) -> jax.Array:
        rows = labels.shape[0]

        @jax.checkpoint
        def step(total: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            return total + _summed(p["w"], *xs), None

        sliced = p["x"].reshape(slices, rows // slices, -1), labels.reshape(slices, -1)
        return lax.scan(step, jnp.float32(0), sliced)[0] / rows

    return loss


def with_gradients(slices: int) -> Callable[..., jax.Array]:
    """The same with the gradients made in the forward pass, summed in float32."""

    def both(p: Any, labels: jax.Array) -> tuple[jax.Array, Any]:
        rows = labels.shape[0]

        def step(carry: Any, xs: Any) -> tuple[Any, jax.Array]:
            value, (by_w, by_x) = jax.value_and_grad(_summed, (0, 1))(p["w"], *xs)
            return (carry[0] + value, carry[1] + by_w.astype(jnp.float32)), by_x

        sliced = p["x"].reshape(slices, rows // slices, -1), labels.reshape(slices, -1)
        begin = jnp.float32(0), jnp.zeros(p["w"].shape, jnp.float32)
        (value, by_w), by_x = lax.scan(step, begin, sliced)
        low = p["w"].dtype
        return value / rows, {"w": (by_w / rows).astype(low), "x": (by_x.reshape(p["x"].shape) / rows).astype(low)}

    @jax.custom_vjp
    def loss(p: Any, labels: jax.Array) -> jax.Array:
        return _summed(p["w"], p["x"], labels) / labels.shape[0]

    def backward(kept: Any, cotangent: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(lambda g: (g * cotangent).astype(g.dtype), kept), None

    loss.defvjp(both, backward)
    return loss


def swiglu(rows: int, width: int, hidden: int) -> Model:
    """A gated layer in bfloat16, with the sum of squares of its outputs as its loss."""
    low = jnp.bfloat16
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "x": (rows, width)}
    params = {name: jax.ShapeDtypeStruct(shape, low) for name, shape in shapes.items()}

    def loss(p: Any, scale: Any) -> jax.Array:
        y = (jax.nn.silu(p["x"] @ p["gate"]) * (p["x"] @ p["up"])) @ p["down"]
        return jnp.sum(y.astype(jnp.float32) * scale)

    scale = jax.ShapeDtypeStruct((), jnp.float32)
    return Model("swiglu", loss, params, scale, lambda wrap: wrap(loss), 1)


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2_4": lambda: gpt2(layers=4, vocab=50257, sequence=1024, batch=4),
    "gpt2_long": lambda: gpt2(layers=4, vocab=8192, sequence=16384, batch=1, dtype="bfloat16"),
    "unet": unet,
    "vit": vit,
    "swiglu": lambda: swiglu(32768, 2048, 4096),
}


PLACES = (*HEADS, *MODELS)
"""The names of all."""


@dataclass(frozen=True)
class Place:
    """What one model is measured by.

    Attributes:
        plain_bytes, held_bytes: the peak of the step as written; its arguments and results.
        plain_flops: of that step.
    """

    report: Report
    name: str
    model: Model
    target: Target
    plain_bytes: int
    held_bytes: int
    plain_flops: float

    def add(self, step: str, peak: int, flops: float | None = None, overhead: float | None = None) -> None:
        """Add a row."""
        self.report.add(
            *(
                self.name,
                self.target.name,
                step,
                mb(peak),
                mb(peak - self.held_bytes),
                percent(peak / self.plain_bytes),
            ),
            "-" if flops is None else percent(flops / self.plain_flops),
            "-" if overhead is None else percent(overhead),
        )

    def written(self, step: str, loss: Callable[..., Any]) -> tuple[int, float]:
        """Compile a loss as somebody wrote it; its peak and FLOPs."""
        peak, _, flops = _compiled(self.model, loss, self.target)
        self.add(step, peak, flops)
        return peak, flops

    def planned(self, step: str, budget: int, **options: Any) -> rp.Plan | None:
        """Plan for a number of bytes; None, and a row that says so, where it is refused."""
        model = self.model
        try:
            plan = rp.plan(model.loss, model.params, model.batch, budget=budget, target=self.target.name, **options)
        except BudgetError as error:
            self.report.add(self.name, self.target.name, step, f"refused: least {mb(error.minimum_bytes)}", *"----")
            return None
        assert plan.compiled_peak_bytes is not None
        self.add(step, plan.compiled_peak_bytes, plan.step_flops, plan.overhead)
        return plan

    def least(self, step: str, **options: Any) -> int:
        """The least peak, which a budget of one byte names."""
        model = self.model
        try:
            rp.plan(model.loss, model.params, model.batch, budget=1, target=self.target.name, **options)
        except BudgetError as error:
            self.add(step, error.minimum_bytes)
            return error.minimum_bytes
        raise AssertionError("a budget of one byte was met")


def _compiled(model: Model, loss: Callable[..., Any], target: Target) -> tuple[int, int, float]:
    """Peak, arguments and results, and FLOPs of the gradient step of a loss."""
    step, structs = raw_step(model, loss)
    memory = compile_memory(step, structs, target)
    hardware = hardware_for(target.name, target.platform)
    flops = evaluate(jax.make_jaxpr(step)(*structs), hardware).flops
    return memory.total_bytes, memory.argument_bytes + memory.output_bytes - memory.alias_bytes, flops


def _head_rows(place: Place) -> Iterator[str]:
    """Add the rows of a head; yield what is behind."""
    by_hand = {}
    for slices in _SLICES:
        by_hand["again", slices] = place.written(f"by hand, {slices}, again", again(slices))
        by_hand["with gradients", slices] = place.written(f"by hand, {slices}, with gradients", with_gradients(slices))
    for kind in ("again", "with gradients"):
        peak, flops = by_hand[kind, _SLICES[0]]
        plan = place.planned(f"ours, in the bytes of {_SLICES[0]}, {kind}", peak)
        if plan is None or plan.step_flops > 1.01 * flops:
            yield f"{place.name} {place.target.name} {kind}"
    hand = min(by_hand[kind, _SLICES[1]][0] for kind in ("again", "with gradients"))
    if place.least("ours, least") > hand:
        yield f"{place.name} {place.target.name} least"


def _model_rows(place: Place) -> Iterator[str]:
    """Add the rows of a whole model; yield what is behind."""
    with_slices, without = place.least("least"), place.least("least, no slices", never_split=True)
    if with_slices - place.held_bytes > (without - place.held_bytes) / 2:
        yield f"{place.name} {place.target.name} temporaries at the least over half of those without slices"
    for share in SHARES:
        budget = int(share * place.plain_bytes)
        plan = place.planned(f"{share:.0%}", budget)
        other = place.planned(f"{share:.0%}, no slices", budget, never_split=True)
        if other is not None and (plan is None or plan.overhead > other.overhead + 1e-3):
            yield f"{place.name} {place.target.name} {share:.0%}"


def run(options: Options) -> Report:
    """Compile all; write and return the table."""
    report = Report("split", _INTRO, _COLUMNS, options.results)
    behind: list[str] = []
    makers: dict[str, Callable[[], Model]] = {name: lambda s=sizes: head(*s) for name, sizes in HEADS.items()} | MODELS
    if options.quick:
        makers = {"marin": lambda: head(512, 32, 2048), "gpt2_4": lambda: small("gpt2")}
    for target in options.targets or TARGETS:
        device = resolve(target)
        for name in options.choose(tuple(makers)):
            model = makers[name]()
            peak, held, flops = _compiled(model, model.loss, device)
            place = Place(report, name, model, device, peak, held, flops)
            place.add("as written", peak, flops)
            behind += _head_rows(place) if name in HEADS else _model_rows(place)
    report.finish([f"behind: {', '.join(behind) or 'none'}"])
    return report
