"""What the host's memory gains: scanned models, by hand and planned, with it and without.

In: models whose layers are scanned, hands that keep named values on the host. Out: ``results/offload.md``, and what is
in it as ``offload.json``: a row that is kept there is not made again. For devices that are not here; nothing is run.
Needs the extras ``cuda12`` and ``tpu``.

By hand is what people write: ``jax.checkpoint`` around each layer, or with a policy that moves named values. Ours are
planned in the bytes that the compiler says a hand needs, with no more on the host than the hand has there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from benchmarks.authors import llama
from benchmarks.authors.record import Wrap
from benchmarks.common import Options, Report, Session, mb, percent, raw_step, versions
from benchmarks.kept import Kept
from benchmarks.models import Model, gpt2_scan
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Request
from remat_plan.search.known import forget
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.place import DEVICE, HOST, in_memory
from remat_plan.verify.targets import resolve

TARGETS = ("gpu:h100", "tpu:v5e:1x1")
PLAIN, EACH, SLOWER = "as written", "each layer", "each layer's bytes, device alone"
ROOMY = "the bytes as written"
ALL = "nearly the bytes as written, device alone"
_COLUMNS = ("model", "target", "step", "device MB", "temporaries MB", "host MB", "FLOPs %", "overhead %", "time %")
_INTRO = """Compiled bytes on the device and on the host; FLOPs of the jaxpr over those of the step as written.
Overhead: seconds of the compiled module over those of the step as written, by the rates of data sheets, transfers
beside kernels as far as the kernels of the same pass hide them; none where a TPU's compiler refuses the step as
written. Time: the same over those of each layer in `jax.checkpoint`. *By hand*: each layer in `jax.checkpoint`, or with
a policy that moves the named values to the host. *Ours*: `rp.plan(..., offload=True)` in the device bytes of a hand,
with its bytes on the host as `host_budget` where it has any; *device alone*: without `offload`; nearly the bytes as
written: 99 % of them, and no more than the device has: what memory is worth at most. *adam*: the optimizer
example of JAX's page on host offloading, a whole step whose arguments are donated (`rp.fit`); its state is on the host
but *as written*."""

_SAME = 0.01
"""Seconds of two modules that differ by no more than this share are the same."""

_MOVED = {
    "inputs": ("decoder_layer_input",),
    "qkv": ("decoder_layer_input", *llama.QKV),
    "products": ("decoder_layer_input", *llama.MINIMAL),
}
"""Names of MaxText that hands move."""


def moving(*names: str) -> Wrap:
    """``jax.checkpoint`` that keeps named values on the host, and nothing else."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )
    return partial(jax.checkpoint, prevent_cse=False, policy=policy)


@dataclass(frozen=True)
class Place:
    """A model with the losses that people write by hand, by name."""

    model: Model
    hands: Mapping[str, Callable[..., jax.Array]]


def decoder(config: llama.Config) -> Place:
    """A Llama with hands that move named values."""
    made = llama.make_of(config, {name: moving(*names) for name, names in _MOVED.items()})
    hands = {EACH: made.policies["full"], **{f"{name} moved": made.policies[name] for name in _MOVED}}
    params, batch = made.arguments
    return Place(Model("llama", made.plain, params, batch, lambda wrap: made.plain, config.vocab), hands)


def gpt2() -> Place:
    """GPT-2 in bfloat16, 16 x 1024 tokens."""
    model = gpt2_scan(layers=12, batch=16, sequence=1024, dtype="bfloat16")
    return Place(model, {EACH: model.loss_with(partial(jax.checkpoint, prevent_cse=False))})


def pairs_of_products(rows: int = 65536, width: int = 1024, hidden: int = 4096, layers: int = 10) -> Place:
    """The scanned pairs of products of JAX's page on host offloading, in float32, with what goes in named."""

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        first, second = w
        return (checkpoint_name(x, "x") @ first) @ second, None

    def loss_with(wrap: Wrap) -> Callable[..., jax.Array]:
        step = wrap(layer)
        return lambda w, x: jnp.sum(lax.scan(step, x, w)[0])

    shapes = ((layers, width, hidden), (layers, hidden, width), (rows, width))
    *weights, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    loss = loss_with(lambda f: f)
    each = partial(jax.checkpoint, prevent_cse=False)
    hands = {EACH: loss_with(each), "inputs moved": loss_with(moving("x"))}
    return Place(Model("pairs", loss, tuple(weights), x, loss_with, 1), hands)


