"""A program that is run inside a step, as a search for the whole step sees it: its schedules by levels of bytes.

In: a ``Judge``, ``Candidates`` and a ``Request`` of each program. Out: for a level its fastest schedule; of choices (a
schedule for each program) their level, price, FLOPs and overhead.

The step may be a training step with programs that are marked in it, or the gradient step of one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_plan.graph.schedule import Schedule, is_written
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import SAME_PEAK, find, towards
from remat_plan.search.judge import Judge
from remat_plan.verify.compile import CompiledMemory

_LEAST_RATE = 1e-3
"""A predicted byte is taken to come out at no less; a program that is tiny may need nothing."""

Choice = tuple[Schedule, ...]
"""A schedule for each mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked program, what it costs, where its schedules come from."""

    judge: Judge
    candidates: Candidates
    request: Request

    def seconds(self, schedule: Schedule) -> float:
        """Seconds of its gradient step, by the evaluator; as written, those that overhead is set against."""
        if is_written(schedule) and not self.judge.program.has_own_remat:
            return self.judge.plain_seconds
        return self.judge.figures(self.known(schedule)).seconds

    def flops(self, schedule: Schedule) -> float:
        """FLOPs of its gradient step."""
        return self.judge.figures(self.known(schedule)).flops

    def host_bytes(self, schedule: Schedule) -> int:
        """What it keeps on the host."""
        return self.judge.figures(self.known(schedule)).host_bytes

    def price(self, schedule: Schedule) -> float:
        """What its schedules are compared by; see ``Judge.price``."""
        return self.judge.price(self.known(schedule))

    def known(self, schedule: Schedule) -> Schedule:
        """The schedule that the evaluator takes for one: as written is the plain one where nothing else is written."""
        program = self.judge.program
        return program.plain if is_written(schedule) and not program.has_own_remat else schedule

    @property
    def argument_bytes(self) -> int:
        """Bytes of its arguments, which are arguments or values of the step."""
        return self.judge.timeline(self.judge.program.plain).argument_bytes

    def above_arguments(self, schedule: Schedule) -> int:
        """What its gradient step needs beside its arguments at its peak, by the evaluator."""
        return self.judge.predicted_bytes(self.known(schedule)) - self.argument_bytes

    def fastest(self, level_bytes: int) -> Schedule:
        """Its fastest schedule that is predicted to stay within a level, or the one that needs least.

        Of a strategy that was asked for by name, one of its schedules.
        """
        limit = level_bytes + self.argument_bytes
        plain = self.judge.program.plain
        searches = self.candidates.named(self.request) is None
        if searches and self.candidates.may_stay_plain(self.request) and self.judge.predicted_bytes(plain) <= limit:
            return plain
        return find(self.judge, self.candidates, limit, self.request)

    @property
    def is_loss(self) -> bool:
        """Whether it returns scalars only, so that all of a forward pass may be in it."""
        program = self.judge.program
        return program.is_loss or all(struct.shape == () for struct in program.cotangents)

    def whole(self) -> Schedule:
        """One segment around all of it, as a person wraps a layer: its own gradient step needs as much as without, but
        between the passes of the step nothing is kept. Of a loss, which gains nothing by that, its least.
        """
        return (None if self.is_loss else self.candidates.whole(self.request)) or self.fastest(0)

    def on_device(self) -> Mark:
        """The same with nothing on the host."""
        return replace(self, request=replace(self.request, constraints=self.request.constraints.on_device()))

    def uniform(self) -> tuple[Schedule, Schedule]:
        """Of its schedules by one rule for blocks the one with the least predicted peak, and the least of those with
        another end of the program left as it is: the compiler may need less where the last block runs again. Of those
        that are predicted alike it is the one that recomputes most: where the peak is elsewhere, all are.

        Where there is none, the same again, or the one that is predicted to need least of all.
        """
        known = self.candidates.uniform(self.request) or (self.fastest(0),)
        least = self._saving_least(known)
        return least, self._saving_least([s for s in known if s[-1].start != least[-1].start] or [least])

    def _saving_least(self, schedules: Sequence[Schedule]) -> Schedule:
        most = (1 + SAME_PEAK) * min(map(self.judge.predicted_bytes, schedules))
        return max((s for s in schedules if self.judge.predicted_bytes(s) <= most), key=self.judge.price)

    def beside(self) -> dict[Schedule, bool]:
        """The uniform schedules by predicted peak, and those that keep named values in loops; which of them are these.

        They are known whatever the level is, and predictions are off in another way there than for what the search is
        made of.
        """
        known = dict.fromkeys(self.candidates.by_names(self.request, self.judge.cost), True)
        known |= dict.fromkeys(self.candidates.uniform(self.request), False)
        return {s: known[s] for s in sorted(filter(self.judge.fits_host, known), key=self.judge.cost)}

    def towards(self, low: Schedule, high: Schedule, level_bytes: int) -> Schedule:
        """The fastest schedule on the way from one to another that is predicted to be within a level, or the first.

        Those of a strategy that was asked for by name have none between them.
        """
        if self.candidates.named(self.request) is not None:
            return low
        return towards(self.judge, low, high, level_bytes + self.argument_bytes)


def level_bytes(marks: Sequence[Mark], choice: Choice) -> int:
    """The level of a choice: of the mark that needs most."""
    return max(mark.above_arguments(s) for mark, s in zip(marks, choice, strict=True))


def rate(marks: Sequence[Mark], choice: Choice, above_bytes: int) -> float:
    """Compiled bytes above what is held that a predicted byte of a choice came out at."""
    return max(above_bytes / max(level_bytes(marks, choice), 1), _LEAST_RATE)


def flops(marks: Sequence[Mark], choice: Choice) -> float:
    """FLOPs of the gradient steps of all marks."""
    return sum(mark.flops(s) for mark, s in zip(marks, choice, strict=True))


def host_bytes(marks: Sequence[Mark], choice: Choice) -> int:
    """What all marks keep on the host."""
    return sum(mark.host_bytes(s) for mark, s in zip(marks, choice, strict=True))


def price(marks: Sequence[Mark], choice: Choice) -> float:
    """What choices that fit are compared by; see ``Judge.price``."""
    return sum(mark.price(s) for mark, s in zip(marks, choice, strict=True))


def overhead(marks: Sequence[Mark], choice: Choice) -> float:
    """Recomputed seconds over plain seconds of all marks, by the evaluator."""
    plain = sum(mark.judge.plain_seconds for mark in marks)
    made = sum(mark.seconds(s) for mark, s in zip(marks, choice, strict=True))
    return made / plain - 1.0 if plain else 0.0


def held_bytes(memory: CompiledMemory) -> int:
    """What a compiled step holds from its beginning to its end: arguments, and results that are not in their place."""
    return memory.argument_bytes + memory.output_bytes - memory.alias_bytes
