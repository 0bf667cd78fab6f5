"""What a strategy is, what it is given, what it returns.

In: nothing. Out: ``Strategy``, ``Settings``, ``Task``, ``Found``: frozen records used by every module of this folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Choice, Schedule
from remat_plan.planning.cuts import Cuts

MILP_MOST_OPS = 600
"""The most equations that ``milp`` takes."""

NEEDED, SEARCHED, CHECKED = "needed", "searched", "checked"
"""What a strategy does with a budget: it cannot do without; it has schedules to choose from and without a budget takes
the one with the least peak; it has one schedule, which is checked against the budget."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user told a strategy beside the budget; None where nothing was said.

    Attributes:
        names: for ``collection``, the ``checkpoint_name`` names to keep.
        counts: for ``mirror``, (name, how often values of that name are computed again at most).
        slots: for ``binomial``, how many states may be kept at a time.
    """

    names: tuple[str, ...] | None = None
    counts: tuple[tuple[str, int], ...] | None = None
    slots: int | None = None


NO_SETTINGS = Settings()


@dataclass(frozen=True, slots=True)
class Task:
    """One program to make schedules for.

    Attributes:
        graph, cuts: the program and its blocks; ``cuts.limits`` are the user's constraints.
        hardware: what equations cost.
        settings: of the strategy.
        inner: whether this is a region inside a loop or a branch of the program.
        spread: whether its arrays may lie on several devices along axes that their types do not show.
    """

    graph: Graph
    cuts: Cuts
    hardware: Hardware
    settings: Settings = NO_SETTINGS
    inner: bool = False
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a strategy found: one or more schedules, the preferred one first, and what to say about them."""

    schedules: tuple[Schedule, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finder:
    """A function of this folder, loaded when it is first called: ``import remat_plan`` stays quick.

    Attributes:
        module: its module in this folder.
        function: its name; from ``Task`` to ``Found``, or from ``Loop`` to ``Choice``s.
    """

    module: str
    function: str

    def __call__(self, argument: Any) -> Any:
        """Call it."""
        module = importlib.import_module(f"{__package__}.{self.module}")
        return getattr(module, self.function)(argument)


CHAIN, BY_RULE, MOVES, AS_WRITTEN = "chain", "by rule", "moves", "as written"
"""Where the schedules of a search come from: dynamic programming; uniform policies; a local search in small programs;
the user's own ``jax.checkpoint`` regions."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table of strategies.

    Attributes:
        name: as given to ``rp.plan(..., strategy=name)``.
        source: paper and section, or who writes it so.
        summary: what it does, in one line.
        when_not_to_use: in a few words.
        budget: ``"needed"``, ``"searched"`` (fewest recomputed seconds that fits; without a budget the least peak) or
            ``"checked"`` (one schedule).
        settings: the class of objects that say more than its name, such as ``rp.Binomial``; or ``""``.
        find: makes its schedules; None for a search.
        law: what it does with a loop; None: it leaves structures as they are.
        layer: makes its schedules of the body of a loop that is a layer; None: as of any other region.
        sources: of a search, where its schedules come from.
    """

    name: str
    source: str
    summary: str
    when_not_to_use: str
    budget: str
    settings: str = ""
    find: Callable[[Task], Found] | None = None
    law: Callable[[Any], Iterable[Choice]] | None = None
    layer: Callable[[Task], Found] | None = None
    sources: tuple[str, ...] = ()
