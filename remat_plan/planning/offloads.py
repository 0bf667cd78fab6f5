"""What of the values that the steps of a loop keep goes to the host.

In: schedules of a loop's step that are worth having, ``Limits``, ``Hardware``. Out: the same with some of what they
keep moved: what a step is given by the last one, then its own values, in the order in which they are made, the first of
them or the last.

Which values are kept does not depend on where, as long as a byte costs the same wherever it comes from: those that are
worth keeping on the device are worth moving. How many of them the link carries while the kernels work is the
evaluator's word (``cost.links``), and how many steps do so is a matter of stretches.

Limits: of a step that is one segment, so that no other segment holds on to what goes. Nothing is moved outside of
loops, where XLA:GPU and XLA:TPU need more memory for it and not less (an unrolled GPT-2 on an H100: 843 MB of
temporaries, and 2504 with its products moved).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import communicates
from remat_plan.graph.action import OFFLOAD
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, Segment
from remat_plan.graph.uses import Borders
from remat_plan.planning.limits import Limits

_LEAST_SHARE = 1 / 64
"""Values smaller than this share of the largest one stay on the device: each transfer has to be started."""


def may_offload(limits: Limits, hardware: Hardware) -> bool:
    """Whether a request allows it, and there is another memory to go to."""
    return OFFLOAD in limits.actions and hardware.link_bytes_per_second > 0


def offloaded(region: Graph, limits: Limits, schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
    """Return what is made of schedules of a loop's step by moving some of what they keep."""
    borders = Borders(region)
    alone = [schedule[0] for schedule in schedules if len(schedule) == 1 and schedule[0].checkpointed]
    return tuple(dict.fromkeys((made,) for segment in alone for made in _moved(borders, limits, segment)))


def _moved(borders: Borders, limits: Limits, segment: Segment) -> Iterator[Segment]:
    """Yield a segment with the first of what it keeps moved, or the last; at last all of it."""
    values = [v for v in _kept(borders, segment) if limits.lets_move([v])]
    for count in range(1, len(values) + 1):
        for part in (values[:count], values[-count:]):
            yield segment.with_parts(actions=_actions(segment, part))


def _actions(segment: Segment, moved: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """What is kept of a segment, and where."""
    return tuple(sorted({**dict(segment.actions), **dict.fromkeys(moved, OFFLOAD)}.items()))


def _kept(borders: Borders, segment: Segment) -> list[int]:
    """The large values that a segment keeps for its backward pass, what it was given first."""
    graph = borders.graph
    reads = set(borders.interface(segment)[0])
    given = [v for v in graph.carried if v in reads]
    made = [v for v in segment.saved if v not in given and not communicates(graph.ops[graph.values[v].producer].eqn)]
    sizes = {v: graph.values[v].size_bytes for v in (*given, *made) if hasattr(graph.values[v].aval, "shape")}
    return [v for v, size in sizes.items() if size > 0 and size >= _LEAST_SHARE * max(sizes.values())]
