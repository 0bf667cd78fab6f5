"""Train, stop, resume: with a stored plan, Orbax checkpoints, and metrics in a file.

    python examples/resume_training.py --steps 10       # plans, trains, saves in ./run
    python examples/resume_training.py --steps 20       # reads the plan and the last state there, and goes on
    python examples/resume_training.py --help

The model, the texts and the optimizer are those of train_gpt.py. Planning compiles several times, so the plan is
stored beside the checkpoints; a restart reads it, and compiles the step only:

    plan = rp.Plan.from_json(path.read_text())
    loss_fn = plan.apply(loss_fn)       # if the model has changed, an error names the first difference

After a restart, steps have the same batches, dropout and losses as in an uninterrupted run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from train_gpt import GPT, LossFn, State, batches, load_text, make_loss

import remat_plan as rp


def stored_plan(path: Path, budget: str, loss_fn: LossFn, *shapes: Any) -> rp.Plan:
    """The plan in a file, if it is for this budget; else a new one, which is put there."""
    if path.exists() and (plan := rp.Plan.from_json(path.read_text())).budget == budget:
        print(f"plan read from {path}: {plan!r}")
        return plan
    plan = rp.plan(loss_fn, *shapes, budget=budget)
    path.write_text(plan.to_json())
    print(f"plan stored in {path}: {plan!r}")
    return plan


def make_step(loss_fn: LossFn, optimizer: optax.GradientTransformation) -> Callable[..., tuple[State, jax.Array]]:
    """The training step: (state, batch, key) -> (state, loss); the state that goes in is consumed."""

    def step(state: State, batch: jax.Array, key: jax.Array) -> tuple[State, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_fn)(state.params, batch, key)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), optimizer_state), loss

    return jax.jit(step, donate_argnums=0, compiler_options=rp.compiler_options())


def run(options: argparse.Namespace) -> None:
    """Train up to a step, from the last one that is in the folder."""
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    text, alphabet = load_text()
    model = GPT(len(alphabet), options.layers, options.width, heads=4, dropout=0.1, scan=False)
    optimizer, data = optax.adamw(1e-3), batches(text, options.batch, options.seq, seed=0)
    key, example = jax.random.key(0), next(data)

    def make_state() -> State:
        params = model.init({"params": key, "dropout": key}, example[:, :-1])
        return State(params, optimizer.init(params))

    shapes = jax.eval_shape(make_state)
    plan = stored_plan(folder / "plan.json", options.budget, make_loss(model), shapes.params, example, key)
    step = make_step(plan.apply(make_loss(model)), optimizer)

    saving = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=options.every)
    with (
        ocp.CheckpointManager(folder / "checkpoints", options=saving) as checkpoints,
        (folder / "metrics.jsonl").open("a") as metrics,
    ):
        done = checkpoints.latest_step() or 0
        if done:
            state = checkpoints.restore(done, args=ocp.args.StandardRestore(shapes))
            print(f"restored step {done}")
        else:
            state = jax.jit(make_state)()
        for number, batch in itertools.islice(enumerate(data, start=1), done, options.steps):
            started = time.perf_counter()
            state, loss = step(state, batch, jax.random.fold_in(key, number))
            row = {"step": number, "loss": float(loss), "seconds": round(time.perf_counter() - started, 3)}
            print(json.dumps(row), file=metrics, flush=True)
            checkpoints.save(number, args=ocp.args.StandardSave(state), force=number == options.steps)
            print(f"step {number}: loss {row['loss']:.4f}, {row['seconds']:.2f} s", flush=True)


def parse_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="run", help="where plan, checkpoints and metrics are (default: run)")
    parser.add_argument("--steps", type=int, default=10, help="the step to train up to (default 10)")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints (default 5)")
    parser.add_argument("--budget", default="50%", help="bytes of loss and gradients, or a share (default 50%%)")
    parser.add_argument("--layers", type=int, default=4, help="transformer layers (default 4)")
    parser.add_argument("--width", type=int, default=128, help="width of the model, a multiple of 4 (default 128)")
    parser.add_argument("--seq", type=int, default=128, help="characters of an example (default 128)")
    parser.add_argument("--batch", type=int, default=8, help="examples in a step (default 8)")
    options = parser.parse_args()
    for name in ("steps", "every", "layers", "width", "seq", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give a positive number")
    if options.width % 4:
        parser.error(f"--width {options.width}: give a multiple of 4")
    return options


if __name__ == "__main__":
    try:
        run(parse_options())
    except ValueError as problem:  # a budget that cannot be met, a plan of another model
        sys.exit(f"error: {problem}")
