"""Train a small GPT within a memory budget.

    python examples/train_gpt.py                        # within 40% of what plain JAX needs
    python examples/train_gpt.py --budget 300MiB        # within a number of bytes
    python examples/train_gpt.py --scan --layers 24     # layers under one scan: compiling takes no longer
    python examples/train_gpt.py --help                 # all options

The model is Flax Linen, the optimizer is Optax's AdamW, the text is the reference manual
that every CPython carries, read character by character. Only two lines know about remat_plan:

    plan = rp.plan(loss_fn, params, batch, key, budget="40%")
    planned_loss_fn = plan.apply(loss_fn)

(The first is written in two steps here, to show what is predicted before anything is compiled.) The rest trains,
measures the plain step and the planned one side by side, and draws the memory over time.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import remat_plan as rp

Params = Any
LossFn = Callable[[Params, jax.Array, jax.Array], jax.Array]

TIMED_STEPS = 5
"""Steps of each kind that are timed; the median counts."""
PATIENCE_SECONDS = 8.0
"""How long nothing is said where output goes to a file or a pipe."""
STARTED = time.perf_counter()


# The model -------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """One transformer layer: attention and a perceptron, each normalised first and added to the stream."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        width, rate, still = x.shape[-1], self.dropout, self.dropout == 0
        attention = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=rate, deterministic=still)
        y = attention(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dropout(rate, deterministic=still)(y)
        y = nn.Dense(4 * width)(nn.LayerNorm()(x))
        y = nn.Dense(width)(nn.gelu(y))
        return x + nn.Dropout(rate, deterministic=still)(y)


class Layer(nn.Module):
    """A ``Block`` as the body of a scan."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        return Block(self.heads, self.dropout)(x, mask), None


class GPT(nn.Module):
    """A decoder-only transformer: (batch, sequence) of characters to scores of each next character."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    dropout: float
    scan: bool

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        x = x + nn.Embed(length, self.width, name="positions")(jnp.arange(length))
        mask = nn.make_causal_mask(jnp.ones((1, length), jnp.int32))
        if self.scan:
            keys: dict[Any, bool] = {"params": True, "dropout": True}
            everywhere: Any = nn.broadcast  # the mask is the same for every layer
            layers = nn.scan(Layer, {"params": 0}, split_rngs=keys, in_axes=everywhere, length=self.layers)
            x, _ = layers(self.heads, self.dropout, name="blocks")(x, mask)
        else:
            for _ in range(self.layers):
                x = Block(self.heads, self.dropout)(x, mask)
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


def make_loss(model: GPT) -> LossFn:
    """Return the mean cross-entropy of each next character; the key draws the dropout."""

    def loss_fn(params: Params, batch: jax.Array, key: jax.Array) -> jax.Array:
        scores = jnp.asarray(model.apply(params, batch[:, :-1], rngs={"dropout": key}))
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch[:, 1:]).mean()

    return loss_fn


# The data --------------------------------------------------------------------------------------------------


def load_text() -> tuple[np.ndarray, str]:
    """Return Python's reference manual as numbers, and the characters that they stand for."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    number_of = {character: number for number, character in enumerate(alphabet)}
    return np.array([number_of[character] for character in text], np.int32), alphabet


def batches(text: np.ndarray, batch: int, seq: int, seed: int) -> Iterator[np.ndarray]:
    """Yield windows of seq + 1 characters from random places, for ever; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - seq, size=(batch, 1))
        yield text[starts + np.arange(seq + 1)]