_LLAMA = llama.Config(24, 2048, 16, 16, 128, 5504, 32000, 4, 2048, jnp.bfloat16, scan_axis=0)
PLACES: dict[str, Callable[[], Place]] = {
    "llama": lambda: decoder(_LLAMA),
    "gpt2": gpt2,
    "pairs": pairs_of_products,
}
"""A Llama of 1.3 B parameters; GPT-2; JAX's example."""

NAMES = (*PLACES, "adam")

QUICK: dict[str, Callable[[], Place]] = {"pairs": lambda: pairs_of_products(512, 64, 256, 4)}


@dataclass(frozen=True)
class Updating:
    """JAX's optimizer example: four products of square float32 weights, 256 rows, Adam behind a clipped norm."""

    width: int = 7168
    rows: int = 256
    budget: str = "2.9GiB"

    def arguments(self) -> tuple[Any, Any, jax.ShapeDtypeStruct]:
        """Shapes of parameters, state and batch."""
        square = jax.ShapeDtypeStruct((self.width, self.width), jnp.float32)
        params = {f"w{n}": square for n in range(4)}
        batch = jax.ShapeDtypeStruct((self.rows, self.width), jnp.float32)
        return params, jax.eval_shape(_ADAM.init, params), batch

    @staticmethod
    def loss(params: Any, x: jax.Array) -> jax.Array:
        """The squared error, with a penalty on weights."""
        for w in params.values():
            x = jax.nn.gelu(x @ w)
        return jnp.mean((x - 1.0) ** 2) + 0.001 * sum(jnp.sum(w * w) for w in params.values())

    @classmethod
    def step(cls, params: Any, state: Any, x: jax.Array) -> Any:
        """The step as it is written."""
        grads = jax.grad(rp.mark(cls.loss))(params, x)
        updates, state = _ADAM.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @classmethod
    def documented(cls, params: Any, state: Any, x: jax.Array) -> Any:
        """As JAX's page has it: the state is fetched, and put back."""
        params, state = cls.step(params, _to(jax.memory.Space.Device, state), x)
        return params, _to(jax.memory.Space.Host, state)

    @classmethod
    def leaf_by_leaf(cls, params: Any, state: Any, x: jax.Array) -> Any:
        """The state of one weight after the other, each fetched behind a barrier that waits for the last one."""
        grads = jax.grad(cls.loss)(params, x)
        grads: Any = _CLIP.update(grads, _CLIP.init(params))[0]
        count, adam = state[1][0].count, optax.scale_by_adam()
        done: Any = jnp.zeros(())
        new: dict[str, Any] = {}
        mu, nu = {}, {}
        for name, w in params.items():
            held = state[1][0].mu[name], state[1][0].nu[name], grads[name], done
            *held, grad, done = lax.optimization_barrier(held)
            here = optax.ScaleByAdamState(count, *_to(jax.memory.Space.Device, tuple(held)))
            made: tuple[Any, Any] = adam.update(grad, here)
            new[name], done = lax.optimization_barrier((w - _RATE * made[0], done))
            mu[name], nu[name] = _to(jax.memory.Space.Host, (made[1].mu, made[1].nu))
        return new, (state[0], (optax.ScaleByAdamState(count + 1, mu, nu), *state[1][1:]))


_RATE = 1e-3
_CLIP = optax.clip_by_global_norm(1.0)
_ADAM = optax.chain(_CLIP, optax.adam(_RATE))


def _to(space: Any, tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.device_put(x, space) if x.ndim else x, tree)


