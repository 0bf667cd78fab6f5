"""The evaluator: liveness of a program's buffers over the step, after light fusion.

In: a jaxpr (or a ``Program``) and a ``Hardware``.
Out: ``Timeline``: live bytes after every materialised step, the peak, FLOPs and roofline seconds.

It is the one source of predicted figures: what is plotted, printed and compared comes from here or from the
compiler. Model: kernels (``fusion``) in the backend's order (``schedule``); a buffer lives from the kernel
that writes it to the last that reads it; an element-wise kernel writes over an operand that dies there;
arguments and outputs are owned by the caller and count all the time, and temporaries that fit use the memory
of outputs that are not written yet.

Limits: no fragmentation; XLA's own rematerialisation and its memory-saving schedules are not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Any

from remat_plan import _compat
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import Kernel, fuse
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.launches import Launches
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.program import lower
from remat_plan.cost.rules import LOOPS, Kind, loop_counts, trip_count
from remat_plan.cost.steps import SCATTERS, Program, RegionCost, Step
from remat_plan.graph.records import MATRIX_PRIMITIVES


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes over one step of the program.

    Attributes:
        live_bytes: bytes needed during each materialised step, arguments and outputs included.
        labels: the equation of each step (primitive and position are read from it).
        argument_bytes, output_bytes: what the caller owns.
        flops, matrix_flops, seconds: of the whole program.
    """

    live_bytes: tuple[int, ...]
    equations: tuple[Any, ...]
    argument_bytes: int
    output_bytes: int
    flops: float
    matrix_flops: float
    seconds: float

    @property
    def peak_bytes(self) -> int:
        """The largest of ``live_bytes`` (arguments and outputs when there is no step)."""
        return max(self.live_bytes, default=self.argument_bytes + self.output_bytes)

    @property
    def peak_step(self) -> int:
        """The index of the step at the peak."""
        return max(range(len(self.live_bytes)), key=self.live_bytes.__getitem__) if self.live_bytes else 0


def evaluate_program(program: Program, hardware: Hardware, kernels: list[Kernel] | None = None) -> Timeline:
    """Walk a program once: live bytes at each materialised step, FLOPs, roofline seconds.

    ``kernels`` are those of ``fuse(program)``, for callers that have them already.
    """
    ordered = fuse(program) if kernels is None else kernels
    for rule in program.backend.of("order"):
        ordered = rule(ordered, program.sizes)
    return _walk(program, ordered, hardware)


def _walk(program: Program, kernels: list[Kernel], hardware: Hardware) -> Timeline:
    """``evaluate_program`` of kernels that are in order."""
    backend = program.backend
    sizes, home = program.sizes, _homes(program, kernels)
    reads, kept = [k.reads for k in kernels], [k.keeps for k in kernels]
    writes = [tuple([w for w in k.step.writes if w not in home]) for k in kernels]
    if home:
        reads = [tuple(dict.fromkeys([home.get(v, v) for v in values])) for values in reads]
        kept = [frozenset([home.get(v, v) for v in values]) for values in kept]
    last: dict[int, int] = {}
    for position, buffers in enumerate(reads):
        for buffer in buffers:
            last[buffer] = position
    carried = {home.get(o, o): home.get(i, i) for o, i in program.carried.items()}
    outputs = {home.get(v, v) for v in program.outputs} - carried.keys()
    argument_bytes = sum(sizes[v] for v in program.inputs)
    output_bytes = sum(sizes[v] for v in outputs if v not in program.inputs)
    base = argument_bytes + output_bytes + program.around_bytes
    owned = outputs | program.inputs
    kept = _apart(kernels, reads, kept, home)
    find_rows = backend.only("rows")
    rows: Mapping[int, Sequence[int]] = find_rows(program, kernels) if find_rows else {}
    for position in rows:  # an element of the result needs all of its row
        kept[position] = kept[position].union(reads[position])
    _write_into_outputs(kernels, reads, writes, kept, last, sizes, owned)
    if backend.reuses_outputs:
        owned |= _hosted(writes, last, sizes, outputs - program.inputs, owned)
    for late in _read_too_late(kernels, kept, last, carried):
        last[late] = len(kernels)
        del carried[late]
    owned |= carried.keys()
    live = 0
    alive: set[int] = set()
    live_bytes: list[int] = []
    equations: list[Any] = []
    seconds = 0.0
    launches = Launches(program, kernels, reads, rows, hardware)
    for position, kernel in enumerate(kernels):
        step = kernel.step
        dying = [b for b in reads[position] if b in alive and last[b] == position]
        if step.kind != Kind.BARRIER:
            new = [w for w in writes[position] if w not in owned]
            live += sum(sizes[w] for w in new)
            alive.update(new)
            if step.carries:
                reused = sum(sizes[w] for b, w in step.carries if home.get(b, b) in dying and w in new)
            else:
                into = sizes[new[0]] if new and backend.writes_over else 0
                over = [b for b in dying if into and sizes[b] == into and b not in kept[position]]
                reused = sizes[over[0]] if over else 0
            live_bytes.append(base + live - reused + step.region.transient_bytes)
            equations.append(step.eqn)
            seconds += launches.seconds(position)
            dying += [w for w in new if w not in last]
        for buffer in dying:
            alive.discard(buffer)
            live -= sizes[buffer]
    return Timeline(
        live_bytes=tuple(live_bytes),
        equations=tuple(equations),
        argument_bytes=argument_bytes,
        output_bytes=output_bytes,
        flops=sum(s.flops * s.equations for s in program.steps),
        matrix_flops=sum(_matrix_flops(s) * s.equations for s in program.steps),
        seconds=seconds,
    )


