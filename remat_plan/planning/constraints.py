"""What a user wants kept, recomputed, never recomputed, never split, or moved to the host, by name.

In: arguments of the doors. Out: ``Constraints``; what the names stand for in a program, ``planning.limits`` finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from remat_plan.graph.action import OFFLOAD, offered_actions
from remat_plan.planning.names import name_list
from remat_plan.small.budget import parse_budget
from remat_plan.small.doors import flag
from remat_plan.small.wording import short


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a user asked for, by name; arguments of ``api.plan``.

    Attributes:
        must_save: ``checkpoint_name`` names of values that are never computed again.
        must_recompute: ``checkpoint_name`` names of values that are not kept for the backward pass.
        never_recompute: names of primitives that never run again; None for the collectives of the program, which keep
            all devices waiting for each other.
        never_split: ``checkpoint_name`` names of values, and names of primitives, that are never run in slices; True
            for all.
        may_offload: ``checkpoint_name`` names of values that may be kept in the host's memory; True for all.
        host_bytes: so much may be kept there; None for any number.
        actions: names of actions that a search may choose for a value, beside saving and offloading it; those that are
            offered, where nothing is said.
    """

    must_save: tuple[str, ...] = ()
    must_recompute: tuple[str, ...] = ()
    never_recompute: tuple[str, ...] | None = None
    never_split: tuple[str, ...] | Literal[True] = ()
    may_offload: tuple[str, ...] | Literal[True] = ()
    host_bytes: int | None = None
    actions: tuple[str, ...] = field(default_factory=offered_actions)

    @property
    def is_free(self) -> bool:
        """Whether nothing was asked for about what is kept and what runs again."""
        return not (self.must_save or self.must_recompute or self.never_recompute)

    @property
    def allowed_actions(self) -> tuple[str, ...]:
        """The names of all actions that a search may choose, beside saving."""
        return (*self.actions, OFFLOAD) if self.may_offload else self.actions

    @property
    def allowed(self) -> dict[str, Any]:
        """What limits of all regions are the same in."""
        host_bytes = math.inf if self.host_bytes is None else self.host_bytes
        return {"actions": self.allowed_actions, "host_bytes": host_bytes}

    def on_device(self) -> Constraints:
        """The same with nothing on the host."""
        return replace(self, may_offload=(), host_bytes=None)

    def with_host_of(self, step: Constraints, marks: int) -> Constraints:
        """The same with what a whole step may keep on the host, where nothing was said of this one of its marks."""
        if self.may_offload or not step.may_offload:
            return self
        share = None if step.host_bytes is None else step.host_bytes // marks
        return replace(self, may_offload=step.may_offload, host_bytes=share)

    def by_name(self) -> Constraints:
        """What holds for a strategy that was asked for by name, which does what it says: collectives run again too."""
        return replace(self.on_device(), never_recompute=self.never_recompute or (), actions=())


NO_CONSTRAINTS = Constraints(actions=())


def make_constraints(
    must_save: Any = (),
    must_recompute: Any = (),
    never_recompute: Any = None,
    never_split: Any = (),
    offload: bool = False,
    may_offload: Any = (),
    host_budget: int | str | None = None,
) -> Constraints:
    """Check what a user gave and return it as one value.

    Raises:
        TypeError: not a list of strings (of ``never_split``, nor True); ``offload`` is neither True nor False.
        ValueError: a name is to be kept and recomputed; a number of bytes for the host where nothing may go there.

    >>> make_constraints(["attention"], never_recompute=("psum",)).never_recompute
    ('psum',)
    """
    saved = name_list("must_save", must_save)
    again = name_list("must_recompute", must_recompute)
    never = None if never_recompute is None else name_list("never_recompute", never_recompute)
    if both := sorted(set(saved) & set(again)):
        raise ValueError(f"{both[0]!r} is in both must_save and must_recompute: remove it from one of them.")
    apart = never_split or () if isinstance(never_split, bool | None) else name_list("never_split", never_split)
    everything = flag("offload", offload, "; names of values go into may_offload=[...]")
    moved = name_list("may_offload", may_offload) or (True if everything else ())
    if host_budget is not None and not moved:
        raise ValueError(
            f"host_budget={host_budget!r} is for offload=True, or may_offload=[...]: nothing else goes there."
        )
    host_bytes = None if host_budget is None else _parse_host_budget(host_budget)
    return Constraints(saved, again, never, apart, moved, host_bytes)


def _parse_host_budget(host_budget: int | str) -> int:
    """Return the bytes of a budget for the host's memory."""
    try:
        size_bytes = parse_budget(host_budget, few=True).size_bytes
    except (TypeError, ValueError):  # what is wrong with it is told below, with an example of the host's
        size_bytes = None
    if size_bytes is None:
        raise ValueError(f"host_budget={short(host_budget)}: give bytes of the host's memory, such as '64GB'.")
    return size_bytes
