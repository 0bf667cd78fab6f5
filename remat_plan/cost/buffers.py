"""Which buffers the kernels of a program read and write, and whose memory they are.

In: a ``Program``, its kernels in the order in which they run. Out: ``Buffers``.

What is updated in place lives in the buffer of what it updates, and what is behind a barrier in that of what is before
it. Arguments and outputs are the caller's, and so is what is written over by an output. Temporaries that fit use the
memory of outputs that are not written yet.

Limits: no fragmentation.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import LOOPS, Kind
from remat_plan.cost.spare import bytes_without, place
from remat_plan.cost.steps import SCATTERS, Buffer, Program, Step


class Buffers:
    """The buffers of a program's kernels.

    Attributes:
        reads, writes: by kernel, the buffers that it reads, and those that it begins.
        last: by buffer, the last kernel that reads it.
        outputs: the buffers that are handed out.
        owned: those that are no temporaries: of arguments and outputs, and what lives in their memory.
        rows: by kernel, the reductions of rows that it makes on its way.
        inside_bytes: by kernel that stands for a loop or a branch, what it needs inside beyond the memory of outputs;
            only where it uses some of that.
    """

    def __init__(self, program: Program, kernels: Sequence[Kernel]):
        self._kernels, self._sizes = kernels, program.sizes
        self._is_apart = program.backend.only("apart") or (lambda kernel: False)
        self._home = home = _homes(program, kernels)
        find_rows = program.backend.only("rows")
        self.rows: Mapping[int, Sequence[int]] = find_rows(program, kernels) if find_rows else {}
        reads = [tuple({*k.reads, *k.common}) if k.common else k.reads for k in kernels]
        self.reads = [tuple(dict.fromkeys([home.get(v, v) for v in read])) for read in reads] if home else reads
        self.writes = [tuple([w for w in kernel.step.writes if w not in home]) for kernel in kernels]
        self.last = {buffer: position for position, read in enumerate(self.reads) for buffer in read}
        self._kept = self._kept_apart()
        carried = {home.get(o, o): home.get(i, i) for o, i in program.carried.items()}
        self.outputs = {home.get(v, v) for v in program.outputs} - carried.keys()
        self.owned = self.outputs | program.inputs
        self._write_into_outputs()
        self.inside_bytes: dict[int, int] = {}
        if program.backend.reuses_outputs:
            self._use_outputs(self.outputs - program.inputs)
        for late in self._read_too_late(carried):
            self.last[late] = len(kernels)
            del carried[late]
        self.owned |= carried.keys()

    def written_over(self, position: int, new: Sequence[int], dying: Sequence[int]) -> dict[int, int]:
        """By buffer that a kernel is the last to read, that of its ``new`` temporaries which is written over it."""
        sizes, carries = self._sizes, self._kernels[position].step.carries
        if carries:
            over = {self._home.get(b, b): w for b, w in carries if w in new}
            return {b: w for b, w in over.items() if b in dying}
        if not new or not dying:
            return {}
        size, kept = sizes[new[0]], self._kept[position]
        fits = [b for b in dying if 0 < sizes[b] == size and b not in kept]
        return {fits[0]: new[0]} if fits else {}

    def _use_outputs(self, outputs: set[int]) -> None:
        """Place temporaries into the memory of outputs, those inside of loops and branches among them.

        Time is counted in steps of bodies. Buffers below two per cent of the largest are left out.
        """
        sizes, last, owned = self._sizes, self.last, self.owned
        born = {buffer: position for position, buffers in enumerate(self.writes) for buffer in buffers}
        pieces = self._carried_on(born)
        regions = [(p, k.step.region) for p, k in enumerate(self._kernels) if k.step.region.buffers]
        long = max((len(region.live_bytes) for _, region in regions), default=1)
        found: dict[Hashable, Buffer] = {
            piece[0]: (sizes[piece[0]], long * born[piece[0]], long * last[piece[-1]] + long - 1)
            for piece in pieces.values()
            if owned.isdisjoint(piece) and piece[-1] in last
        }
        for position, region in regions:
            for number, (size, first, end) in enumerate(region.buffers):
                found[position, number] = size, long * position + first, long * position + end
        floor = max((size for size, _, _ in found.values()), default=0) / 50
        large = {key: buffer for key, buffer in found.items() if buffer[0] > floor}
        placed = place(large, [(sizes[b], 0, long * born[b]) for b in outputs if sizes[b] > floor and b in born])
        owned.update(b for key in placed if isinstance(key, int) for b in pieces[key])
        for position, region in regions:
            numbers = [n for n in range(len(region.buffers)) if (position, n) in placed]
            if numbers:
                self.inside_bytes[position] = bytes_without(region, numbers)

    def _carried_on(self, born: Mapping[int, int]) -> dict[int, list[int]]:
        """By first one of them, the buffers that are one piece of memory: what enters a loop and what leaves it."""
        first, pieces = {b: b for b in born}, {b: [b] for b in born}
        for position, kernel in enumerate(self._kernels):
            for before, after in kernel.step.carries:
                before = self._home.get(before, before)
                if before in born and after in born and self.last[before] == position:
                    first[after] = first[before]
                    pieces[first[before]] += pieces.pop(after, [])
        return pieces

    def _kept_apart(self) -> list[frozenset[int]]:
        """By kernel, the buffers that its result is not written over.

        Loops and updates share no memory with others by elements: what enters or leaves a loop, and what is updated in
        place, as by a scatter, are values of one buffer already, which ``HeapSimulator`` does not share with operands.
        Rows that a gather makes or that a scatter reads are of one dimension more to them (``GatherSimplifier``,
        ``ScatterSimplifier``), and what reshapes them on the way shares nothing either. Nor does what a call hands out
        in a tuple: its reader is one of the element, not of the call.
        """
        home, reads = self._home, self.reads
        kept = [frozenset([home.get(v, v) for v in k.keeps]) if home else k.keeps for k in self._kernels]
        state: set[int] = set()
        scattered: set[int] = set()
        for position, kernel in enumerate(self._kernels):
            step = kernel.step
            if step.primitive in LOOPS:
                state.update(reads[position], step.writes)
            elif _is_update(step):
                state.update([home.get(v, v) for v in (step.reads[0], *step.writes)])
                scattered.update(step.reads[1:])
            elif step.primitive == "gather":
                state.update(step.writes)
        apart = state.union([home.get(w, w) for k in self._kernels if self._is_apart(k) for w in k.step.writes])
        for position, kernel in enumerate(self._kernels if apart else ()):
            made = kernel.step.writes
            if any(w in scattered or home.get(w, w) in state for w in made) and not _is_update(kernel.step):
                kept[position] = frozenset(reads[position])
            else:
                kept[position] |= apart.intersection(reads[position])
        for position in self.rows:  # an element of the result needs all of its row
            kept[position] = kept[position].union(reads[position])
        return kept

    def _read_too_late(self, carried: Mapping[int, int]) -> list[int]:
        """Return the carries that are written while the ones before are still read: each needs a buffer of its own."""
        found = []
        for position, kernel in enumerate(self._kernels if carried else ()):
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