def rows_of_update(target: str, example: Updating, known: Mapping[str, Row]) -> Iterator[Row]:
    """Make the steps of the optimizer example that are not known, for a target that honours memory kinds."""
    found, place = dict(known), resolve(target)
    arguments, row = example.arguments(), Row(target, "adam", PLAIN, made=versions())

    def by_hand(step: Callable[..., Any], memory: str) -> Row:
        params, state, batch = arguments
        state = jax.tree.map(lambda x: x.update(sharding=in_memory(x, memory, place)) if x.ndim else x, state)
        hardware = hardware_for(place.name, place.platform)
        made = compile_memory(step, (params, state, batch), place, donate_argnums=(0, 1), hardware=hardware)
        return replace(
            row,
            peak_bytes=made.total_bytes,
            temp_bytes=made.temp_bytes,
            host_bytes=made.host_bytes,
            seconds=made.seconds,
        )

    def ours() -> Row:
        fitted = rp.fit(
            example.step, *arguments, budget=example.budget, donate_argnums=(0, 1), target=target, offload=True
        )
        planned, over, plain = fitted.report.planned, fitted.report.compiled_overhead, found[PLAIN].seconds
        return replace(
            row,
            peak_bytes=planned.peak_bytes,
            temp_bytes=planned.temporary_bytes,
            host_bytes=planned.host_bytes,
            seconds=None if over is None or plain is None else plain * (1 + over),
        )

    makers: dict[str, Callable[[], Row]] = {
        PLAIN: lambda: by_hand(example.step, DEVICE),
        "by hand, as documented": lambda: by_hand(example.documented, HOST),
        "by hand, leaf by leaf": lambda: by_hand(example.leaf_by_leaf, HOST),
        f"ours, in {example.budget}": ours,
    }
    for step, make in makers.items():
        if step not in found:
            found[step] = replace(make(), step=step)
            yield found[step]


@dataclass(frozen=True)
class Row:
    """One compiled step."""

    target: str
    model: str
    step: str
    peak_bytes: int = 0
    temp_bytes: int = 0
    host_bytes: int = 0
    flops: float = 0.0
    seconds: float | None = None
    problem: str = ""
    made: str = ""

    def cells(self, plain: Row, each: Row) -> tuple[str, ...]:
        """As text, beside the step as written, and the one with each layer in ``jax.checkpoint``."""
        start = self.model, self.target, self.step
        if self.problem:
            return *start, self.problem, *[""] * (len(_COLUMNS) - 4)
        over = percent(self.seconds / plain.seconds - 1, 1) if self.seconds and plain.seconds else ""
        share = percent(self.seconds / each.seconds, 1) if self.seconds and each.seconds else ""
        flops = percent(self.flops / plain.flops, 1) if plain.flops else ""
        return *start, mb(self.peak_bytes), mb(self.temp_bytes), mb(self.host_bytes), flops, over, share


