"""Train a small GPT on eight devices within a memory budget on each: replicated weights, FSDP, tensor parallelism.

    python examples/sharded_training.py                           # all three layouts, half of the bytes
    python examples/sharded_training.py --layouts fsdp --budget 40MB
    python examples/sharded_training.py --help

On a machine without accelerators the CPU plays eight devices. A sharded step is fitted as any other: arguments
carry their shardings, one line marks the loss, and bytes are of one device:

    step = rp.fit(train_step, state, batch, budget="50%", donate_argnums=0)

Each layout is trained as it is and fitted, from the same weights on the same texts, and the losses are compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import remat_plan as rp

DEVICES = 8
Params = dict[str, jax.Array]
State = tuple[Params, Any]

# How each weight is laid over a mesh of ("data", "model"); layers are stacked along the first axis of a weight.
LAYOUTS: dict[str, tuple[tuple[int, int], dict[str, P]]] = {
    "copies": ((8, 1), {}),
    "fsdp": (
        (8, 1),
        {"embed": P(None, "data"), "mix": P(None, "data"), "out": P(None, None, None, "data")}
        | {"up": P(None, "data"), "down": P(None, "data")},
    ),
    "tensor": (
        (2, 4),
        {"mix": P(None, None, None, "model"), "out": P(None, "model")}
        | {"up": P(None, None, "model"), "down": P(None, "model")},
    ),
}


# The model -------------------------------------------------------------------------------------------------


def init(seed: int, vocabulary: int, layers: int, width: int, heads: int) -> Params:
    """Weights of a decoder-only transformer; queries, keys and values in one array, by heads."""
    shapes = {
        "embed": (vocabulary, width),
        "mix": (layers, width, 3, heads, width // heads),
        "out": (layers, heads, width // heads, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
    }
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {name: 0.02 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def normalized(x: jax.Array) -> jax.Array:
    """Root-mean-square normalisation over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
    """Attention and perceptron of one layer, on (examples, positions, width)."""
    queries, keys, values = jnp.moveaxis(jnp.einsum("bsw,wthd->bsthd", normalized(x), weights["mix"]), 2, 0)
    mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
    x = x + jnp.einsum("bshd,hdw->bsw", mixed, weights["out"])
    return x + jax.nn.gelu(normalized(x) @ weights["up"]) @ weights["down"], None


def loss_fn(params: Params, texts: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next character; ``texts`` is (examples, positions + 1), int32."""
    layers = {name: weight for name, weight in params.items() if name != "embed"}
    x, _ = jax.lax.scan(block, params["embed"][texts[:, :-1]], layers)
    scores = normalized(x) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(scores, texts[:, 1:]).mean()


def make_step(adam: optax.GradientTransformation, loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A training step like any other."""

    def train_step(state: State, texts: jax.Array) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, texts)
        updates, opt_state = adam.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return train_step


# The data --------------------------------------------------------------------------------------------------


def load_text() -> np.ndarray:
    """Python's reference manual, one number a character (above the last of ASCII: that one)."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.minimum(np.array([ord(character) for character in text], np.int32), 127)


def batches(text: np.ndarray, examples: int, positions: int, seed: int) -> Iterator[np.ndarray]:
    """Windows of positions + 1 characters from random places; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - positions, size=(examples, 1))
        yield text[starts + np.arange(positions + 1)]


# The layouts -----------------------------------------------------------------------------------------------


def train(step: Callable[..., Any], state: State, data: Iterator[np.ndarray], spread: Any, steps: int) -> list[float]:
    """Losses of so many steps."""
    losses = []
    for texts, _ in zip(data, range(steps), strict=False):
        state, loss = step(state, jax.device_put(texts, spread))
        losses.append(float(loss))
    return losses


def compare(name: str, options: argparse.Namespace) -> bool:
    """Train in one layout as it is and fitted; print what each device needs. Whether the losses agree."""
    shape, specs = LAYOUTS[name]
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spread = NamedSharding(mesh, P("data"))
    text, adam = load_text(), optax.adamw(1e-3)

    def start() -> State:
        params = init(options.seed, 128, options.layers, options.width, options.heads)
        placed = {k: jax.device_put(w, NamedSharding(mesh, specs.get(k, P()))) for k, w in params.items()}
        return placed, adam.init(placed)

    def data() -> Iterator[np.ndarray]:
        return batches(text, options.batch, options.seq, options.seed)

    example = jax.device_put(next(data()), spread)
    fitted = rp.fit(make_step(adam, rp.mark(loss_fn)), start(), example, budget=options.budget, donate_argnums=0)
    report = fitted.report
    print(f"\n{name}: mesh of {shape[0]} x {shape[1]}, bytes on one device", flush=True)
    for label, needs in (("as written", report.plain), ("fitted", report.planned)):
        held = mib(needs.argument_bytes)
        print(f"  {label:<10} {mib(needs.peak_bytes)}, of which weights, optimizer and batch {held}")
    print(f"  budget     {mib(report.budget_bytes)}; recomputation {report.overhead:+.1%} (predicted)", flush=True)
    plain = jax.jit(make_step(adam, loss_fn), donate_argnums=0, compiler_options=rp.compiler_options() or None)
    wanted = train(plain, start(), data(), spread, options.steps)
    got = train(fitted, start(), data(), spread, options.steps)
    difference = max(abs(a - b) for a, b in zip(wanted, got, strict=True))
    print(f"  loss       {got[0]:.3f} -> {got[-1]:.3f} in {len(got)} steps; at most {difference:.1e} from as written")
    return difference < 1e-3


def mib(count: int) -> str:
    """Bytes as text."""
    return f"{count / 2**20:7.1f} MiB"


def parse_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="which (default: all)")
    parser.add_argument("--budget", default="50%", help="bytes on one device, or a share of the plain step's")
    parser.add_argument("--steps", type=int, default=4, help="training steps in each layout (default 4)")
    parser.add_argument("--batch", type=int, default=16, help="examples on all devices together (default 16)")
    parser.add_argument("--seq", type=int, default=128, help="characters of an example (default 128)")
    parser.add_argument("--layers", type=int, default=6, help="layers, in one scan (default 6)")
    parser.add_argument("--width", type=int, default=128, help="width of the model (default 128)")
    parser.add_argument("--heads", type=int, default=4, help="heads of attention (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and texts (default 0)")
    options = parser.parse_args()
    for name in ("steps", "batch", "seq", "layers", "width", "heads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give a positive number")
    if options.batch % DEVICES or options.width % options.heads or options.width % DEVICES or options.heads % 4:
        parser.error("--batch and --width must be multiples of 8, --heads of 4, --width of --heads")
    return options


def main() -> None:
    """Compare the layouts."""
    options = parse_options()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if jax.device_count() < DEVICES:
        sys.exit(f"{jax.device_count()} devices: eight are needed; JAX_PLATFORMS=cpu lets the CPU play them")
    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}")
    try:
        agreed = [compare(name, options) for name in options.layouts]
    except rp.BudgetError as error:
        sys.exit(f"error: {error}")
    if not all(agreed):
        sys.exit("error: losses differ by more than 1e-3")


if __name__ == "__main__":
    main()
