"""What was appended to a program once, ready to be appended again behind other values.

In: a ``Lowering``, and what appends to it. Out: ``Recording``.

Schedules that are judged one after another share most of their segments. What the backward pass of a segment appends
depends on what is behind its barrier and on constants alone, so it is lowered once and then repeated. A repetition
leaves the program as lowering would: constants that are there already are found, and later steps find what it
appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from remat_plan.cost.emitter import Asked
from remat_plan.cost.program import Lowering
from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import Step

Numbers = Sequence[int | None]


class _Entry(NamedTuple):
    """A step, the places of what it reads, and whether it is a constant, which may be there already.

    Values have places: first those that a recording is given, then those that its entries make, in order.
    """

    step: Step
    reads: tuple[int, ...]
    out_bytes: tuple[int, ...]
    carries: tuple[tuple[int, int], ...]
    is_constant: bool


class Recording:
    """What one stretch of lowering appended, and the values it was given and leaves.

    ``before`` are the numbers of steps, questions for constants and values that there were before. Raises
    ``LookupError`` where it reads a value that is neither given nor a constant.
    """

    def __init__(self, state: Lowering, given: Sequence[int], results: Numbers, before: tuple[int, int, int]):
        self._place_of = {number: place for place, number in enumerate(given)}
        self._count = len(given)
        self._entries: list[_Entry | int] = []
        self._counters, self._last_place = dict(state.counters), state.place
        n_steps, n_asked, self._first = before
        asked = iter([*state.asked[n_asked:], None])
        constant = next(asked)
        for position in range(n_steps, len(state.steps) + 1):
            while constant is not None and constant.position == position:
                self._note(state, constant, state.seen[constant.step.key, constant.reads], is_constant=True)
                constant = next(asked)
            if position < len(state.steps) and not state.constants.issuperset(state.steps[position].writes):
                step = state.steps[position]
                added = Asked(position, step, step.reads, tuple([state.sizes[w] for w in step.writes]))
                self._note(state, added, step.writes, is_constant=False)
        self._results = [None if number is None else self._place(state, number) for number in results]
        lowered = [e for e in self._entries if isinstance(e, _Entry) and not e.is_constant]
        counted = Counter([place for e in lowered for place in e.reads])
        mine = [(number, place) for number, place in self._place_of.items() if number not in state.constants]
        taken_off = [(place, state.readers[number] - counted[place]) for number, place in mine]
        self._taken_off = [(place, count) for place, count in taken_off if count]
        self._turned = [place for number, place in mine if number in state.turned]
        self._ones = [place for number, place in self._place_of.items() if number in state.ones]
        self._inner = [(place, state.inner[number]) for number, place in mine if number in state.inner]
        del self._place_of

    def _place(self, state: Lowering, number: int) -> int:
        """The place of a value; one that no step makes is made here."""
        if number not in self._place_of:
            if number < self._first:
                raise LookupError(number)
            self._entries.append(state.sizes[number])
            self._place_of[number] = self._count
            self._count += 1
        return self._place_of[number]

    def _note(self, state: Lowering, added: Asked, writes: Sequence[int], is_constant: bool) -> None:
        step = added.step
        reads = tuple([self._place(state, number) for number in added.reads])
        self._place_of.update(zip(writes, range(self._count, self._count + len(writes)), strict=True))
        carries = tuple([(self._place_of[over], self._place_of[write]) for over, write in step.carries])
        kept = step.behind(())  # as it is now: later steps may change it
        kept.equations = 1 if is_constant else step.equations  # each question for a constant is an entry
        self._entries.append(_Entry(kept, reads, added.out_bytes, carries, is_constant))
        self._count += len(writes)

    def repeat(self, state: Lowering, given: Sequence[int]) -> list[int | None]:
        """Append it to a program behind other values; return the numbers of its results."""
        numbers = list(given)
        for entry in self._entries:
            if isinstance(entry, int):
                numbers.append(state.allocate(entry))
                continue
            kept, places, out_bytes, carries, is_constant = entry
            state.place = kept.place
            reads = tuple([numbers[place] for place in places])
            if kept.kind == Kind.BARRIER:
                numbers += state.barrier(kept.eqn, list(reads)).values()
            elif is_constant and (seen := state.seen.get((kept.key, reads))) is not None:
                state.asked.append(Asked(len(state.steps), kept, reads, out_bytes))
                state.made_by[seen[0]].equations += 1
                numbers += seen
            elif is_constant:
                numbers += state.emit(kept.key, kept.behind(reads), out_bytes)
            else:
                step = kept.behind(reads)
                numbers += state.append(step, out_bytes)
                if carries:
                    step.carries = tuple([(numbers[over], numbers[write]) for over, write in carries])
        for place, count in self._taken_off:
            state.readers[numbers[place]] += count
        state.turned.update([numbers[place] for place in self._turned])
        state.inner.update([(numbers[place], inner) for place, inner in self._inner])
        state.ones.update([numbers[place] for place in self._ones])
        state.counters.update(self._counters)
        state.place = self._last_place
        return [None if place is None else numbers[place] for place in self._results]


class Recordings:
    """What was lowered so far, by what it depends on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Recording | None] = {}

    def append(self, state: Lowering, key: Hashable, given: Sequence[int], lower: Callable[[], Numbers]) -> Numbers:
        """Lower something into a program, or repeat what was lowered under the same key; return what it results in.

        It depends on the key and the sizes of what it is ``given``, which nothing has read so far.
        """
        first: dict[int, int] = {}
        pattern = tuple([first.setdefault(number, place) for place, number in enumerate(given)])
        inner: Any = tuple([state.inner.get(number) for number in first]) if state.inner else ()
        ones = tuple([number in state.ones for number in first]) if state.ones else ()
        whole = key, pattern, inner, ones, state.late
        if (known := self._known.get(whole)) is not None:
            return known.repeat(state, [*first])
        if whole in self._known:
            return lower()
        before, counters = (len(state.steps), len(state.asked), len(state.sizes)), state.counters
        state.counters = {}
        results = lower()
        try:
            self._known[whole] = Recording(state, [*first], results, before)
        except LookupError:  # it is not by itself: lowered each time
            self._known[whole] = None
        state.counters = counters | state.counters
        return results