# The step --------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """What a training step replaces."""

    params: Params
    optimizer: optax.OptState


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled training step: (state, batch, key) -> (state, (loss, norm of the gradient)).

    The state that goes in is consumed.
    """

    run: Callable[[State, np.ndarray, jax.Array], tuple[State, tuple[jax.Array, jax.Array]]]
    peak_bytes: int


def compile_step(
    loss_fn: LossFn, optimizer: optax.GradientTransformation, state: State, batch: np.ndarray, key: jax.Array
) -> Step:
    """Compile loss, gradients and update into one program, and ask the compiler how much memory it needs."""

    @functools.partial(jax.jit, donate_argnums=0, compiler_options=rp.compiler_options())
    def step(state: State, batch: jax.Array, key: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, batch, key)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        told = loss, norm(gradients)
        return State(optax.apply_updates(state.params, updates), optimizer_state), told

    compiled = step.lower(state, batch, key).compile()
    memory = compiled.memory_analysis()
    if memory is None:
        sys.exit("This backend does not report the memory of its programs.")
    held_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Step(compiled, held_bytes + memory.temp_size_in_bytes)


def norm(tree: Any) -> jax.Array:
    """Return the size of a gradient."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def time_in_turns(steps: list[Step], state: State, batch: np.ndarray, key: jax.Array) -> tuple[list[float], float]:
    """Time steps in turn, so that whatever else the machine does hits all alike.

    Returns:
        The median seconds of each, and how far loss and norm of the gradient differ between the steps, relatively.
    """
    states = [jax.tree.map(jnp.copy, state) for _ in steps]
    seconds: list[list[float]] = [[] for _ in steps]
    found: list[list[np.ndarray]] = [[] for _ in steps]
    for _ in range(1 + TIMED_STEPS):
        for i, step in enumerate(steps):
            start = time.perf_counter()
            states[i], told = step.run(states[i], batch, key)
            found[i].append(np.array(told))
            seconds[i].append(time.perf_counter() - start)
    first = [told[0] for told in found]  # later ones start from parameters that differ by rounding
    difference = max(float(np.max(np.abs(told / first[0] - 1))) for told in first)
    return [statistics.median(timed[1:]) for timed in seconds], difference  # the first run of each warms up


def train(step: Step, state: State, data: Iterable[np.ndarray], steps: int, key: jax.Array) -> Iterator[float]:
    """Train, and yield the loss of each step."""
    for i, batch in zip(range(steps), data, strict=False):
        state, (loss, _) = step.run(state, batch, jax.random.fold_in(key, i))
        yield float(loss)


# What is shown meanwhile -----------------------------------------------------------------------------------


def on_terminal() -> bool:
    """Tell whether there is a terminal that rich can draw on."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


@contextlib.contextmanager
def stage(text: str) -> Iterator[None]:
    """Say what goes on: a spinner on a terminal; elsewhere a line, and another every few seconds."""
    say(text)
    if on_terminal():
        from rich.console import Console

        with Console().status(text):
            yield
        return
    over = threading.Event()

    def remind() -> None:
        while not over.wait(PATIENCE_SECONDS):
            say(f"still {text}")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        over.set()
        reminder.join()


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:4.0f} s] {text}", flush=True)


def shown(losses: Iterator[float], steps: int) -> list[float]:
    """Collect the losses while showing how training goes: a bar on a terminal, a line now and then elsewhere."""
    return list(_drawn(losses, steps) if on_terminal() else _printed(losses, steps))


def _drawn(losses: Iterator[float], steps: int) -> Iterator[float]:
    from rich.progress import Progress

    with Progress() as progress:
        bar = progress.add_task("training", total=steps)
        for loss in losses:
            progress.update(bar, advance=1, description=f"training, loss {loss:.3f}")
            yield loss


def _printed(losses: Iterator[float], steps: int) -> Iterator[float]:
    said = -PATIENCE_SECONDS
    for i, loss in enumerate(losses, start=1):
        if i == steps or time.perf_counter() - said >= PATIENCE_SECONDS / 2:  # a step takes seconds itself
            said = time.perf_counter()
            say(f"step {i} of {steps}: loss {loss:.3f}")
        yield loss


# The run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said on the command line; its help explains each."""

    layers: int
    scan: bool
    width: int
    heads: int
    seq: int
    batch: int
    dropout: float
    budget: str
    target: str | None
    steps: int
    lr: float
    seed: int
    out: str


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train a small GPT within a memory budget, and compare it with plain JAX.",
        epilog="Things to try: --budget 25% (less memory, more recomputation); --budget 100% (nothing is "
        "recomputed); --budget 1MB (impossible: the error names the smallest budget, and why); --seq 512 "
        "(attention scores grow with the square of it); --target gpu:h100 (plan for a GPU that is not attached; "
        "needs the extra 'cuda12').",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=int, default=6, help="transformer layers; activations grow with them")
    model.add_argument("--scan", action="store_true", help="put all layers under one scan")
    model.add_argument("--width", type=int, default=192, help="size of the residual stream")
    model.add_argument("--heads", type=int, default=6, help="attention heads; must divide the width")
    model.add_argument("--seq", type=int, default=256, help="characters in a training example")
    model.add_argument("--batch", type=int, default=8, help="examples in a step")
    model.add_argument("--dropout", type=float, default=0.1, help="its key is an argument of the loss")
    memory = parser.add_argument_group("memory")
    memory.add_argument(
        "--budget",
        default="40%",
        help="what loss and gradients may need at their peak: bytes (300MiB, 1.5GB), or a percentage of what "
        "plain jax.value_and_grad needs; the optimizer's state comes on top",
    )
    memory.add_argument("--target", help="plan for another device: gpu:h100, tpu:v5e:1x1, ...")
    memory.add_argument("--out", default="memory_timeline.png", help="where to draw the memory over time")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=30, help="training steps")
    training.add_argument("--lr", type=float, default=1e-3, help="AdamW's learning rate")
    training.add_argument("--seed", type=int, default=0, help="of parameters, data and dropout")
    parsed = parser.parse_args()
    if parsed.width % parsed.heads:
        parser.error(f"--heads {parsed.heads} does not divide --width {parsed.width}")
    if parsed.steps < 1:
        parser.error("--steps must be 1 or more")
    return Options(**{field.name: getattr(parsed, field.name) for field in fields(Options)})


