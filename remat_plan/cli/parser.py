"""The options of the command line, and the help that teaches them.

In: nothing. Out: an ``argparse.ArgumentParser``.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, get_args

import remat_plan
from remat_plan.clock.store import Cost
from remat_plan.search.candidates import Goal
from remat_plan.small.wording import did_you_mean
from remat_plan.traced.programs import Existing

_INTRODUCTION = """\
Plan gradient checkpointing for a JAX function from the command line.

PATH.py:FUNCTION names a function without arguments in a Python file. It returns the loss function and example
arguments for it. Shapes are enough; nothing is computed:

    # train.py
    import jax, jax.numpy as jnp

    def loss_fn(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def problem():
        params = [jax.ShapeDtypeStruct((256, 256), "float32")] * 12
        return loss_fn, (params, jax.ShapeDtypeStruct((4096, 256), "float32"))

It may also return a dict with argnums, has_aux, static_argnums or kwargs, as in remat_plan.plan.

For `fit`, `max-batch` and `largest` it returns a whole training step instead, in which remat_plan.mark marks what may
be recomputed. For the last two it takes one argument: the number of examples in a batch, or another size."""

_EXAMPLES = """\
examples:
    remat-plan analyze train.py:problem                      what plain JAX saves, by bytes and source line
    remat-plan plan train.py:problem --budget 60%            a plan within 60% of the current peak
    remat-plan plan train.py:problem --budget 8GiB --json plan.json --html plan.html
    remat-plan plan train.py:problem --budget 70% --target gpu:h100
    remat-plan measure train.py:problem --budget 60%         time the plain and the planned step in turns
    remat-plan fit train.py:step --budget 24GB --target gpu:l4
    remat-plan max-batch train.py:step_of --budget 24GB --target gpu:l4
    remat-plan tradeoff train.py:problem --plot curve.png    memory against time
    remat-plan compare train.py:problem --budget 75%,50%,25%
    remat-plan strategies                                    the values of --strategy

exit codes:
    0 success    1 the budget cannot be met    2 invalid input    3 remat_plan or the compiler failed

`remat-plan COMMAND --help` lists the options of a command."""

_AFTER_PLAN = """\
The table lists, from the first equation to the last, what is saved, what is recomputed, and the source lines. To load
the plan written by --json in a program:

    plan = remat_plan.Plan.from_json(open("plan.json").read())
    grads = jax.jit(jax.grad(plan.apply(loss_fn)))(params, x)

examples:
    remat-plan plan train.py:problem --budget 60%
    remat-plan plan train.py:problem --strategy memory                  no budget: about the square root of the memory
    remat-plan plan train.py:problem --budget 8GiB --no-verify          only predict: faster, less certain
    remat-plan plan train.py:problem --budget device --target gpu:a100  the memory of an A100
    remat-plan plan train.py:problem --goal time                        the fastest step, whatever memory it needs
    remat-plan plan train.py:problem --budget 60% --must-save attention --never-recompute dot_general
    remat-plan plan train.py:problem --budget 40% --target gpu:h100 --offload --host-budget 64GB

Exit code 1 means that the budget cannot be met; the message names the smallest budget that can."""

_AFTER_MEASURE = """\
Plans like `remat-plan plan`, then runs the plain and the planned gradient step in turns on the attached device and
reports the seconds of both. Arguments given as shapes are filled with random numbers (integers with 0).

examples:
    remat-plan measure train.py:problem --budget 60%
    remat-plan measure train.py:problem --budget 60% --rounds 40

Exit code 1 means that the budget cannot be met."""

_AFTER_FIT = """\
PATH.py:FUNCTION returns the training step, its arguments and options of jax.jit (donate_argnums, static_argnums,
in_shardings, out_shardings, compiler_options):

    def train_step(state, batch):
        loss, grads = jax.value_and_grad(remat_plan.mark(loss_fn))(state.params, batch)
        return state.apply_gradients(grads=grads), loss

    def step():
        return train_step, (state, batch), {"donate_argnums": 0}

In a program: `train_step = remat_plan.fit(train_step, state, batch, budget="24GB", donate_argnums=0)`.

Exit code 1 means that the budget cannot be met; the message names the smallest budget that can."""

_AFTER_LARGEST = """\
PATH.py:FUNCTION takes a size (the length of a sequence, pixels along a side, a number of layers) and returns the same
as for `remat-plan fit`. Shapes are enough:

    def step_of(length):
        return train_step, (state, jax.ShapeDtypeStruct((1, length), "int32")), {"donate_argnums": 0}

examples:
    remat-plan largest train.py:step_of --budget 24GB --dimension sequence --multiple-of 1024"""

_AFTER_MAX_BATCH = """\
PATH.py:FUNCTION takes the number of examples in a batch and returns the same as for `remat-plan fit`. Shapes are
enough:

    def step_of(batch):
        return train_step, (state, jax.ShapeDtypeStruct((batch, 1024), "int32")), {"donate_argnums": 0}

examples:
    remat-plan max-batch train.py:step_of --budget 24GB
    remat-plan max-batch train.py:step_of --budget 80GB --target gpu:h100 --multiple-of 32"""

_AFTER_COMPARE = """\
One line for each strategy and budget. Options may be repeated, or take a comma-separated list.

examples:
    remat-plan compare train.py:problem --budget 75%,50%,25%
    remat-plan compare train.py:problem --strategy auto,memory,dots,each_block --budget 40% --html compare.html
    remat-plan compare train.py:problem --strategy all --budget 40% --no-verify

A strategy that has only one schedule gets one line, whatever the budgets."""


def _texts(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _count(least: int) -> Callable[[str], int]:
    """A whole number from ``least`` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # no number: refused below
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number of {least} or more is needed")
        return number

    return parse


_NAMES = {"metavar": "NAME,...", "type": _texts, "action": "extend"}
_BUDGET = 'bytes (800MB, 8GiB), "device"'
_PLANS = "plan measure"
_PREDICT = "plan measure fit max-batch largest tradeoff compare"
_REPORTS = f"analyze {_PREDICT}"

_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (_PLANS, "--budget", {"metavar": "B", "help": f"{_BUDGET}, or a share of the current peak (60%%)"}),
    (_PLANS, "--strategy", {"metavar": "NAME", "default": "auto", "help": "how to plan (default: auto)"}),
    (_PLANS, "--goal", {
        "choices": get_args(Goal), "default": "memory",
        "help": "the least recomputation within the budget (memory, the default), or the fastest step (time)",
    }),
    (_PLANS, "--must-save", {
        **_NAMES, "default": [], "help": "checkpoint_name names of values that are never recomputed",
    }),
    (_PLANS, "--must-recompute", {
        **_NAMES, "default": [], "help": "checkpoint_name names of values that are never saved for the backward pass",
    }),
    (_PLANS, "--never-recompute", {
        **_NAMES, "help": "primitives that are never recomputed, such as dot_general (default: collectives)",
    }),
    (_PLANS, "--never-split", {
        **_NAMES, "default": [], "help": "checkpoint_name names or primitives that never run in slices, or `all`",
    }),
    (_PREDICT, "--offload", {
        "action": "store_true", "help": "let steps of loops keep values in the host's memory, where that pays",
    }),
    (_PREDICT, "--may-offload", {
        **_NAMES, "default": [], "help": "checkpoint_name names of the values that may be kept there, instead of all",
    }),
    (_PREDICT, "--host-budget", {
        "metavar": "B", "help": "bytes of the host's memory (64GB) that may be used (default: any number)",
    }),
    (_PLANS, "--search", {"action": "store_true", "help": "also show the schedules that were compiled"}),
    ("measure", "--rounds", {
        "metavar": "N", "type": _count(1), "default": 15, "help": "how many times to run both steps (default: 15)",
    }),
    ("fit", "--budget", {"metavar": "B", "help": f"{_BUDGET}, or a share of the current peak (60%%)"}),
    ("max-batch largest", "--budget", {"metavar": "B", "help": f"{_BUDGET}, on one device"}),
    ("largest", "--dimension", {
        "metavar": "NAME", "default": "size", "help": "what the size is called: sequence, layers (default: size)",
    }),
    ("max-batch largest", "--multiple-of", {
        "metavar": "N", "type": _count(1), "default": 8, "help": "try multiples of this size (default: 8)",
    }),
    ("compare", "--budget", {**_NAMES, "metavar": "B,...", "default": [], "help": "budgets (default: 75%%,50%%,25%%)"}),
    ("compare", "--strategy", {**_NAMES, "default": [], "help": "strategies, or `all` (default: auto)"}),
    ("tradeoff", "--points", {
        "metavar": "N", "type": _count(2), "default": 16, "help": "number of schedules (default: 16)",
    }),
    ("plan fit max-batch largest tradeoff compare", "--target", {
        "metavar": "T", "help": 'the device to plan for, attached or not: "gpu:h100", "tpu:v5e:1x1"',
    }),
    (_PREDICT, "--cost", {
        "choices": get_args(Cost), "default": "table",
        "help": "predict seconds from a table of devices (the default) or from rates measured on this device",
    }),
    ("plan measure tradeoff compare", "--existing", {
        "choices": get_args(Existing), "default": "replan",
        "help": "replan the function's own jax.checkpoint regions (replan, the default) or keep them",
    }),
    ("plan measure compare", "--no-verify", {
        "dest": "verify", "action": "store_false", "help": "only predict, do not compile (faster, less certain)",
    }),
    (_REPORTS, "--json", {"metavar": "FILE", "help": "write JSON; - for stdout, instead of the table"}),
    (_REPORTS, "--html", {"metavar": "FILE", "help": "write a self-contained page"}),
    (_REPORTS, "--plot", {
        "metavar": "FILE", "help": "write a picture: .png, .svg, .pdf (needs matplotlib)",
    }),
)  # fmt: skip
"""Commands, option, and what ``argparse`` is told of it; a command has its options in this order."""


