"""Train an LSTM by back-propagation through 10,000 steps, with the memory of a hundred.

    python examples/long_rnn.py                        # plain against binomial against log
    python examples/long_rnn.py --slots 20             # fewer stored carries, more recomputation
    python examples/long_rnn.py --length 2000 --help   # all options

The cell is Flax Linen's LSTM, the optimizer is Optax's Adam, the text is the reference manual that every CPython
carries, read character by character. Only one line knows about remat_plan:

    carry, losses = rp.scan(read, carry, tokens, schedule="binomial", slots=100)

where ``jax.lax.scan(read, carry, tokens)`` stood. The rest measures the three schedules side by side, trains with
the binomial one, and draws what each needs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import remat_plan as rp

Params = Any
Carry = tuple[jax.Array, jax.Array]

SCHEDULES = ("plain", "binomial", "log")
TIMED_STEPS = 2
"""Steps of each kind that are timed; the median counts."""


# The model -------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Reads one character of each text and says how badly it had guessed the next."""

    vocabulary: int
    width: int

    @nn.compact
    def __call__(self, carry: Carry, pair: jax.Array) -> tuple[Carry, jax.Array]:
        read, following = pair
        carry, h = nn.OptimizedLSTMCell(self.width)(carry, nn.Embed(self.vocabulary, self.width)(read))
        scores = nn.Dense(self.vocabulary)(h)
        return carry, optax.softmax_cross_entropy_with_integer_labels(scores, following).mean()


def make_loss(model: Reader, options: dict[str, Any]) -> Callable[[Params, jax.Array], jax.Array]:
    """Return the mean loss over texts (length + 1, batch) of characters, under a schedule of ``rp.scan``."""

    def loss_fn(params: Params, text: jax.Array) -> jax.Array:
        zeros = jnp.zeros((text.shape[1], model.width))
        pairs = jnp.stack([text[:-1], text[1:]], axis=1)
        read = partial(model.apply, params)
        _, losses = rp.scan(read, (zeros, zeros), pairs, **options)
        return losses.mean()

    return loss_fn


# The data --------------------------------------------------------------------------------------------------


def load_text() -> tuple[np.ndarray, str]:
    """Return Python's reference manual as numbers, and the characters that they stand for."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    number_of = {character: number for number, character in enumerate(alphabet)}
    return np.array([number_of[character] for character in text], np.int32), alphabet


def batches(text: np.ndarray, batch: int, length: int, seed: int) -> Iterator[np.ndarray]:
    """Yield texts of length + 1 characters from random places, as columns; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - length, size=batch)
        yield text[starts + np.arange(length + 1)[:, None]]


# The step --------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """What a training step replaces."""

    params: Params
    optimizer: optax.OptState


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled training step: (state, text) -> (state, loss, size of the gradient).

    Attributes:
        name: of the schedule.
        run: the program.
        temporary_bytes: what it needs beside its arguments and results.
    """

    name: str
    run: Callable[[State, np.ndarray], tuple[State, jax.Array, jax.Array]]
    temporary_bytes: int


def compile_step(
    name: str,
    loss_fn: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    state: State,
    text: np.ndarray,
) -> Step:
    """Compile loss, gradients and update into one program, and read from the compiler what it needs."""

    @jax.jit
    def step(state: State, text: jax.Array) -> tuple[State, jax.Array, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, text)
        updates, moments = optimizer.update(gradients, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), moments), loss, norm(gradients)

    compiled = step.lower(state, text).compile()
    memory = compiled.memory_analysis()
    if memory is None:
        sys.exit("This backend does not tell what memory its programs need.")
    return Step(name, compiled, memory.temp_size_in_bytes)


def norm(tree: Any) -> jax.Array:
    """Return the size of a gradient."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def measure(steps: list[Step], state: State, text: np.ndarray) -> tuple[list[float], float]:
    """Time steps in turn; return the median seconds of each, and how far loss and gradient differ, relatively."""
    seconds: list[list[float]] = [[] for _ in steps]
    results = []
    for _ in range(1 + TIMED_STEPS):
        results = []
        for step, timed in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            _, loss, size = jax.block_until_ready(step.run(state, text))
            timed.append(time.perf_counter() - start)
            results.append((float(loss), float(size)))
    difference = max(abs(a / b - 1) for found in results for a, b in zip(found, results[0], strict=True))
    return [statistics.median(timed[1:]) for timed in seconds], difference  # the first run of each warms up


