"""Which buffers the kernels of a program read and write, and whose memory they are.

In: a ``Program``, its kernels in the order in which they run. Out: ``Buffers``.

What is updated in place lives in the buffer of what it updates, and what is behind a barrier in that of what is before
it. Arguments and outputs are the caller's, and so is what is written over by an output. Temporaries that fit use the
memory of outputs that are not written yet.

Limits: no fragmentation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import LOOPS, Kind
from remat_plan.cost.steps import SCATTERS, Program, Step


class Buffers:
    """The buffers of a program's kernels.

    Attributes:
        reads, writes: by kernel, the buffers that it reads, and those that it begins.
        last: by buffer, the last kernel that reads it.
        outputs: the buffers that are handed out.
        owned: those that are no temporaries: of arguments and outputs, and what lives in their memory.
        rows: by kernel, the reductions of rows that it makes on its way.
    """

    def __init__(self, program: Program, kernels: Sequence[Kernel]):
        self._kernels, self._sizes, self._writes_over = kernels, program.sizes, program.backend.writes_over
        self._home = home = _homes(program, kernels)
        find_rows = program.backend.only("rows")
        self.rows: Mapping[int, Sequence[int]] = find_rows(program, kernels) if find_rows else {}
        self.reads = [
            tuple(dict.fromkeys([home.get(v, v) for v in kernel.reads])) if home else kernel.reads for kernel in kernels
        ]
        self.writes = [tuple([w for w in kernel.step.writes if w not in home]) for kernel in kernels]
        self.last = {buffer: position for position, read in enumerate(self.reads) for buffer in read}
        self._kept = self._kept_apart()
        carried = {home.get(o, o): home.get(i, i) for o, i in program.carried.items()}
        self.outputs = {home.get(v, v) for v in program.outputs} - carried.keys()
        self.owned = self.outputs | program.inputs
        self._write_into_outputs()
        if program.backend.reuses_outputs:
            self.owned |= _hosted(self.writes, self.last, self._sizes, self.outputs - program.inputs, self.owned)
        for late in self._read_too_late(carried):
            self.last[late] = len(kernels)
            del carried[late]
        self.owned |= carried.keys()

    def reused_bytes(self, position: int, new: Sequence[int], dying: Sequence[int]) -> int:
        """Bytes of the ``new`` temporaries of a kernel that are written over buffers which it is the last to read."""
        sizes, carries = self._sizes, self._kernels[position].step.carries
        if carries:
            return sum(sizes[w] for b, w in carries if self._home.get(b, b) in dying and w in new)
        into = sizes[new[0]] if new and self._writes_over else 0
        return into if into and any(sizes[b] == into and b not in self._kept[position] for b in dying) else 0

    def _kept_apart(self) -> list[frozenset[int]]:
        """By kernel, the buffers that its result is not written over.

        Loops and updates share no memory with others by elements: what enters or leaves a loop, and what is updated in
        place, as by a scatter, are values of one buffer already, which ``HeapSimulator`` does not share with operands.
        """
        home, reads = self._home, self.reads
        kept = [frozenset([home.get(v, v) for v in k.keeps]) if home else k.keeps for k in self._kernels]
        state: set[int] = set()
        for position, kernel in enumerate(self._kernels):
            if kernel.step.primitive in LOOPS:
                state.update(reads[position], kernel.step.writes)
            elif _is_update(kernel.step):
                state.update([home.get(v, v) for v in (kernel.step.reads[0], *kernel.step.writes)])
        for position, kernel in enumerate(self._kernels if state else ()):
            made = kernel.step.writes
            if any(home.get(w, w) in state for w in made) and not _is_update(kernel.step):
                kept[position] = frozenset(reads[position])
            else:
                kept[position] |= state.intersection(reads[position])
        for position in self.rows:  # an element of the result needs all of its row
            kept[position] = kept[position].union(reads[position])
        return kept

    def _read_too_late(self, carried: Mapping[int, int]) -> list[int]:
        """Return the carries that are written while the ones before are still read: each needs a buffer of its own."""
        found = []
        for position, kernel in enumerate(self._kernels):
            if kernel.step.kind == Kind.BARRIER:
                continue
            for value in kernel.step.writes:
                before = carried.get(value)
                read = -1 if before is None else self.last.get(before, -1)
                passed_on = (before, value) in kernel.step.carries
                if read > position or (read == position and before in self._kept[position] and not passed_on):
                    found.append(value)
        return found

    def _write_into_outputs(self) -> None:
        """Add to ``owned`` the buffers that an output is written over: they live in the output's own memory."""
        sizes, last, owned = self._sizes, self.last, self.owned
        for position in range(len(self._kernels) - 1, -1, -1):
            carries, writes = self._kernels[position].step.carries, self.writes[position]
            for buffer, value in carries:
                if value in owned and last.get(buffer) == position:
                    owned.add(buffer)
            if carries or not writes or writes[0] not in owned:
                continue
            for buffer in self.reads[position]:
                dies = last[buffer] == position and buffer not in owned
                if dies and sizes[buffer] == sizes[writes[0]] and buffer not in self._kept[position]:
                    owned.add(buffer)
                    break