def _strategies() -> str:
    """The strategies, one line each."""
    lines = ["strategies (more in `remat-plan strategies`):"]
    for row in remat_plan.strategies():
        lines.append(textwrap.fill(row.summary, 110, initial_indent=f"    {row.name:<15}", subsequent_indent=19 * " "))
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; exit with what was perhaps meant by an option that the command does not have."""
    parser = make_parser()
    options, others = parser.parse_known_args(arguments)
    if others:
        known = [option for names, option, _ in _OPTIONS if options.command in names.split()]
        hint = did_you_mean(others[0].partition("=")[0], known) or f" `remat-plan {options.command} --help` lists all."
        parser.error(f"unrecognized arguments: {' '.join(others)}.{hint}")
    return options


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "remat-plan", description=_INTRODUCTION, epilog=_EXAMPLES, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"remat_plan {remat_plan.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    strategies = _strategies()
    loss, step = "(loss_fn, args[, options])", "(train_step, args[, options])"
    for name, summary, epilog, returns in (
        ("analyze", "what plain JAX saves for the backward pass, by value; nothing is compiled", "", loss),
        ("plan", "what to save and what to recompute, to fit a budget", f"{_AFTER_PLAN}\n\n{strategies}", loss),
        ("measure", "plan, then time the plain and the planned step in turns", _AFTER_MEASURE, loss),
        ("fit", "what to recompute, to fit a whole training step into a budget", _AFTER_FIT, step),
        ("max-batch", "the largest batches of a training step that fit", _AFTER_MAX_BATCH, step),
        ("largest", "the longest sequences, or another size, that fit", _AFTER_LARGEST, step),
        ("tradeoff", "peak memory against overhead, the whole curve", "", loss),
        ("compare", "several strategies and budgets side by side", f"{_AFTER_COMPARE}\n\n{strategies}", loss),
        ("strategies", "what each strategy does, where it comes from, when not to use it", "", ""),
    ):
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(
            name, help=summary, description=description, epilog=epilog, formatter_class=plain, allow_abbrev=False
        )
        if returns:
            command.add_argument("source", metavar="PATH.py:FUNCTION", help=f"returns {returns}")
        for names, option, settings in _OPTIONS:
            if name in names.split():
                command.add_argument(option, **settings)
        command.set_defaults(target=None)  # the attached device, where it is not an option
        if name == "max-batch":
            command.set_defaults(dimension="batch")
    return parser
