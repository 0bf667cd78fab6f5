"""Strategies as values: what a user may give as ``strategy=``.

In: a name, an object of this module, an explicit schedule. Out: ``Strategy`` and ``Settings``.

    "memory"                          by name
    Binomial(slots=8)                 a name with what it needs to know
    (Segment(...), ...)               an explicit schedule, such as ``plan.schedule``: taken as it is
    a name given to register_strategy a function from a ``Task`` to schedules
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from remat_plan.graph.schedule import Schedule, Segment
from remat_plan.graph.valid import check_schedule
from remat_plan.planning.names import name_list
from remat_plan.planning.strategies.records import (
    CHECKED,
    NO_SETTINGS,
    SEARCHED,
    Finder,
    Found,
    Settings,
    Strategy,
    Task,
)
from remat_plan.planning.strategies.registry import lookup, register
from remat_plan.small.doors import integer
from remat_plan.small.wording import short


@dataclass(frozen=True, slots=True)
class Binomial:
    """The fewest recomputed blocks, or steps of a scan, for a number of saved states (Griewank & Walther 2000).

    Attributes:
        slots: how many states may be saved at a time, 1 or more.

    Raises:
        ValueError: ``slots`` is not such a number.

    Example:
        >>> import remat_plan as rp
        >>> rp.Binomial(slots=8)
        Binomial(slots=8)
    """

    slots: int

    def __post_init__(self) -> None:
        integer("slots", self.slots, why=", the number of states to keep at a time")

    def resolve(self) -> tuple[Strategy, Settings]:
        """The strategy and its settings."""
        return lookup("binomial"), Settings(slots=self.slots)


@dataclass(frozen=True, slots=True)
class Collection:
    """Save exactly the values named with ``checkpoint_name``.

    Attributes:
        names: the names to save; None for all.

    Raises:
        TypeError: not a list of names.
    """

    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.names is not None:
            object.__setattr__(self, "names", name_list("names", self.names))

    def resolve(self) -> tuple[Strategy, Settings]:
        """The strategy and its settings."""
        return lookup("collection"), Settings(names=None if self.names is None else tuple(self.names))


@dataclass(frozen=True, slots=True)
class Mirror:
    """Limit how often named values are recomputed (Chen et al. 2016, Algorithm 2).

    Attributes:
        counts: for each name, how often its values may be recomputed; 0 saves them.

    Raises:
        TypeError, ValueError: not a mapping of names to counts.
    """

    counts: Mapping[str, int]

    def __post_init__(self) -> None:
        if not isinstance(self.counts, Mapping) or not all(isinstance(name, str) for name in self.counts):
            raise TypeError(
                f"counts={short(self.counts)}: give a mapping of names to numbers, such as {{'block': 0, 'half': 1}}."
            )
        if wrong := [c for c in self.counts.values() if isinstance(c, bool) or not isinstance(c, int) or c < 0]:
            raise ValueError(f"counts: {wrong[0]!r} is not a count; give integers of 0 (save) or more.")

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.counts.items())))

    def resolve(self) -> tuple[Strategy, Settings]:
        """The strategy and its settings."""
        return lookup("mirror"), Settings(counts=tuple(sorted(self.counts.items())))


# fmt: off
StrategyName = Literal[
    "auto", "chain", "memory", "budgeted", "log", "binomial", "speed", "collection", "mirror", "milp",
    "each_block", "dots", "dots_no_batch", "split", "nothing", "everything",
]
# fmt: on
"""The strategies that are there without ``register_strategy``, for editors to complete."""

StrategyLike = StrategyName | str | Binomial | Collection | Mirror | Schedule
"""What ``strategy=`` takes."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A schedule that somebody gave."""

    schedule: Schedule

    def __call__(self, task: Task) -> Found:
        try:
            check_schedule(task.graph, self.schedule)
        except ValueError as err:
            raise ValueError(
                f"strategy: this schedule does not fit this program, which has {len(task.graph.ops)} equations: {err}."
            ) from None
        return Found((self.schedule,))


def resolve_strategy(strategy: Any) -> tuple[Strategy, Settings]:
    """Return what a user gave as ``strategy=`` as a strategy with settings.

    Raises:
        TypeError: none of the things that it takes.
        ValueError: an unknown name.
    """
    if isinstance(strategy, str):
        return lookup(strategy), NO_SETTINGS
    if isinstance(strategy, Binomial | Collection | Mirror):
        return strategy.resolve()
    if isinstance(strategy, tuple) and strategy and all(isinstance(s, Segment) for s in strategy):
        own = Strategy("explicit", "given by hand", "the schedule that was given", "", CHECKED, find=_Fixed(strategy))
        return own, NO_SETTINGS
    if callable(strategy):
        raise TypeError(
            f"strategy={short(strategy)} is a function. Pass a policy of jax.checkpoint as policy= to "
            "rp.checkpoint or rp.remat; register a strategy of your own with rp.register_strategy and pass its "
            "name."
        )
    raise TypeError(
        f"strategy={short(strategy)}: give a name of rp.strategies(), rp.Binomial(slots=...), "
        "rp.Collection(names=...), rp.Mirror(counts=...), or a schedule such as plan.schedule."
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A user's function from a task to schedules, and the name that it was registered by."""

    name: str
    make: Callable[[Task], Any]

    def __call__(self, task: Task) -> Found:
        made, n = self.make(task), len(task.graph.ops)
        several = tuple(made) if isinstance(made, Iterable) else ()
        schedules = (several,) if several and isinstance(several[0], Segment) else several
        if not schedules or not all(map(_is_schedule, schedules)):
            raise TypeError(
                f"strategy={self.name!r} returned {short(made)} for a region of {n} equations. Its function has to "
                "return a schedule, which is a tuple of Segment, or a list of schedules."
            )
        for schedule in schedules:
            try:
                check_schedule(task.graph, tuple(schedule))
            except ValueError as err:
                raise ValueError(
                    f"strategy={self.name!r} returned a schedule that does not fit its region of {n} equations: {err}."
                ) from None
        return Found(tuple(map(tuple, schedules)))


def _is_schedule(made: Any) -> bool:
    return isinstance(made, tuple | list) and bool(made) and all(isinstance(s, Segment) for s in made)


def register_strategy(
    name: str,
    make: Callable[[Task], Any],
    *,
    source: str = "",
    summary: str = "",
    when_not_to_use: str = "",
) -> None:
    """Register a strategy of your own under a name, for ``strategy=name``.

    Args:
        name: a new name.
        make: returns, for a ``Task`` (a region ``graph``, its ``cuts``, the ``hardware``), a schedule of the region or
            a list of several: with a budget the fastest that fits is taken, without one that with the lowest peak. It
            is also called for the regions inside loops and branches; every step of a loop runs by the schedule of its
            body.
        source, summary, when_not_to_use: texts for the table of ``rp.strategies()``.

    Raises:
        ValueError: the name is taken.

    Example:
        >>> import remat_plan as rp
        >>> from remat_plan.graph.schedule import saving
        >>> rp.register_strategy("one_segment", lambda task: (saving(0, len(task.graph.ops)),))
        >>> "one_segment" in rp.strategies()
        True
    """
    law = Finder("laws", "each_step")
    register(Strategy(name, source, summary, when_not_to_use, SEARCHED, find=_Made(name, make), law=law))