def _homes(program: Program, kernels: Sequence[Kernel]) -> dict[int, int]:
    """By value, the buffer that it lives in where that is another's: behind a barrier, and what is updated in place."""
    storage, home = program.storage, dict(program.storage)
    last = {storage.get(v, v): position for position, kernel in enumerate(kernels) for v in kernel.reads}
    kept = {storage.get(v, v) for v in (*program.inputs, *program.outputs)}
    updated: dict[int, int] = {}
    for position, kernel in enumerate(kernels):
        step = kernel.step
        if not _is_update(step):
            continue
        before = storage.get(step.reads[0], step.reads[0])
        if last[before] == position and before not in kept and program.sizes[before] == program.sizes[step.writes[0]]:
            updated[step.writes[0]] = updated.get(before, before)
    if updated:
        home.update({value: updated.get(buffer, buffer) for value, buffer in home.items()})
    return home | updated


def _is_update(step: Step) -> bool:
    """Tell whether a step writes some elements of its first operand anew and takes nothing in, as a scatter does."""
    return step.kind == Kind.OPAQUE and step.primitive in SCATTERS


def _hosted(
    writes: list[tuple[int, ...]], last: Mapping[int, int], sizes: Sequence[int], outputs: set[int], owned: set[int]
) -> set[int]:
    """Return the buffers that fit into the memory of an output before it is written (``BufferAssigner``).

    A free span is an output's size and the steps in which nothing is in it. Buffers are placed largest first,
    buffers of one size in order of birth, each into the span that ends soonest after it. Buffers below two
    per cent of the largest are left out.
    """
    born = {buffer: position for position, buffers in enumerate(writes) for buffer in buffers}
    temporary = [b for b in born if b not in owned and b in last]
    floor = max((sizes[b] for b in temporary), default=0) / 50
    waiting = sorted((b for b in temporary if sizes[b] > floor), key=lambda b: (-sizes[b], born[b], b))
    spans = sorted((sizes[b], 0, born[b]) for b in outputs if sizes[b] > floor and born.get(b, 0) > 0)
    found: set[int] = set()
    for size, group in groupby(waiting, key=sizes.__getitem__):
        cut = bisect_left(spans, (size, -1, -1))
        smaller, coming = spans[:cut], [(start, end, room) for room, start, end in spans[cut:]]
        heapify(coming)
        ready: list[tuple[int, int, int]] = []  # (end, start, room) of spans that have begun
        unused: list[tuple[int, int, int]] = []  # (room, start, end), for smaller buffers
        for buffer in group:
            begin, end = born[buffer], last[buffer]
            while coming and coming[0][0] <= begin:
                start, stop, room = heappop(coming)
                insort(ready, (stop, start, room))
            at = bisect_left(ready, (end + 1, -1, -1))
            if at < len(ready):
                stop, start, room = ready.pop(at)
                found.add(buffer)
                unused.append((room, start, begin))
                heappush(coming, (end + 1, stop, room))
        unused.extend((room, start, stop) for stop, start, room in ready)
        unused.extend((room, start, stop) for start, stop, room in coming)
        spans = sorted(smaller + [span for span in unused if span[1] < span[2]])
    return found
