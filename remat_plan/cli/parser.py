"""The options of the command line, and the help that teaches them.

In: nothing. Out: an ``argparse.ArgumentParser``.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import get_args

import remat_plan
from remat_plan.clock.store import Cost
from remat_plan.program import Existing
from remat_plan.search.candidates import Goal

_INTRODUCTION = """\
Plan gradient checkpointing for a JAX function from the command line.

PATH.py:FUNCTION names a function without arguments in a Python file. It returns the loss function and example
arguments for it; shapes are enough, nothing is computed:

    # train.py
    import jax, jax.numpy as jnp

    def loss_fn(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def problem():
        params = [jax.ShapeDtypeStruct((256, 256), "float32")] * 12
        return loss_fn, (params, jax.ShapeDtypeStruct((4096, 256), "float32"))

It may return a third thing, a dict with argnums, has_aux, static_argnums or kwargs, as in remat_plan.plan.

For `fit` and `max-batch` it returns a whole training step instead, in which remat_plan.mark marks what may be
recomputed; for `max-batch` it takes the number of examples in a batch."""

_EXAMPLES = """\
examples:
    remat-plan analyze train.py:problem                      what plain JAX saves, by bytes and source line
    remat-plan plan train.py:problem --budget 60%            a plan within 60% of the present peak
    remat-plan plan train.py:problem --budget 8GiB --json plan.json --html plan.html
    remat-plan plan train.py:problem --budget 70% --target gpu:h100
    remat-plan measure train.py:problem --budget 60%         seconds of the plain and the planned step, run in turns
    remat-plan fit train.py:step --budget 24GB --target gpu:l4
    remat-plan max-batch train.py:step_of --budget 24GB --target gpu:l4
    remat-plan tradeoff train.py:problem --plot curve.png    how much memory for how much time
    remat-plan compare train.py:problem --budget 75%,50%,25%
    remat-plan strategies                                    what --strategy may be

exit codes:
    0 fine    1 the budget cannot be met    2 bad input    3 remat_plan or the compiler failed

`remat-plan COMMAND --help` tells the options of a command."""

_AFTER_PLAN = """\
The table lists, from the first equation to the last, which values are saved and what is recomputed, and where in
your source. In a program, load the plan that --json wrote:

    plan = remat_plan.Plan.from_json(open("plan.json").read())
    grads = jax.jit(jax.grad(plan.apply(loss_fn)))(params, x)

examples:
    remat-plan plan train.py:problem --budget 60%
    remat-plan plan train.py:problem --strategy memory                  without a budget: about the square root
    remat-plan plan train.py:problem --budget 8GiB --no-verify          predictions only: quick, less sure
    remat-plan plan train.py:problem --budget device --target gpu:a100  what an A100 has
    remat-plan plan train.py:problem --goal time                        the fastest step, whatever memory it needs
    remat-plan plan train.py:problem --budget 60% --must-save attention --never-recompute dot_general

exit code 1 says that the budget cannot be met; the message names the least that can."""

_AFTER_MEASURE = """\
Plans as `remat-plan plan` does, then runs the plain and the planned gradient step in turns on the attached device, and
tells the seconds of both. Arguments that are shapes only are filled with random numbers (integers with 0).

examples:
    remat-plan measure train.py:problem --budget 60%
    remat-plan measure train.py:problem --budget 60% --rounds 40

exit code 1 says that the budget cannot be met."""

_AFTER_FIT = """\
PATH.py:FUNCTION returns the training step, its arguments and what jax.jit is told of it (donate_argnums,
static_argnums, in_shardings, out_shardings, compiler_options):

    def train_step(state, batch):
        loss, grads = jax.value_and_grad(remat_plan.mark(loss_fn))(state.params, batch)
        return state.apply_gradients(grads=grads), loss

    def step():
        return train_step, (state, batch), {"donate_argnums": 0}

In a program: `train_step = remat_plan.fit(train_step, state, batch, budget="24GB", donate_argnums=0)`.

exit code 1 says that the budget cannot be met; the message names the least that can."""

_AFTER_MAX_BATCH = """\
PATH.py:FUNCTION takes the number of examples in a batch and returns what it returns for `remat-plan fit`; shapes are
enough:

    def step_of(batch):
        return train_step, (state, jax.ShapeDtypeStruct((batch, 1024), "int32")), {"donate_argnums": 0}

examples:
    remat-plan max-batch train.py:step_of --budget 24GB
    remat-plan max-batch train.py:step_of --budget 80GB --target gpu:h100 --multiple-of 32"""

_AFTER_COMPARE = """\
One line for each strategy and budget. Options may be repeated, or take a list with commas.

examples:
    remat-plan compare train.py:problem --budget 75%,50%,25%
    remat-plan compare train.py:problem --strategy auto,memory,dots,each_block --budget 40% --html compare.html
    remat-plan compare train.py:problem --strategy all --budget 40% --no-verify

Strategies with one schedule, whatever the budget, have one line."""

_BUDGET = 'bytes (800MB, 8GiB), "device"'

_LIMITS = {
    "--must-save": "checkpoint_name names of values that are never recomputed",
    "--must-recompute": "checkpoint_name names of values that are never saved for the backward pass",
    "--never-recompute": "primitives that are never recomputed, such as dot_general (default: collectives)",
}


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


def _strategies() -> str:
    """The strategies, one line each."""
    lines = ["strategies (`remat-plan strategies` tells more):"]
    for row in remat_plan.strategies():
        lines.append(textwrap.fill(row.summary, 110, initial_indent=f"    {row.name:<15}", subsequent_indent=19 * " "))
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "remat-plan", description=_INTRODUCTION, epilog=_EXAMPLES, formatter_class=plain, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"remat_plan {remat_plan.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, told: str, after: str, returns: str = "(loss_fn, args[, options])") -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=told, description=f"{told[0].upper()}{told[1:]}.", epilog=after, formatter_class=plain,
            allow_abbrev=False,
        )  # fmt: skip
        command.add_argument("source", metavar="PATH.py:FUNCTION", help=f"returns {returns}")
        return command

    analyze = add("analyze", "what plain JAX saves for the backward pass, by value; nothing is compiled", "")
    plan = add("plan", "what to save and what to recompute, to fit a budget", f"{_AFTER_PLAN}\n\n{_strategies()}")
    measure = add("measure", "plan, then run the plain and the planned step in turns", _AFTER_MEASURE)
    step = "(train_step, args[, options])"
    fit = add("fit", "what to recompute, to fit a whole training step in a budget", _AFTER_FIT, step)
    largest = add("max-batch", "the largest batches of a training step that fit", _AFTER_MAX_BATCH, step)
    tradeoff = add("tradeoff", "peak memory against overhead, the whole curve", "")
    compare = add("compare", "several strategies and budgets side by side", f"{_AFTER_COMPARE}\n\n{_strategies()}")

    for command in (plan, measure):
        command.add_argument("--budget", metavar="B", help=f"{_BUDGET}, or a share of the present peak (60%%)")
        command.add_argument("--strategy", metavar="NAME", default="auto", help="how to plan (default: auto)")
        command.add_argument(
            "--goal", choices=get_args(Goal), default="memory",
            help="the least recomputation within the budget (memory, the default), or the fastest step (time)",
        )  # fmt: skip
        for option, told in _LIMITS.items():
            command.add_argument(option, metavar="NAME,...", type=_texts, action="extend", help=told)
        command.add_argument("--search", action="store_true", help="show the schedules that were compiled as well")
    measure.add_argument(
        "--rounds", metavar="N", type=_count(1), default=15, help="how often both steps run (default: 15)"
    )
    measure.set_defaults(target=None)  # the attached device
    told = f"{_BUDGET}, or a share of what the step needs as it is (60%%)"
    fit.add_argument("--budget", metavar="B", help=told)
    largest.add_argument("--budget", metavar="B", help=f"{_BUDGET}, on one device")
    largest.add_argument(
        "--multiple-of", metavar="N", type=_count(1), default=8, help="what batches are multiples of (default: 8)"
    )
    compare.add_argument(
        "--budget", metavar="B,...", type=_texts, action="extend", default=[], help="budgets (default: 75%%,50%%,25%%)"
    )
    compare.add_argument(
        "--strategy",
        metavar="NAME,...",
        type=_texts,
        action="extend",
        default=[],
        help="strategies (default: auto); all of them: all",
    )
    tradeoff.add_argument("--points", metavar="N", type=_count(2), default=16, help="how many schedules (default: 16)")
    for command in (plan, fit, largest, tradeoff, compare):
        command.add_argument(
            "--target", metavar="T", help='the device to plan for; it need not be attached: "gpu:h100", "tpu:v5e:1x1"'
        )
    for command in (plan, measure, fit, largest, tradeoff, compare):
        command.add_argument(
            "--cost", choices=get_args(Cost), default="table",
            help="predict seconds by data sheets (table, the default) or by rates measured on this device, once",
        )  # fmt: skip
    for command in (plan, measure, tradeoff, compare):
        command.add_argument(
            "--existing", choices=get_args(Existing), default="replan",
            help="the function's own jax.checkpoint regions: plan them anew (replan, the default) or keep them",
        )  # fmt: skip
    for command in (plan, measure, compare):
        command.add_argument(
            "--no-verify", dest="verify", action="store_false", help="predict only; do not compile (quick, less sure)"
        )
    for command in (analyze, plan, measure, fit, largest, tradeoff, compare):
        command.add_argument("--json", metavar="FILE", help="write JSON; - for stdout, instead of the table")
        command.add_argument("--html", metavar="FILE", help="write a page that needs no network")
        command.add_argument("--plot", metavar="FILE", help="write a picture: .png, .svg, .pdf (needs matplotlib)")
    told = "the strategies: what each does, where it is from, when not to use it"
    commands.add_parser("strategies", help=told, description=f"{told[0].upper()}{told[1:]}.", allow_abbrev=False)
    return parser
