"""The command line: ``remat-plan COMMAND PATH.py:FUNCTION``.

In: arguments. Out: a report on stdout and in files; an exit code:

    0  fine
    1  the budget cannot be met (``compare``: by no strategy at no budget)
    2  bad input: a wrong option, a missing file, an error in the user's own code
    3  remat_plan or the compiler failed; only then there is a traceback
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

import remat_plan as rp
from remat_plan.cli.errors import InputError, own_frames, user_error
from remat_plan.cli.load import LOSS, STEP, STEPS, Kind, Problem, load
from remat_plan.cli.output import Outputs
from remat_plan.cli.parser import parse
from remat_plan.clock.steps import with_values
from remat_plan.graph.call import NoLoss
from remat_plan.planning.constraints import make_constraints
from remat_plan.report.plans import summary_line
from remat_plan.report.text import show
from remat_plan.results.curves import Comparison
from remat_plan.results.shown import Shown
from remat_plan.results.steps import LargestSizes
from remat_plan.small.budget import BudgetError, parse_budget
from remat_plan.small.wording import name_of

COMPARED_BUDGETS = ("75%", "50%", "25%")
_MOVES = "offload", "may_offload", "host_budget"
_MOVES_TYPED = {"host_budget": "--host-budget", "offload=True": "--offload", "may_offload=[...]": "--may-offload"}
"""How errors name these arguments, and what the user typed."""

Make = Callable[..., Problem]
"""Calls the user's FUNCTION, of ``max-batch`` with a number of examples."""


class Exit(enum.IntEnum):
    """Exit codes; see the module docstring."""

    FINE = 0
    OVER_BUDGET = 1
    BAD_INPUT = 2
    FAILED = 3
    STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the module docstring."""
    options = parse(arguments)
    filtering = jax.config.jax_traceback_filtering
    try:
        jax.config.update("jax_traceback_filtering", "off")  # of a failure all is shown
        return _run(options)
    except BudgetError as error:
        print(f"remat-plan: {error}", file=sys.stderr)
        return Exit.OVER_BUDGET
    except InputError as error:
        print(f"remat-plan: error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FINE
    except KeyboardInterrupt:  # the user stopped it: no traceback
        print("remat-plan: stopped", file=sys.stderr)
        return Exit.STOPPED
    except Exception:  # a fault of this library: shown whole
        traceback.print_exc()
        print(
            "remat-plan: this is a failure of remat_plan or of the compiler, not of your input. Please report it, "
            "with the lines above.",
            file=sys.stderr,
        )
        return Exit.FAILED
    finally:
        jax.config.update("jax_traceback_filtering", filtering)


def _run(options: argparse.Namespace) -> int:
    if options.command == "strategies":
        print(rp.strategies())
        return Exit.FINE
    outputs = Outputs(options.json, options.html, options.plot)
    outputs.check()
    _check_budgets(options)
    with contextlib.redirect_stdout(sys.stderr if options.json == "-" else sys.stdout):  # the user's file may print
        kind = _COMMANDS[options.command][1]
        make = load(options.source, kind)
        report = _guarded(make(*([options.multiple_of] if kind.inputs else [])), options, make)
    outputs.write(report, f"remat-plan {options.command} {options.source}")
    sys.stdout.flush()  # a reader that has gone is noticed here, not at exit
    none_fits = isinstance(report, LargestSizes) and not report.largest
    if isinstance(report, Comparison):
        none_fits = not any(row.plan for row in report.rows)
    return Exit.OVER_BUDGET if none_fits else Exit.FINE


def _check_budgets(options: argparse.Namespace) -> None:
    """Refuse a budget that is none before the user's file is imported, which may take long."""
    budget, command = getattr(options, "budget", None), options.command
    examples = {"fit": "60% (of the step as written), 24GB", "largest": "24GB", "max-batch": "24GB"}
    if command in ("plan", "measure") and options.strategy == "auto" and options.goal != "time":
        examples[command] = "60% (of the current peak), 8GiB"
    if budget is None and command in examples:
        raise InputError(f"{command} needs a budget.", f"Give --budget {examples[command]}, or device.")
    for text in budget if isinstance(budget, list) else [budget]:
        try:
            if text is not None:
                parse_budget(text)
        except ValueError as error:
            raise InputError(f"--{error}") from None
    if getattr(options, "host_budget", None) is not None:
        try:
            make_constraints(**_asked(options, *_MOVES))
        except ValueError as error:
            text = str(error)
            for name, typed in _MOVES_TYPED.items():
                text = text.replace(name, typed)
            raise InputError(text) from None


