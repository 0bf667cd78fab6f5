"""The records of schedules: segments, and the ways in which their equations are run.

In: nothing. Out: ``Segment``, ``Way``, ``Choice``, ``Part``: what a strategy returns, a plan stores, the evaluator
lowers and ``rewrite.emit`` runs.

    Segment   equations start .. end-1, and the way in which they are run:
      Plain     as JAX runs them
      Keep      under one ``jax.checkpoint`` that keeps some values, each by an action, and recomputes the others
      Around    under one ``jax.checkpoint`` that keeps nothing, around segments
      Split     slice by slice along one axis, as a region of its own with a loop in it
      Written   the whole program as its author wrote it
    Choice    how one structure (a loop, a branch) among the equations is run: schedules of the regions inside it

A schedule is a tuple of segments that cover a region. It nests, compares by value, hashes, and is plain data (stored by
``results.codec``). Stages ask a way to do its part with what they can do, so a further way is a class, made known by
``register_way``: see ``Way``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat_plan.graph.action import action_of


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` runs of an inner region that are alike; of a loop, steps that follow each other.

    ``groups``: of a loop, how many groups the steps are in, at each level from the outermost; each group is under
    ``jax.checkpoint``, so that one carry is kept for it. A count that does not divide leaves a shorter group.
    """

    count: int
    schedule: Schedule
    groups: tuple[int, ...] = ()

    @property
    def factors(self) -> tuple[int, ...]:
        """The groups at each level, then the most steps of an innermost one.

        >>> Part(10, (), (2, 2)).factors
        (2, 2, 3)
        """
        size = self.count
        for groups in self.groups:
            size = -(-size // groups)
        return (*self.groups, size)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a structure is run: its branches, in order, or stretches of a loop's steps in the order of the rows.

    ``slots``: of a loop, how many carries binomial checkpointing may keep; 0 where it is not used. ``gradient_first``:
    of a loop that adds up a scalar (``structure.adds_up``), whether the gradient of each step is made right behind it,
    so that nothing is kept of steps but the sum of their gradients.
    """

    parts: tuple[Part, ...]
    slots: int = 0
    gradient_first: bool = False

    @property
    def repeats(self) -> bool:
        """Whether whole steps run again, in groups or for want of slots."""
        return bool(self.slots) or any(part.groups for part in self.parts)


class Way:
    """How the equations of a segment are run. Each is a frozen dataclass that says what is not so of this one.

    ``checkpointed`` ones run again in the backward pass and keep values by ``actions`` (value, action). ``schedule``
    are segments inside, covering the same equations; ``sliced`` those of a region that is run in their place, slice by
    slice. ``choices`` (equation, choice) are structures that are not run as they are.
    """

    __slots__ = ()
    checkpointed: bool = False
    actions: tuple[tuple[int, str], ...] = ()
    schedule: Schedule = ()
    sliced: Schedule = ()
    choices: tuple[tuple[int, Choice], ...] = ()

    def forward(self, builder: Any, segment: Segment, inside: bool) -> None:
        """The evaluator (``cost.whole_step``): the forward pass; ``inside`` another segment nothing is kept."""
        builder.forward_pass(self.schedule, inside)

    def backward(self, builder: Any, segment: Segment, waits: tuple[int, ...]) -> None:
        """The evaluator: the backward pass; the cotangents of values that it ``waits`` for pass through."""
        builder.backward_pass(self.schedule)

    def emit(self, emitter: Any, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool) -> None:
        """Rewriting (``rewrite.emit``): run on values and add to them; ``again`` inside another segment."""
        emitter.run(self.schedule, env, again=again)

    def describe(self) -> str:
        """Tables: what is done, in words."""
        return "unchanged"

    def moved(self, by: int, numbers: Mapping[int, Any]) -> Way:
        """The same, so many equations earlier, with other numbers for values."""
        parts = {
            "actions": tuple((numbers[v], action) for v, action in self.actions),
            "schedule": tuple(child.moved(by, numbers) for child in self.schedule),
            "choices": tuple((index - by, choice) for index, choice in self.choices),
        }
        return replace(self, **{name: part for name, part in parts.items() if part})  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class Plain(Way):
    """As JAX runs them by itself, but for the structures that there is a choice for."""

    choices: tuple[tuple[int, Choice], ...] = ()

    def forward(self, builder: Any, segment: Segment, inside: bool) -> None:
        builder.equations(segment, linear=not inside)

    def backward(self, builder: Any, segment: Segment, waits: tuple[int, ...]) -> None:
        builder.reverse(segment)

    def emit(self, emitter: Any, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool) -> None:
        emitter.equations(segment, env, {}, again=again)


class Checkpointed(Way):
    """Under one ``jax.checkpoint``: what is not kept runs again behind a barrier, then the backward equations."""

    __slots__ = ()
    checkpointed = True

    def backward(self, builder: Any, segment: Segment, waits: tuple[int, ...]) -> None:
        builder.checkpointed(segment, waits, self.again)

    def emit(self, emitter: Any, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool) -> None:
        emitter.checkpointed(segment, waits, env, again, self.body)

    def again(self, builder: Any, segment: Segment) -> None:
        """The evaluator: both passes, behind the barrier."""
        builder.forward_pass(self.schedule)
        builder.backward_pass(self.schedule)

    def body(self, emitter: Any, segment: Segment, env: dict[int, Any], names: Mapping[int, Any]) -> None:
        """Rewriting: what the checkpoint is of; ``names`` are for the values that are kept."""
        emitter.run(self.schedule, env, again=True)


def _counted(actions: tuple[tuple[int, str], ...]) -> list[str]:
    """How many values are kept by which action, in words."""
    counts = Counter(action for _, action in actions).items()
    return [f"{action} {n} {'value' if n == 1 else 'values'}" for action, n in counts]


@dataclass(frozen=True, slots=True)
class Keep(Checkpointed):
    """Values without an action are recomputed."""

    actions: tuple[tuple[int, str], ...] = ()
    choices: tuple[tuple[int, Choice], ...] = ()

    def forward(self, builder: Any, segment: Segment, inside: bool) -> None:
        builder.equations(segment)
        if not inside:
            builder.store(segment)

    def again(self, builder: Any, segment: Segment) -> None:
        builder.equations(segment, linear=True)
        builder.reverse(segment)

    def body(self, emitter: Any, segment: Segment, env: dict[int, Any], names: Mapping[int, Any]) -> None:
        emitter.equations(segment, env, names, again=True)

    def describe(self) -> str:
        kept = _counted(self.actions)
        return f"{', '.join(kept)}, recompute the rest" if kept else "recompute all"


@dataclass(frozen=True, slots=True)
class Around(Checkpointed):
    """The segments inside keep values, when they run again; ``actions`` are for what goes in."""

    schedule: Schedule = ()
    actions: tuple[tuple[int, str], ...] = ()

    def forward(self, builder: Any, segment: Segment, inside: bool) -> None:
        builder.forward_inside(self.schedule)
        if not inside:
            builder.store(segment)

    def describe(self) -> str:
        return ", ".join(["checkpoint around", *_counted(self.actions)])


@dataclass(frozen=True, slots=True)
class Split(Way):
    """Slice by slice along one axis: that of a ``dimension`` of a ``value``, in so many ``slices``.

    The region that this makes of the segment (``graph.slices``) is run by the schedule ``sliced``, which says what is
    kept of a slice and of what is around the loop, and whether the gradient of a slice is made right behind it.
    """

    value: int
    dimension: int
    slices: int
    sliced: Schedule = ()

    @property
    def gradient_first(self) -> bool:
        """Whether nothing of a slice runs twice."""
        return any(choice.gradient_first for segment in self.sliced for _, choice in segment.choices)

    def forward(self, builder: Any, segment: Segment, inside: bool) -> None:
        builder.sliced_forward(segment, inside)

    def backward(self, builder: Any, segment: Segment, waits: tuple[int, ...]) -> None:
        builder.sliced_backward(segment)

    def emit(self, emitter: Any, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool) -> None:
        emitter.sliced(segment, env)

    def describe(self) -> str:
        return f"run in {self.slices} slices" + ", gradient in the forward pass" * self.gradient_first

    def moved(self, by: int, numbers: Mapping[int, Any]) -> Way:
        return replace(self, value=numbers[self.value])


@dataclass(frozen=True, slots=True)
class Written(Way):
    """The whole program as its author wrote it, with ``jax.checkpoint`` regions of its own in place."""


WAYS: dict[str, type[Way]] = {
    "plain": Plain,
    "keep": Keep,
    "around": Around,
    "split": Split,
    "written": Written,
}
"""The ways that there are, by the names that stored plans have for them."""


def register_way(name: str, way: type[Way]) -> None:
    """Make a way known under a name."""
    WAYS[name] = way


@dataclass(frozen=True, slots=True)
class Segment:
    """Equations ``start .. end-1`` of a region and the way in which they are run."""

    start: int
    end: int
    way: Way = Plain()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.start, self.end, self.way)))

    def __hash__(self) -> int:
        """Made once: a search looks schedules up millions of times."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies hash anew: hashes of strings differ from process to process."""
        return Segment, (self.start, self.end, self.way)

    @property
    def checkpointed(self) -> bool:
        """Whether the equations run again in the backward pass."""
        return self.way.checkpointed

    @property
    def actions(self) -> tuple[tuple[int, str], ...]:
        """(value, action) for the values that are kept."""
        return self.way.actions

    @property
    def hosted(self) -> frozenset[int]:
        """The values that are kept in the host's memory."""
        return frozenset([v for v, action in self.actions if action_of(action).on_host])

    @property
    def children(self) -> Schedule:
        """The segments inside, covering the same equations."""
        return self.way.schedule

    @property
    def choices(self) -> tuple[tuple[int, Choice], ...]:
        """(equation, choice) for the structures that are not run as they are."""
        return self.way.choices

    @property
    def saved(self) -> tuple[int, ...]:
        """The values that are not recomputed, in order."""
        return tuple([v for v, _ in self.actions])

    def choice(self, index: int) -> Choice | None:
        """How the structure at an equation is run; None: as it is."""
        choices = self.choices
        return next((choice for equation, choice in choices if equation == index), None) if choices else None

    def leaves(self) -> Iterator[Segment]:
        """Yield the segments without children, in order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def with_parts(self, **changed: Any) -> Segment:
        """The segment with other ``actions``, ``schedule`` or ``choices`` of its way."""
        return replace(self, way=replace(self.way, **changed))  # type: ignore[type-var]

    def moved(self, by: int, numbers: Mapping[int, Any]) -> Segment:
        """The segment so many equations earlier, with other numbers for values."""
        return Segment(self.start - by, self.end - by, self.way.moved(by, numbers))


Schedule = tuple[Segment, ...]
"""Segments that cover a region."""
