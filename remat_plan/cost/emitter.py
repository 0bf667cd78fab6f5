"""A program that grows: numbered values, and the steps that write them.

In: steps. Out: ``Emitter``, which numbers what they write and knows which steps are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from remat_plan import _compat
from remat_plan.cost.facts import FactBook
from remat_plan.cost.layout import splits_rows
from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import Place, Program, Step, as_compiled, live_steps

Inner = tuple[tuple[int, ...], ...]
"""The dimensions that may be the innermost one and the next; of images in pieces, that of images and the one cut."""


class Asked(NamedTuple):
    """A step that was to be added behind so many others: what it reads, and the bytes of its results."""

    position: int
    step: Step
    reads: tuple[int, ...]
    out_bytes: tuple[int, ...]


class Emitter:
    """State of one lowering: values, steps, and the steps seen so far (for merging equal ones).

    A value is a buffer: a reshape of it has the same number. So its shape is what the equation that reads it says;
    ``made_by`` tells in which shape it was made, and that is to be compared before a reader looks at the maker's
    dimensions. ``readers`` counts the steps that read each value so far. ``constants`` are the values that depend on
    nothing; ``asked`` are the steps that were to make one, there already or not. ``inner`` are, of values whose layout
    on a TPU is not free, the rank and the choices of the two innermost dimensions. ``planned`` tells whether what
    follows is of a program with segments: gradients of max-pools differ there. ``counters`` are, of random bits that
    are made in a loop, bytes of what their elements are counted with, by shape. ``place`` is that of the steps that
    follow. ``ones`` are the values all of whose elements are known to be one, ``hosted`` stand for what is in the
    host's memory.
    """

    def __init__(self, facts: FactBook):
        self.steps: list[Step] = []
        self.sizes: list[int] = []
        self.storage: dict[int, int] = {}
        self.seen: dict[Any, tuple[int, ...]] = {}
        self.made_by: dict[int, Step] = {}
        self.readers: list[int] = []
        self.constants: set[int] = set()
        self.asked: list[Asked] = []
        self.inner: dict[int, tuple[int, Inner]] = {}
        self.facts = facts
        self.backend = facts.backend
        self.planned = False
        self.counters: dict[Any, int] = {}
        self.place: Place = ()
        self.ones: set[int] = set()
        self.hosted: set[int] = set()

    def program(
        self,
        inputs: Iterable[int],
        outputs: Sequence[int],
        carried: Mapping[int, int] | None = None,
        around_bytes: int = 0,
    ) -> Program:
        """The steps so far that outputs depend on, as a program; see there."""
        steps, given = live_steps(self.steps, outputs), frozenset(inputs)
        return as_compiled(
            Program(steps, self.sizes, given, tuple(outputs), self.storage, self.backend, carried or {}, around_bytes)
        )

    def new(self, aval: Any) -> int:
        return self.allocate(_compat.aval_bytes(aval))

    def argument(self, aval: Any) -> int:
        """A value that the caller owns, in the layout that the compiler gives it."""
        return self.allocate(self.facts.bytes(aval))

    def allocate(self, size: int) -> int:
        self.sizes.append(size)
        self.readers.append(0)
        return len(self.sizes) - 1

    def one(self) -> int:
        """A value of ones, in no memory."""
        self.ones.add(number := self.allocate(0))
        return number

    def barrier(self, eqn: Any, reads: list[int]) -> dict[int, int]:
        behind = {}
        for read in reads:
            self.readers[read] += 1
        for read in dict.fromkeys(reads):
            behind[read] = self.allocate(self.sizes[read])
            self.storage[behind[read]] = self.storage.get(read, read)
            if read in self.inner:
                self.inner[behind[read]] = self.inner[read]
        self.steps.append(Step(tuple(behind), Kind.BARRIER, "barrier", eqn, tuple(behind.values())))
        return behind

    def emit(self, key: int | None, step: Step, out_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Add a step, or return what an equal step wrote; ``key`` tells steps on the same values apart."""
        step.key = key
        if key is not None:
            if self.constants.issuperset(step.reads):
                self.asked.append(Asked(len(self.steps), step, step.reads, out_bytes))
            if (seen := self.seen.get((key, step.reads))) is not None:
                self.made_by[seen[0]].equations += 1
                return seen
        return self.append(step, out_bytes)

    def append(self, step: Step, out_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Add a step that is known to be none of those so far."""
        key, reads, readers = step.key, step.reads, self.readers
        for read in reads:
            readers[read] += 1
        first = len(self.sizes)
        self.sizes += out_bytes
        readers += [0] * len(out_bytes)
        step.writes = writes = tuple(range(first, first + len(out_bytes)))
        for write in writes:
            self.made_by[write] = step
        step.place = self.place
        self.steps.append(step)
        if key is not None:
            self.seen[key, reads] = writes
            if self.constants.issuperset(reads):
                self.constants.update(writes)
        return writes

    def without_fills(self, reads: Iterable[int], over: Sequence[int | None]) -> list[int]:
        """What a loop reads, without arrays of one literal: it makes them inside (``WhileLoopConstantSinking``).

        Those that it writes ``over`` are there before it.
        """
        made = ((v, self.made_by.get(v)) for v in reads)
        return [v for v, by in made if v in over or by is None or by.reads or by.primitive != "broadcast_in_dim"]

    def move(self, eqn: Any, name: str, reads: tuple[int, ...], key: int | None, size: int, library: int = 0) -> int:
        """Add a step that only moves data, such as a broadcast or a copy into another layout."""
        return self.emit(key, Step(reads, Kind.CHEAP, name, eqn, library=library, unary=True), (size,))[0]

    def copy(self, eqn: Any, read: int, shape: tuple[int, ...], order: Sequence[int], size: int) -> int:
        """Add a copy into another layout, of a value that is read in this shape.

        Copies that convolutions read are not told to split rows: the lines of an image that are read in strides stay
        in the cache. Charged like the others they put the overheads of a ResNet-50 off by 20 points, uncharged by 2.
        """
        step = Step((read,), Kind.CHEAP, "layout_copy", eqn, unary=True)
        step.splits_rows = eqn.primitive.name == "dot_general" and splits_rows(shape, range(len(shape)), order)
        return self.emit(self.facts.number(("layout_copy", shape, tuple(order))), step, (size,))[0]