def with_fresh_memory(timeline: Timeline, hardware: Hardware) -> Timeline:
    """Return the timeline of a whole program with what its temporary memory costs in each run."""
    temporary = timeline.peak_bytes - timeline.argument_bytes - timeline.output_bytes
    fresh = hardware.fresh_seconds(temporary)
    return replace(timeline, seconds=timeline.seconds + fresh) if fresh else timeline


def _homes(program: Program, kernels: list[Kernel]) -> dict[int, int]:
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


def _apart(
    kernels: list[Kernel], reads: list[tuple[int, ...]], kept: list[frozenset[int]], home: dict[int, int]
) -> list[frozenset[int]]:
    """Return ``kept`` with the buffers of loops and updates in it: they share no memory with others by elements.

    What enters or leaves a loop, and what is updated in place, as by a scatter, are values of one buffer already, which
    ``HeapSimulator`` does not share with operands.
    """
    state: set[int] = set()
    for position, kernel in enumerate(kernels):
        if kernel.step.primitive in LOOPS:
            state.update(reads[position], kernel.step.writes)
        elif _is_update(kernel.step):
            state.update([home.get(v, v) for v in (kernel.step.reads[0], *kernel.step.writes)])
    if not state:
        return kept
    return [
        frozenset(reads[position])
        if any(home.get(w, w) in state for w in kernel.step.writes) and not _is_update(kernel.step)
        else kept[position] | state.intersection(reads[position])
        for position, kernel in enumerate(kernels)
    ]


def _read_too_late(
    kernels: list[Kernel], kept: list[frozenset[int]], last: dict[int, int], carried: dict[int, int]
) -> list[int]:
    """Return the carries that are written while the ones before are still read: each needs a buffer of its own."""
    found = []
    for position, kernel in enumerate(kernels):
        if kernel.step.kind == Kind.BARRIER:
            continue
        for value in kernel.step.writes:
            before = carried.get(value)
            read = -1 if before is None else last.get(before, -1)
            passed_on = (before, value) in kernel.step.carries
            if read > position or (read == position and before in kept[position] and not passed_on):
                found.append(value)
    return found


def _write_into_outputs(
    kernels: list[Kernel],
    reads: list[tuple[int, ...]],
    writes: list[tuple[int, ...]],
    kept: list[frozenset[int]],
    last: dict[int, int],
    sizes: list[int],
    owned: set[int],
) -> None:
    """Add to ``owned`` the buffers that an output is written over: they live in the output's own memory."""
    for position in range(len(kernels) - 1, -1, -1):
        kernel = kernels[position]
        for buffer, value in kernel.step.carries:
            if value in owned and last.get(buffer) == position:
                owned.add(buffer)
        if kernel.step.carries or not writes[position] or writes[position][0] not in owned:
            continue
        size = sizes[writes[position][0]]
        for buffer in reads[position]:
            dies = last[buffer] == position and buffer not in owned
            if dies and sizes[buffer] == size and buffer not in kept[position]:
                owned.add(buffer)
                break


def _hosted(
    writes: list[tuple[int, ...]], last: dict[int, int], sizes: list[int], outputs: set[int], owned: set[int]
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


def _matrix_flops(step: Step) -> float:
    return step.flops if step.primitive in MATRIX_PRIMITIVES else step.region.matrix_flops


def region_cost(eqn: Any, hardware: Hardware) -> RegionCost:
    """Return what happens inside a region: the worst body's bytes, the seconds of all steps."""
    timelines = []
    worst = 0
    for key, sub in _compat.named_jaxprs(eqn.params):
        loop = eqn if LOOPS.get(eqn.primitive.name) == key else None
        timeline = evaluate_program(lower(sub, fact_book(hardware), loop), hardware)
        timelines.append(timeline)
        worst = max(worst, timeline.peak_bytes - timeline.argument_bytes - timeline.output_bytes)
    steps = trip_count(eqn)
    clearing = 0.0
    clears = backend_for(hardware).only("stacks")
    if eqn.primitive.name == "scan" and clears and clears(False):
        written = sum(fact_book(hardware).bytes(v.aval) for v in eqn.outvars[loop_counts(eqn).carry :])
        clearing = hardware.clearing_seconds(written)
    seconds = [t.seconds for t in timelines] or [0.0]
    matrix = [t.matrix_flops for t in timelines] or [0.0]
    if eqn.primitive.name == "cond":
        return RegionCost(worst, max(seconds), max(matrix))
    return RegionCost(worst, steps * (sum(seconds) + hardware.loop_seconds) + clearing, steps * sum(matrix))


def fact_book(hardware: Hardware) -> FactBook:
    """Return an empty book of facts for a backend."""
    return FactBook(partial(region_cost, hardware=hardware), backend_for(hardware), hardware.name.split(":")[0])


def evaluate(jaxpr: Any, hardware: Hardware) -> Timeline:
    """Evaluate a jaxpr: see ``Timeline``.

    >>> import jax, jax.numpy as jnp
    >>> from remat_plan.cost.hardware import hardware_for
    >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) @ x)(jnp.ones((256, 256)))
    >>> evaluate(jaxpr, hardware_for("gpu:h100", "gpu")).peak_bytes  # x, sin(x) and the product
    786432
    """
    return with_fresh_memory(evaluate_program(lower(jaxpr, fact_book(hardware)), hardware), hardware)
