"""The order of recomputations: one segment after another.

In: ``Graph``, the segments of one level. Out: per segment, the values that pass through it so that its backward pass
waits for that of the next one; which loops take their memory when they are reached (see ``rewrite.late``).

The backward pass of a segment starts when the cotangents of what it returns are there (``jax.checkpoint`` puts a
barrier over its inputs *and* these cotangents). In a chain the next segment makes them. Of branches side by side they
are all there at once, and a compiler is free to recompute every branch before it differentiates the first. So what the
next segment reads passes through this one: its cotangents, which the next segment's backward pass makes, then enter the
barrier. Nothing is computed for it, and all transformations know what it is: an identity inside ``jax.checkpoint``.

Gradients of weights are in nobody's way: nothing in the backward pass reads them, so a compiler is free to make them at
its end, and keeps till then what they are made of. XLA:GPU does so where a step spans devices, to sum them all at once
(eight layers, each a segment, on eight H100s: 277 MB where the plain step needs 193), and to a lesser degree on one
GPU. So the weights that the next segment reads pass through this one too, and their gradients enter its barrier.

What a segment makes of parameters, random keys and the like, and of nothing that the segments before it make, a
compiler may make long before: XLA:CPU, which runs everything as soon as it can, makes it for all segments at the start
of the program (random bits of dropout, kernels of state-space layers, merged or dequantised weights), and it is alive
until its segment runs. In the backward pass the barrier of ``jax.checkpoint`` is in its way; in the forward pass such a
segment gets one too, over all that enters it (``rewrite.late``). So does a segment inside another one, where bytes
matter most: XLA:CPU hands products, reductions and what is between them to its library as one call, across borders too,
and that reads every constant at full size from the start of the program on (a ViT of 12 layers: 661 MB for 478).
Others get none: what loads their parameters, from other devices say, may run ahead.

Limits: planned loops have no barrier of their own, so one does not wait for what follows it. Nor has a plain segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan import _compat
from remat_plan.graph.merge import argument_views
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Segment, is_planned
from remat_plan.graph.structure import is_loop, structure_of

_EARLY_SHARE = 1 / 16
"""What a segment may make early is worth a barrier from this share of the activations that enter it. Below it, it is
lost in what is kept of them: a scale plus one, the mask of a short sequence."""

Ordered = list[tuple[Segment, tuple[int, ...]]]


class Order:
    """The order of a graph's segments; what two of them that follow each other wait for is derived once.

    ``free`` are the operations that every segment makes for itself.
    """

    def __init__(self, graph: Graph, free: frozenset[int]):
        self.graph, self.free = graph, free
        self._known: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
        self._weights = _whole_weights(graph)
        self._early: dict[tuple[int, int], bool] = {}
        self._depths = _depths(graph, free)
        self._views = argument_views(graph)
        loops = [op for op in graph.ops if is_loop(op)]  # they begin with memory that depends on nothing
        self._several = len(loops) > 1
        self._in_the_way = self._several and any(_hands_on_rows(graph, op) for op in loops)

    def of(self, segments: Sequence[Segment]) -> Ordered:
        """Return each segment with the values that must pass through it for the sake of the order.

        A plain segment is waited for if it is the last one.
        """
        found: Ordered = []
        following: Segment | None = segments[-1] if segments else None
        for segment in reversed(segments):
            waits: tuple[int, ...] = ()
            if segment.checkpointed and following is not None:
                key = segment.start, segment.end, following.start, following.end
                if key not in self._known:
                    self._known[key] = self._waits(segment, following)
                waits = self._known[key]
            found.append((segment, waits))
            if segment.checkpointed or segment.choices:
                following = segment
        return found[::-1]

    def _waits(self, segment: Segment, following: Segment) -> tuple[int, ...]:
        """The values by which a segment waits for the following one, and for what is between them."""
        later = [op for op in self.graph.ops[segment.end : following.end] if op.differentiated]
        weights = [v for op in later for v in op.reads if v in self._weights]
        return tuple(dict.fromkeys((*_beside(self.graph, segment, following, self.free), *weights)))

    def waits(self, segment: Segment, inside: bool) -> bool:
        """Tell whether a segment waits for all that it reads, also where it does not run again; ``inside``: another."""
        return (inside and segment.checkpointed) or self.starts_early(segment)

    def starts_early(self, segment: Segment) -> bool:
        """Tell whether much of a segment could run before all that it reads is there.

        A value's depth, the longest chain of operations up to it, tells when a compiler that runs everything as soon as
        it can has it. Views and casts of single arguments do not count.
        """
        key = segment.start, segment.end
        if key in self._early:
            return self._early[key]
        ops = [op for op in self.graph.ops[slice(*key)] if op.index not in self.free and not op.effectful]
        made = {v for op in ops for v in op.outputs}
        reads = {v for op in ops for v in op.reads} - made
        entry = max((self._depths[v] for v in reads), default=0)
        entering = sum([self.graph.values[v].size_bytes for v in reads if self._depths[v] == entry])
        early = [v for op in ops if op.index not in self._views for v in op.outputs if self._depths[v] <= entry]
        most = max([self.graph.values[v].size_bytes for v in early], default=0)
        self._early[key] = most > _EARLY_SHARE * entering
        return self._early[key]

    def late_loops(self, schedule: Sequence[Segment]) -> tuple[bool, bool]:
        """Tell whether loops take their memory when they are reached: those of a schedule, those recomputed inside it.

        A lone loop that runs once is in nobody's way, nor is one inside a structure, where nothing starts before its
        turn. Of several that run once, the zeros of residuals are needed until the backward pass anyway; those of the
        cotangents of rows that another loop made are not (6 LSTMs, one after another: 23 % more memory when early).
        Where JAX would copy what a loop in a ``cond`` reads, only several recomputed ones are worth it. A plain program
        stays as it is.
        """
        # In a branch the stack of a loop would be copied.
        outside = _compat.cond_forwards_residuals() and not self.graph.is_region
        return outside and self._in_the_way and is_planned(schedule), self._several or outside


def _depths(graph: Graph, free: frozenset[int]) -> list[int]:
    """Return per value how many operations are in the longest chain that leads to it; none to what is free."""
    depths = [0] * len(graph.values)
    for op in graph.ops:
        if op.index not in free:
            depth = 1 + max([depths[v] for v in op.reads], default=0)
            for v in op.outputs:
                depths[v] = depth
    return depths


def _whole_weights(graph: Graph) -> frozenset[int]:
    """Return the inputs that the program is differentiated by and reads as a whole.

    Where parts are read (layers of a stack), their gradients are small and XLA adds them up in one kernel. In segments
    each of them would be written out at the size of the whole. None where XLA:CPU keeps barriers by an option only: it
    keeps them to the end then, and what goes through them (a plan of four layers took 16 % more FLOPs than a hand).
    """
    if _compat.drops_checkpoint_barriers():
        return frozenset()
    inputs = {v for v in graph.inputs if graph.active[v]}
    parts = {v for op in graph.ops for v in op.reads if v in inputs and _reads_a_part(graph, op, v)}
    return frozenset(inputs - parts)


def _reads_a_part(graph: Graph, op: Op, value: int) -> bool:
    """Tell whether an operation hands on less than all of a value, and nothing else is needed for its gradient."""
    need = graph.needs[op.kind]
    size = graph.values[value].aval.size
    return not need.operands and not need.outputs and all(graph.values[v].aval.size < size for v in op.outputs)


def _beside(graph: Graph, segment: Segment, following: Segment, free: frozenset[int]) -> list[int]:
    """Return what the following segment reads to compute something that does not depend on this segment.

    What it computes from this one's results needs no order: its backward pass makes the cotangents that enter this
    one's barrier. What it computes beside them does, if its backward pass reads anything.
    """
    inside = [graph.ops[i] for i in range(segment.start, segment.end) if i not in free]
    made = {v for op in inside for v in op.outputs}
    downstream = {v for v in made if graph.active[v]}
    downstream.update(v for op in inside for v in op.reads if graph.active[v] and graph.values[v].producer >= 0)
    beside: list[Op] = []
    for op in graph.ops[segment.end : following.end]:
        if op.index in free or not op.differentiated:
            continue
        made.update(op.outputs)
        if any(v in downstream for v in op.reads):
            downstream.update(v for v in op.outputs if graph.active[v])
        else:
            beside.append(op)
    wanted: dict[int, None] = {}
    for op in reversed(beside):
        need = graph.needs[op.kind]
        recomputed = op.index >= following.start and (need.operands or need.outputs)
        if recomputed or any(v in wanted for v in op.outputs):
            wanted.update((v, None) for v in op.reads if graph.active[v])
    return [v for v in wanted if v not in made]


def _hands_on_rows(graph: Graph, op: Op) -> bool:
    """Tell whether gradients flow into the stacked outputs of a loop, so that another's backward pass stacks them."""
    structure = structure_of(op)
    loop = structure.loop(graph, op) if structure is not None else None
    return loop is not None and any(graph.active[v] for v in op.outputs[len(loop.carried) :])
