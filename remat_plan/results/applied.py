"""A function with a plan in it: ``Plan.apply``.

In: a function, its plan. Out: ``Applied``, called as the function is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from remat_plan.doors import door
from remat_plan.reuse import Emissions
from remat_plan.wrapper import Wrapper

if TYPE_CHECKING:
    from remat_plan.results.plan import Plan

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Applied(Wrapper[P, R]):
    """A function run as it was planned.

    Attributes:
        fn: the function.
        plan: its plan.
    """

    def __init__(self, fn: Callable[P, R], plan: Plan):
        super().__init__(fn)
        self.plan = plan
        self.emissions = Emissions(plan.schedule_of, plan.existing)

    @door
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.emissions(self.plan.trace(self.fn, args, kwargs))

    def made_of(self) -> tuple[Any, ...]:
        """The function and the plan."""
        return self.fn, self.plan

    def known_plans(self) -> tuple[Plan, ...]:
        """The plan."""
        return (self.plan,)
