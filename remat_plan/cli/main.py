"""The command line: ``remat-plan analyze|plan|tradeoff|compare PATH.py:FUNCTION``.

In: arguments. Out: a report on stdout and in files; an exit code:

    0  fine
    1  the budget cannot be met (``compare``: by no strategy at no budget)
    2  bad input: a wrong option, a missing file, an error in the user's own code
    3  remat_plan or the compiler failed; only then there is a traceback
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import remat_plan as rp
from remat_plan.cli.errors import InputError, own_frames, user_error
from remat_plan.cli.load import Problem, load
from remat_plan.cli.output import Outputs, Report
from remat_plan.cli.parser import make_parser
from remat_plan.results.comparison import Comparison
from remat_plan.units import BudgetError, parse_budget

FINE, OVER_BUDGET, BAD_INPUT, FAILED = 0, 1, 2, 3
COMPARED_BUDGETS = ("75%", "50%", "25%")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the module docstring.

    Args:
        arguments: what stands after ``remat-plan``; by default those of this process.
    """
    options = make_parser().parse_args(arguments)
    try:
        return _run(options)
    except BudgetError as error:
        print(f"remat-plan: {error}", file=sys.stderr)
        return OVER_BUDGET
    except InputError as error:
        print(f"remat-plan: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt:
        print("remat-plan: stopped", file=sys.stderr)
        return 130
    except Exception:
        traceback.print_exc()
        print(
            "remat-plan: this is a failure of remat_plan or of the compiler, not of your input. Please report it, "
            "with the lines above.",
            file=sys.stderr,
        )
        return FAILED


def _run(options: argparse.Namespace) -> int:
    outputs = Outputs(options.json, options.html, options.plot)
    outputs.check()
    _check_budgets(options)
    with contextlib.redirect_stdout(sys.stderr if options.json == "-" else sys.stdout):  # the user's file may print
        problem = load(options.source)
        report = _guarded(_COMMANDS[options.command], problem, options)
    outputs.write(report, f"remat-plan {options.command} {options.source}")
    sys.stdout.flush()  # a reader that has gone is noticed here, not at exit
    none_fits = isinstance(report, Comparison) and not any(row.plan for row in report.rows)
    return OVER_BUDGET if none_fits else FINE


def _check_budgets(options: argparse.Namespace) -> None:
    """Refuse a budget that is none before the user's file is imported, which may take long.

    Raises:
        InputError: with the text of the parser of budgets.
    """
    if options.command == "plan" and options.budget is None and options.strategy == "auto":
        raise InputError("plan needs a budget.", "Say --budget 60% (of the present peak), 8GiB, or device.")
    budget = getattr(options, "budget", None)
    for text in budget if isinstance(budget, list) else [budget]:
        try:
            if text is not None:
                parse_budget(text)
        except ValueError as error:
            raise InputError(f"--{error}") from None


def _guarded(command: Callable[..., Report], problem: Problem, options: argparse.Namespace) -> Report:
    """Run a command; tell errors in the user's loss function from errors in what was asked.

    Raises:
        InputError: for both. BudgetError. Other exceptions: failures of this library.
    """
    try:
        return command(problem, options)
    except BudgetError:
        raise
    except (TypeError, ValueError, ImportError) as error:
        if not own_frames(error):  # remat_plan's own words about an argument
            raise InputError(str(error)) from error
        raise _loss_error(error, problem) from error
    except Exception as error:
        if not own_frames(error):
            raise
        raise _loss_error(error, problem) from error


def _loss_error(error: Exception, problem: Problem) -> InputError:
    name = getattr(problem.loss_fn, "__name__", type(problem.loss_fn).__name__)
    advice = "The loss function must run under jax.make_jaxpr(loss_fn)(*args); mend it there first."
    return user_error(error, f"tracing {name}", advice)


def _analyze(problem: Problem, options: argparse.Namespace) -> Report:
    return rp.analyze(problem.loss_fn, *problem.args, **problem.options.as_arguments())


def _plan(problem: Problem, options: argparse.Namespace) -> Report:
    return rp.plan(
        problem.loss_fn,
        *problem.args,
        budget=options.budget,
        strategy=options.strategy,
        verify=options.verify,
        target=options.target,
        **problem.options.as_arguments(),
    )


def _tradeoff(problem: Problem, options: argparse.Namespace) -> Report:
    return rp.tradeoff(
        problem.loss_fn,
        *problem.args,
        target=options.target,
        points=options.points,
        **problem.options.as_arguments(),
    )


def _compare(problem: Problem, options: argparse.Namespace) -> Report:
    names = [row.name for row in rp.strategies()] if options.strategy == ["all"] else options.strategy
    return rp.compare(
        problem.loss_fn,
        *problem.args,
        budgets=options.budget or COMPARED_BUDGETS,
        strategies=names or ["auto"],
        verify=options.verify,
        target=options.target,
        **problem.options.as_arguments(),
    )


_COMMANDS: dict[str, Callable[[Problem, Any], Report]] = {
    "analyze": _analyze,
    "plan": _plan,
    "tradeoff": _tradeoff,
    "compare": _compare,
}
