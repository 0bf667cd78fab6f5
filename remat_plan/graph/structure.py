"""Equations that hold regions, and where to find what knows how they run.

In: nothing. Out: the registry: a primitive's name to the ``Structure`` that it is.

A structure is one object with eight methods, each asked for by one stage, which finds it here. Nobody else asks what
primitive an equation is. Structures are made in ``remat_plan.structures``; others, of third parties, are added with
``register``.

Limits: what the evaluator and rewriting hand to a structure is theirs, so its type is not stated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Schedule


@dataclass(frozen=True, slots=True)
class Trips:
    """A loop: a region run ``count`` times, each time on what the last step carried.

    ``carried``: per carry, the value of the body that comes in, and the one that the next step is given. ``wanted``:
    per result, whether steps are given a cotangent of it.
    """

    count: int
    carry_bytes: int
    body: Graph
    carried: tuple[tuple[int, int], ...]
    wanted: tuple[bool, ...]

    @property
    def total(self) -> int:
        """Which result is the only one that steps are given a cotangent of; below zero where there is none, or more."""
        return self.wanted.index(True) if sum(self.wanted) == 1 else -1


def adds_up(trips: Trips) -> bool:
    """Whether all that a loop is differentiated for is a sum of scalars, one of each step, so that their gradients are
    one sum too.

    Not one whose steps have effects, or add up gradients over devices.
    """
    body = trips.body
    if not 0 <= trips.total < len(trips.carried) or any(op.effectful for op in body.ops):
        return False
    total, following = trips.carried[trips.total]
    aval = body.values[total].aval
    axes = {_compat.varying_axes(body.values[v].aval) for v in body.differentiated_inputs}
    return aval.shape == () and _compat.is_real(aval) and len(axes) == 1 and _adds_to(body, total, following)


def _adds_to(body: Graph, total: int, following: int) -> bool:
    """Whether one value is read only to make another one by adding something to it."""
    readers = [op for op in body.ops if total in op.operands]
    if len(readers) != 1 or readers[0].operands.count(total) != 1 or total in body.outputs:
        return False
    (op,) = readers
    if op.primitive in ("add", "add_any"):
        return op.outputs == (following,)
    (made,) = op.outputs if op.primitive == "convert_element_type" else (total,)  # of Python's numbers the type is weak
    alike = made != total and body.values[made].aval.dtype == body.values[total].aval.dtype
    return alike and _adds_to(body, made, following)


class RegionSolver(Protocol):
    """What planning makes schedules of regions by; ``rules`` are those of a region (``cost.builder.Rules``)."""

    def __call__(self, rules: Any) -> Sequence[Schedule]:
        """Schedules of a region, the one that runs it as it is first."""
        ...

    def moved(self, rules: Any, schedules: Sequence[Schedule]) -> Sequence[Schedule]:
        """Of a loop's step, what is made of its schedules by moving what they keep to the host."""
        ...


class Structure(Protocol):
    """What is asked of a structure: its name in tables, the primitives that are this structure, eight methods."""

    name: str
    primitives: tuple[str, ...]

    def is_open(self, op: Op) -> bool:
        """Whether an equation of this structure can be planned inside; otherwise it is opaque."""
        ...

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        """The regions inside an equation, in the order of the parts of a ``Choice``."""
        ...

    def run_counts(self, op: Op) -> Sequence[float]:
        """How often each of the regions runs."""
        ...

    def loop(self, graph: Graph, op: Op) -> Trips | None:
        """An equation as a loop, whose steps can be put into groups; None where it is none."""
        ...

    def choices(self, rules: Any, op: Op, solve: RegionSolver) -> Iterable[Choice]:
        """Planning: the ways to run an equation, but for leaving it as it is.

        ``solve`` makes schedules of a region; ``rules`` are those around.
        """
        ...

    def unit(self, rules: Any, op: Op, choice: Choice) -> Any:
        """The evaluator: an equation run by choice, a ``cost.passes.Unit``; ``rules`` as above."""
        ...

    def emit(self, graph: Graph, op: Op, choice: Choice, run: Any, late: bool) -> Callable[[Sequence[Any]], list[Any]]:
        """Rewriting: an equation run by choice, operands to outputs; ``run`` is a ``rewrite.emit.RegionRunner``.

        ``late``: it should take its memory when reached (``rewrite.late``).
        """
        ...

    def describe(self, graph: Graph, op: Op, choice: Choice) -> str:
        """Tables: how an equation is run, in words."""
        ...


_REGISTRY: dict[str, Structure] = {}


def register(structure: Structure) -> None:
    """Make a structure known under its primitives, in place of what they were; ``TypeError`` if it lacks something."""
    asked = [*Structure.__annotations__, *(name for name in vars(Structure) if not name.startswith("_"))]
    if missing := [name for name in asked if not hasattr(structure, name)]:
        raise TypeError(f"{type(structure).__name__} is no structure: it has no {', '.join(missing)}.")
    for name in structure.primitives:
        _REGISTRY[name] = structure


def registered_structures() -> tuple[Structure, ...]:
    """Return all structures that are known."""
    return tuple(_REGISTRY.values())


def structure_of(op: Op) -> Structure | None:
    """Return the structure that an equation is, if it is one and has regions that can be planned here.

    Mutable arrays are no values: what reads and writes those stays whole.
    """
    structure = _REGISTRY.get(op.primitive)
    if structure is None or not op.differentiated or not structure.is_open(op):
        return None
    return None if op.effectful and _compat.changes_arrays(op.eqn) else structure


def holds_structure(graph: Graph) -> bool:
    """Whether an equation of a region is a structure that can be planned."""
    return any(structure_of(op) is not None for op in graph.ops)


def is_loop(op: Op) -> bool:
    """Whether an equation is a structure that can be planned, with a region that runs several times."""
    structure = structure_of(op)
    return structure is not None and max(structure.run_counts(op), default=1.0) > 1