def main() -> None:
    """Predict, plan, compare, train, report."""
    options = parse_options()
    text, alphabet = load_text()
    data = batches(text, options.batch, options.seq, options.seed)
    batch = next(data)
    init_key, key = jax.random.split(jax.random.key(options.seed))
    model = GPT(len(alphabet), options.layers, options.width, options.heads, options.dropout, options.scan)
    loss_fn = make_loss(model)
    optimizer = optax.adamw(options.lr)

    def make_state() -> State:
        params = model.init({"params": init_key, "dropout": key}, batch[:, :-1])
        return State(params, optimizer.init(params))

    shapes = jax.eval_shape(make_state).params  # shapes are enough to plan with
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    say(f"{parameters:,} parameters, {len(text):,} characters, on {jax.devices()[0].device_kind}")

    with stage("predicting what memory costs in time (nothing is compiled)"):
        curve = rp.tradeoff(loss_fn, shapes, batch, key, target=options.target, progress=False)
    print(f"\n{curve}\n", flush=True)
    with stage(f"planning for a budget of {options.budget}, and compiling to check it"):
        try:
            plan = curve.plan(options.budget)
        except rp.BudgetError as error:
            sys.exit(str(error))
    print(f"\n{plan}\n", flush=True)
    planned_loss_fn = plan.apply(loss_fn)

    with stage("making parameters"):
        state = jax.jit(make_state)()
    with stage("compiling the training steps, plain and planned"):
        plain, planned = [compile_step(f, optimizer, state, batch, key) for f in (loss_fn, planned_loss_fn)]
    with stage(f"timing {TIMED_STEPS} steps of each, in turn"):
        seconds, difference = time_in_turns([plain, planned], state, batch, key)
    losses = shown(train(planned, state, data, options.steps, key), options.steps)
    draw(plan, options.out)

    before, after = (f"{step.peak_bytes / 1e6:,.1f} MB" for step in (plain, planned))
    print(f"\nPeak of the training step {before} -> {after}: {change(planned.peak_bytes / plain.peak_bytes)}.")
    print(
        f"Seconds per step {seconds[0]:.2f} -> {seconds[1]:.2f}: {change(seconds[1] / seconds[0])}. Loss "
        f"{losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} planned steps; "
        f"loss and norm of the gradient differ by {difference:.1e} at most, relatively."
    )
    print(f'In your code: loss_fn = rp.remat(loss_fn, budget="{options.budget}"), or rp.fit for a whole training step.')
    print(f"Memory over time: {options.out}")


def change(ratio: float) -> str:
    """Write a ratio as a change in per cent.

    >>> change(0.412), change(1.03)
    ('-58.8%', '+3.0%')
    """
    return f"{100 * (ratio - 1):+.1f}%"


def draw(plan: rp.Plan, path: str) -> None:
    """Write the plan's memory over time as a picture."""
    import matplotlib

    matplotlib.use("Agg")  # a file is all that is wanted; no display is needed
    figure = plan.plot().get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