def train(step: Step, state: State, data: Iterator[np.ndarray], steps: int) -> list[float]:
    """Train, showing how it goes; return the loss of each step."""
    losses = []
    for i in range(1, steps + 1):
        state, loss, _ = step.run(state, next(data))
        losses.append(float(loss))
        if i == 1 or i == steps or i % max(1, steps // 8) == 0:
            print(f"  step {i:3d} of {steps}: loss {losses[-1]:.3f}", flush=True)
    return losses


# The run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said on the command line; its help explains each."""

    length: int
    batch: int
    width: int
    slots: int
    steps: int
    lr: float
    seed: int
    out: str


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train an LSTM by back-propagation through a long text, and compare schedules of its loop.",
        epilog="Things to try: --slots 20 (fewer stored carries, more recomputation); --length 50000 (the memory of "
        "binomial stays, that of plain does not); --width 256 (larger carries).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    model = parser.add_argument_group("model")
    model.add_argument("--length", type=int, default=10_000, help="characters that the gradient goes back through")
    model.add_argument("--batch", type=int, default=8, help="texts in a step")
    model.add_argument("--width", type=int, default=64, help="size of the LSTM's state")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--slots", type=int, default=100, help="carries that the binomial schedule stores")
    memory.add_argument("--out", default="long_rnn.png", help="where to draw memory and time")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=40, help="training steps, under the binomial schedule")
    training.add_argument("--lr", type=float, default=1e-2, help="Adam's learning rate")
    training.add_argument("--seed", type=int, default=0, help="of parameters and data")
    parsed = parser.parse_args()
    for name in ("length", "batch", "width", "slots", "steps"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name} must be 1 or more")
    return Options(**{field.name: getattr(parsed, field.name) for field in fields(Options)})


def main() -> None:
    """Compare, train, report."""
    options = parse_options()
    text, alphabet = load_text()
    if options.length >= len(text):
        sys.exit(f"--length {options.length}: the text has {len(text):,} characters; the length must be below that.")
    data = batches(text, options.batch, options.length, options.seed)
    first = next(data)
    model = Reader(len(alphabet), options.width)
    zeros = jnp.zeros((options.batch, options.width))
    params = model.init(jax.random.key(options.seed), (zeros, zeros), jnp.asarray(first[:2]))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(options.lr))
    state = State(params, optimizer.init(params))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{parameters:,} parameters, {options.length:,} steps, on {jax.devices()[0].device_kind}", flush=True)

    steps = []
    for name in SCHEDULES:
        words = {"schedule": name} | ({"slots": options.slots} if name == "binomial" else {})
        start = time.perf_counter()
        steps.append(compile_step(name, make_loss(model, words), optimizer, state, first))
        print(f"  {name}: compiled in {time.perf_counter() - start:.1f} s", flush=True)
    print(f"timing {TIMED_STEPS} steps of each, in turn", flush=True)
    seconds, difference = measure(steps, state, first)
    print("training under the binomial schedule", flush=True)
    losses = train(steps[SCHEDULES.index("binomial")], state, data, options.steps)
    draw(steps, seconds, options.out)

    print(f"\n{'':22}" + "".join(f"{name:>14}" for name in SCHEDULES))
    print(f"{'temporaries':22}" + "".join(f"{step.temporary_bytes / 2**20:>10,.2f} MiB" for step in steps))
    print(f"{'seconds per step':22}" + "".join(f"{each:>14.2f}" for each in seconds))
    print(f"\nLoss and size of the gradient differ by {difference:.1e} at most, relatively.")
    print(f"Loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps.")
    print(f"Memory and time: {options.out}")


def draw(steps: list[Step], seconds: list[float], path: str) -> None:
    """Write what each schedule needs as a picture."""
    import matplotlib

    matplotlib.use("Agg")  # a file is all that is wanted; no display is needed
    import matplotlib.pyplot as plt

    figure, (memory, clock) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
    names = [step.name for step in steps]
    memory.bar(names, [step.temporary_bytes / 2**20 for step in steps], color="tab:blue")
    memory.set(yscale="log", ylabel="temporaries (MiB)", title="memory")
    clock.bar(names, seconds, color="tab:orange")
    clock.set(ylabel="seconds per step", title="time")
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