def rows_of(name: str, target: str, place: Place, known: Mapping[str, Row]) -> Iterator[Row]:
    """Make the steps of a model that are not known, the one as written first."""
    session = Session(place.model, target)
    found = dict(known)

    def planned(step: str, budget_bytes: int, **asked: Any) -> Row:
        constraints = make_constraints(**asked)
        session.judge.host_bytes = float("inf") if constraints.host_bytes is None else constraints.host_bytes
        request = Request(lookup("auto"), True, (0,), False, (), "replan", constraints)
        row = Row(target, name, step, made=versions())
        forget()  # a plan by itself, which does not know of others
        try:
            plan = session.make_plan(budget_bytes, request)
        except BudgetError as error:
            return replace(row, problem=f"least {mb(error.minimum_bytes)}")
        compiled, timeline = session.judge.compiled(plan.schedule), session.judge.timeline(plan.schedule)
        sizes = compiled.total_bytes, compiled.temp_bytes, compiled.host_temp_bytes
        return replace(
            row,
            **dict(zip(("peak_bytes", "temp_bytes", "host_bytes"), sizes, strict=True)),
            flops=timeline.flops,
            seconds=compiled.seconds,
        )

    def by_hand(step: str, loss: Callable[..., jax.Array]) -> Row:
        raw, structs = raw_step(place.model, loss)
        hardware = session.judge.hardware
        made = compile_memory(raw, structs, session.judge.target, hardware=hardware)
        flops = evaluate(jax.make_jaxpr(raw)(*structs), hardware).flops
        sizes = made.total_bytes, made.temp_bytes, made.host_temp_bytes
        return Row(target, name, step, *sizes, flops, made.seconds, made=versions())

    def steps() -> Iterator[tuple[str, Callable[[], Row]]]:
        yield PLAIN, lambda: by_hand(PLAIN, place.model.loss)
        for hand, loss in place.hands.items():
            yield f"by hand, {hand}", lambda hand=hand, loss=loss: by_hand(f"by hand, {hand}", loss)
        for hand in place.hands:
            his, step = found[f"by hand, {hand}"], f"ours, in the bytes of {hand}"
            host = {"host_budget": his.host_bytes} if his.host_bytes else {}
            yield step, partial(planned, step, his.peak_bytes, offload=True, **host)
        bytes_of_each = found[f"by hand, {EACH}"].peak_bytes
        yield SLOWER, partial(planned, SLOWER, bytes_of_each)
        yield ROOMY, partial(planned, ROOMY, found[PLAIN].peak_bytes, offload=True)
        most = session.judge.target.device_memory_bytes or found[PLAIN].peak_bytes
        yield ALL, partial(planned, ALL, min(most, 99 * found[PLAIN].peak_bytes // 100))

    for step, make in steps():
        if step not in found:
            found[step] = make()
            yield found[step]


def facts_of(rows: Sequence[Row]) -> list[str]:
    """What the rows come to: gains over plans without the host, hands that are ahead, plans that moved what they need
    not have."""
    known = {(row.target, row.model, row.step): row for row in rows if not row.problem}
    gains, declined, behind, moved, worth = [], [], [], [], []
    for (target, model, step), row in known.items():
        where, bases = f"{model} on {target}", [known.get((target, model, s)) for s in (PLAIN, f"by hand, {EACH}")]
        base = next((found.seconds for found in bases if found is not None and found.seconds), None)
        if not base or not row.seconds:
            continue
        other = EACH if step == SLOWER else step.removeprefix("ours, in the bytes of ")
        hand = known.get((target, model, f"by hand, {other}"))
        if (step.startswith("ours") or step == SLOWER) and hand is not None and hand.seconds:
            is_over = row.peak_bytes > hand.peak_bytes or 0 < hand.host_bytes < row.host_bytes
            if is_over or row.seconds > (1 + _SAME) * hand.seconds:
                points = 100 * (row.seconds - hand.seconds) / base
                behind.append(f"{where}, {step.rpartition(' of ')[2]} ({points:+.1f} points)")
        alone = known.get((target, model, SLOWER))
        if step == f"ours, in the bytes of {EACH}" and alone is not None and alone.seconds:
            points = 100 * (alone.seconds - row.seconds) / base
            told = f"{where} {points:.1f} points with {mb(row.host_bytes)} MB there"
            (gains if row.host_bytes else declined).append(told if row.host_bytes else where)
            if (most := known.get((target, model, ALL))) is not None and most.seconds:
                worth.append(
                    f"{where} {100 * (alone.seconds - most.seconds) / base:.1f} points in {mb(most.peak_bytes)} MB"
                )
        if step == ROOMY and row.host_bytes:
            moved.append(where)
    return [
        f"in the bytes of each layer in jax.checkpoint, faster than without the host by: {', '.join(gains) or 'none'}",
        f"nothing is moved in these bytes, since nothing is gained: {', '.join(declined) or 'none'}",
        f"plans without the host are faster in nearly the bytes as written by: {', '.join(worth) or 'none'}",
        f"slower than a hand by more than {percent(_SAME, 0)} %, or above its bytes: {', '.join(behind) or 'none'}",
        f"something moved though the step as written fits: {', '.join(moved) or 'none'}",
    ]


def run(options: Options) -> Report:
    """Make the table."""
    report = Report("offload", _INTRO, _COLUMNS, options.results)
    kept = Kept(options.results / "offload.json", Row, lambda row: (row.target, row.model, row.step))
    places = QUICK if options.quick else PLACES
    for target in options.targets or TARGETS:
        for name in options.choose(NAMES if not options.quick else (*places, "adam")):
            known = {row.step: row for row in kept.read() if (row.target, row.model) == (target, name)}
            if name == "adam":
                example = Updating(512, 64, "60%") if options.quick else Updating()
                made = rows_of_update(target, example, known) if target.startswith("tpu") else ()
            else:
                made = rows_of(name, target, places[name](), known)
            for row in made:
                kept.put(row)
                known[row.step] = row
                print(*row.cells(known[PLAIN], known.get(f"by hand, {EACH}", Row("", "", ""))), sep=" | ", flush=True)
    rows = kept.read()
    known = {(row.target, row.model, row.step): row for row in rows}
    for row in sorted(rows, key=lambda row: (row.model, row.target)):
        beside = (known.get((row.target, row.model, step), Row("", "", "")) for step in (PLAIN, f"by hand, {EACH}"))
        report.add(*row.cells(*beside))
    report.finish(facts_of(rows))
    return report
