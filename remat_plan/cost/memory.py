"""The evaluator: liveness of a program's buffers over the step, after light fusion.

In: a jaxpr (or a ``Program``) and a ``Hardware``.
Out: ``Timeline``: live bytes after every materialised step, the peak, FLOPs and roofline seconds.

It is the one source of predicted figures: what is plotted, printed and compared comes from here or from the compiler.
Model: kernels (``fusion``) in the backend's order; a buffer (``buffers``) lives from the kernel that writes it to the
last that reads it; arguments and outputs count all the time.

Limits: no fragmentation; XLA's own rematerialisation and its memory-saving schedules are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from remat_plan import _compat
from remat_plan.cost.buffers import Buffers
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import Kernel, fuse
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.launches import Launches
from remat_plan.cost.links import FETCH, Link
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.program import lower
from remat_plan.cost.rules import LOOPS, Kind, loop_counts, region_flops, trip_count
from remat_plan.cost.steps import Buffer, Place, Program, RegionCost
from remat_plan.cost.work import BATCHED, with_type
from remat_plan.graph.records import MATRIX_PRIMITIVES


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes over one step of the program.

    Attributes:
        live_bytes: bytes needed during each materialised step, arguments and outputs included.
        equations: that of each step (primitive and position are read from it).
        argument_bytes, output_bytes: what the caller owns.
        flops, matrix_flops, seconds: of the whole program.
        places: per step that of the operation of the planned program which it is of.
        buffers: the temporaries.
        host_bytes: what is kept in the host's memory.
    """

    live_bytes: tuple[int, ...]
    equations: tuple[Any, ...]
    argument_bytes: int
    output_bytes: int
    flops: float
    matrix_flops: float
    seconds: float
    places: tuple[Place, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The largest of ``live_bytes`` (arguments and outputs when there is no step)."""
        return max(self.live_bytes, default=self.argument_bytes + self.output_bytes)

    @property
    def inside_bytes(self) -> int:
        """What is needed at the peak beyond arguments and outputs."""
        return self.peak_bytes - self.argument_bytes - self.output_bytes

    def as_region(self) -> RegionCost:
        """What this costs as the body of an equation."""
        own = self.argument_bytes + self.output_bytes
        floor = max((size for size, _, _ in self.buffers), default=0) / 50  # smaller ones change nothing
        large = tuple([buffer for buffer in self.buffers if buffer[0] > floor])
        live = tuple([step - own for step in self.live_bytes]) if large else ()
        return RegionCost(self.inside_bytes, self.seconds, self.matrix_flops, live, large, self.host_bytes)

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
    sizes, buffers = program.sizes, Buffers(program, ordered)
    find_workspace = program.backend.only("workspace")
    workspace = find_workspace(program, ordered, hardware) if find_workspace else {}
    argument_bytes = sum(sizes[v] for v in program.inputs)
    output_bytes = sum(sizes[v] for v in buffers.outputs if v not in program.inputs)
    live = argument_bytes + output_bytes + program.around_bytes
    alive: dict[int, int] = {}
    temporaries: list[Buffer] = []
    live_bytes: list[int] = []
    equations: list[Any] = []
    places: list[Place] = []
    link = Link()
    launches = Launches(program, ordered, buffers, hardware)
    last, owned = buffers.last, buffers.owned
    for position, (kernel, reads, writes) in enumerate(zip(ordered, buffers.reads, buffers.writes, strict=True)):
        step = kernel.step
        dying = [b for b in reads if b in alive and last[b] == position]
        over: dict[int, int] = {}
        if step.kind != Kind.BARRIER:
            new = [w for w in writes if w not in owned]
            over = buffers.written_over(position, new, dying)
            inside = buffers.inside_bytes.get(position, step.region.transient_bytes)
            inside += workspace.get(position, 0)
            for w in new:
                live += sizes[w]
                alive[w] = len(live_bytes)
            live_bytes.append(live - sum([sizes[w] for w in over.values()]) + inside)
            equations.append(step.eqn)
            places.append(step.place)
            link.run(launches.seconds(position), step.region.link_seconds, step.primitive == FETCH)
            dying += [w for w in new if w not in last]
        for buffer in dying:
            # What is written over ends before that: it is one piece of memory with what takes its place.
            temporaries.append((sizes[buffer], alive.pop(buffer), len(live_bytes) - 1 - (buffer in over)))
            live -= sizes[buffer]
    return Timeline(
        live_bytes=tuple(live_bytes),
        equations=tuple(equations),
        argument_bytes=argument_bytes,
        output_bytes=output_bytes,
        flops=sum(s.flops * s.equations for s in program.steps),
        matrix_flops=sum(
            (s.flops if s.primitive in MATRIX_PRIMITIVES else s.region.matrix_flops) * s.equations
            for s in program.steps
        ),
        seconds=link.seconds,
        places=tuple(places),
        buffers=tuple(temporaries),
        host_bytes=sum([kernel.step.region.host_bytes for kernel in ordered]),
    )


def with_fresh_memory(timeline: Timeline, hardware: Hardware) -> Timeline:
    """Return the timeline of a whole program with what its temporary memory costs in each run."""
    fresh = hardware.fresh_seconds(timeline.inside_bytes)
    return replace(timeline, seconds=timeline.seconds + fresh) if fresh else timeline


def region_cost(eqn: Any, hardware: Hardware) -> RegionCost:
    """Return what happens inside a region: the worst body's bytes, the seconds of all steps."""
    name, found = eqn.primitive.name, list[RegionCost]()
    if name == "pallas_call":
        return _own_kernel(eqn, hardware)
    for key, sub in _compat.named_jaxprs(eqn.params):
        program = lower(sub, fact_book(hardware, is_body=True), eqn if LOOPS.get(name) == key else None)
        timeline = evaluate_program(program, hardware)
        found.append(timeline.as_region())
    if not found:
        return RegionCost()
    worst = max(found, key=lambda region: region.transient_bytes)
    seconds, matrix_flops = [region.seconds for region in found], [region.matrix_flops for region in found]
    if name == "cond":
        return worst._replace(seconds=max(seconds), matrix_flops=max(matrix_flops))
    steps, clearing, clears = trip_count(eqn), 0.0, backend_for(hardware).only("stacks")
    if name == "scan" and clears and clears(False):
        written = sum(fact_book(hardware).bytes(v.aval) for v in eqn.outvars[loop_counts(eqn).carry :])
        clearing = hardware.clearing_seconds(written)
    whole = steps * (sum(seconds) + hardware.loop_seconds) + clearing
    return worst._replace(seconds=whole, matrix_flops=steps * sum(matrix_flops))


def _own_kernel(eqn: Any, hardware: Hardware) -> RegionCost:
    """What a kernel of the user's own costs: its body reads and writes on-chip memory, so bytes count at its borders.

    Most FLOPs of kernels that are worth writing are those of products, in the type of the largest array.
    """
    atoms = [a.aval for a in (*eqn.invars, *eqn.outvars) if hasattr(a.aval, "shape")]
    largest = max(atoms, key=_compat.aval_bytes)
    flops, moved = region_flops(eqn), sum(map(_compat.aval_bytes, atoms))
    compute = hardware.work_seconds(with_type(BATCHED, str(largest.dtype)), flops)
    return RegionCost(seconds=hardware.kernel_seconds(compute, moved), matrix_flops=flops)


def fact_book(hardware: Hardware, is_body: bool = False) -> FactBook:
    """Return an empty book of facts for a backend, of bodies of loops and branches or of what is around them."""
    platform = hardware.name.split(":")[0]
    return FactBook(partial(region_cost, hardware=hardware), backend_for(hardware), platform, is_body)


def evaluate(jaxpr: Any, hardware: Hardware) -> Timeline:
    """Evaluate a jaxpr: see ``Timeline``.

    >>> import jax, jax.numpy as jnp
    >>> from remat_plan.cost.hardware import hardware_for
    >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) @ x)(jnp.ones((256, 256)))
    >>> evaluate(jaxpr, hardware_for("gpu:h100", "gpu")).peak_bytes  # x, sin(x) and the product
    786432
    """
    return with_fresh_memory(evaluate_program(lower(jaxpr, fact_book(hardware)), hardware), hardware)