def _guarded(problem: Problem, options: argparse.Namespace, make: Make) -> Shown:
    """Run a command; ``InputError`` tells errors in the user's function, or in what was asked, from failures here."""
    command, kind = _COMMANDS[options.command]
    try:
        return command(problem, options, make)
    except (BudgetError, InputError):
        raise
    except NoLoss as error:
        raise InputError(str(error), f"For a whole training step use `remat-plan fit {options.source}`.") from error
    except Exception as error:
        if own_frames(error):
            name = name_of(problem.fn)
            advice = f"The {kind.what} must run under jax.make_jaxpr({name})(*args); fix that first."
            raise user_error(error, f"tracing {name}", advice) from error
        if not isinstance(error, (TypeError, ValueError, ImportError)):
            raise
        raise InputError(str(error), " ".join(getattr(error, "__notes__", ()))) from error  # our words of an argument


def _asked(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options of the command line that are arguments of the same names."""
    return {name: getattr(options, name) for name in names}


def _analyze(problem: Problem, options: argparse.Namespace, _: Make) -> Shown:
    return rp.analyze(problem.fn, *problem.args, **problem.options)


def _plan(problem: Problem, options: argparse.Namespace, _: Make) -> rp.Plan:
    names = "budget strategy must_save must_recompute never_recompute verify target cost existing goal"
    asked = _asked(options, *names.split(), *_MOVES)
    asked["never_split"] = options.never_split == ["all"] or options.never_split
    plan = rp.plan(problem.fn, *problem.args, **asked, **problem.options)
    if options.search:
        show(plan.search)
        print()
    return plan


def _measure(problem: Problem, options: argparse.Namespace, make: Make) -> Shown:
    plan = _plan(problem, options, make)
    print(f"remat-plan: {summary_line(plan)}", file=sys.stderr)
    kwargs = with_values(problem.options["kwargs"])
    return plan.measure(*map(with_values, problem.args), kwargs=kwargs, rounds=options.rounds)


def _tradeoff(problem: Problem, options: argparse.Namespace, _: Make) -> Shown:
    asked = _asked(options, "target", "cost", "existing", "points", *_MOVES)
    return rp.tradeoff(problem.fn, *problem.args, **asked, **problem.options)


def _fit(problem: Problem, options: argparse.Namespace, _: Make) -> Shown:
    asked = _asked(options, "budget", "target", "cost", *_MOVES)
    return rp.fit(problem.fn, *problem.args, **asked, **problem.options).report


def _largest(problem: Problem, options: argparse.Namespace, make: Make) -> Shown:
    asked = _asked(options, "budget", "dimension", "multiple_of", "target", "cost", *_MOVES)
    return rp.largest(problem.fn, lambda size: make(size).args, **asked, **problem.options)


def _compare(problem: Problem, options: argparse.Namespace, _: Make) -> Shown:
    names = [row.name for row in rp.strategies()] if options.strategy == ["all"] else options.strategy
    several = {"budgets": options.budget or COMPARED_BUDGETS, "strategies": names or ["auto"]}
    asked = _asked(options, "verify", "target", "cost", "existing", *_MOVES)
    return rp.compare(problem.fn, *problem.args, **several, **asked, **problem.options)


_COMMANDS: dict[str, tuple[Callable[[Problem, Any, Make], Shown], Kind]] = {
    "analyze": (_analyze, LOSS),
    "plan": (_plan, LOSS),
    "measure": (_measure, LOSS),
    "fit": (_fit, STEP),
    "largest": (_largest, STEPS),
    "max-batch": (_largest, STEPS),
    "tradeoff": (_tradeoff, LOSS),
    "compare": (_compare, LOSS),
}
