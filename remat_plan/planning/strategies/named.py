"""Strategies that follow the user's names: ``collection`` and ``mirror``.

In: ``Task`` (``settings.names`` or ``settings.counts``; values named with ``jax.ad_checkpoint.checkpoint_name``). Out:
``Found``.

``collection`` (OpenAI gradient-checkpointing "collection") keeps exactly the named values. The program is cut wherever
nothing else is alive, so that only the part between two kept values is computed again at a time; where the names do
not separate the program, more of it is there at once, and a note says so.

``mirror`` (Chen et al. 2016, Algorithm 2): the user says how often values may be computed again. Values of count 0 are
kept; where those of count 1 separate the program between them, they are kept while that part is run again; and so on.
Values without a count have one more than the largest.

Limits: a value that is kept inside a part which is itself run again (count 0 within nested parts) would be lost, so
such a part is not nested. Small values (0.1 % of the largest) may cross a cut although nobody named them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import around
from remat_plan.graph.uses import last_uses
from remat_plan.planning.cuts import frontiers
from remat_plan.planning.limits import with_aliases
from remat_plan.planning.names import check_names, known_names, named_values, names_inside
from remat_plan.planning.runs import SMALL_SHARE
from remat_plan.planning.saving import may_nest, plain_segment
from remat_plan.planning.strategies.chains import is_alone, one_segment
from remat_plan.planning.strategies.records import Found, Schedule, Task
from remat_plan.small.budget import format_bytes


def find_collection(task: Task) -> Found:
    """Keep the named values, all of them where no names were given."""
    graph = task.graph
    names = task.settings.names
    if names is None:
        names = names_inside(graph)
    if not names and not task.inner:
        raise ValueError(
            "strategy='collection' saves named values, and this program has none: name values with "
            "jax.ad_checkpoint.checkpoint_name(value, name)."
        )
    if not task.inner:
        check_names(graph, "names", names)
    if (found := _as_it_is(task, names)) is not None:
        return found
    values = named_values(graph, names)
    _check_not_forbidden(task, values, "names")
    positions = [0, *separators(task, values), len(graph.ops)]
    schedule = tuple(one_segment(task, s, e, wanted=values) for s, e in itertools.pairwise(positions))
    return Found((schedule,), (_note(graph, values, len(schedule)),))


def _as_it_is(task: Task, names: Sequence[str]) -> Found | None:
    """Leave a region as it is that has none of the names, if they are around it or in regions inside it."""
    elsewhere = task.inner or set(names) & set(names_inside(task.graph))
    if set(names) & set(known_names(task.graph)) or not elsewhere:
        return None
    return Found(((plain_segment(task.graph, task.cuts, 0, len(task.graph.ops)),),))


def _note(graph: Graph, values: Sequence[int], count: int) -> str:
    size = format_bytes(sum(graph.values[v].size_bytes for v in values))
    note = f"{len(values)} named values ({size}) are saved; they separate the program into {count} segments"
    if count == 1 and len(values) > 0:
        note += ", so everything is recomputed at once: name the input of each layer too"
    return note


def _check_not_forbidden(task: Task, values: Sequence[int], argument: str) -> None:
    for v in values:
        if v in task.cuts.limits.forbidden:
            raise ValueError(
                f"{argument}: {task.graph.values[v].text} must be saved, but must_recompute forbids it. Remove its "
                "name from one of them."
            )


def separators(task: Task, values: Sequence[int]) -> list[int]:
    """Return the positions, both ends left out, at which only ``values`` (or names of them) are alive.

    A name or a reshape of what is alive makes no new position. Equations that stay outside segments are
    cut out on both sides.
    """
    graph, cuts = task.graph, task.cuts
    named = with_aliases(graph, values)
    largest = max((v.size_bytes for v in graph.values if v.producer >= 0), default=0)
    everywhere = tuple(range(len(graph.ops) + 1))
    live = _alive(graph, everywhere, task)
    forbidden = cuts.limits.forbidden
    open_to_cut = [p for p in everywhere[1:-1] if live[p] and not live[p] & forbidden]
    found = [p for p in open_to_cut if _only(graph, live[p], named, largest * SMALL_SHARE)]
    found = [p for p in found if not (p - 1 in found and kind_of(graph.ops[p - 1].eqn) == Kind.ALIAS)]
    for start, end in itertools.pairwise(cuts.positions):
        if is_alone(task, start, end):
            found += [start, end]
    return sorted({p for p in found if 0 < p < len(graph.ops)})


def _alive(graph: Graph, positions: tuple[int, ...], task: Task) -> tuple[frozenset[int], ...]:
    return frontiers(graph, positions, task.cuts.free, last_uses(graph))


def _only(graph: Graph, live: frozenset[int], named: frozenset[int], small: float) -> bool:
    """Whether named values are alive, and beside them small ones and results of the program only."""
    results = set(graph.outputs)
    others = [v for v in live - named if graph.values[v].size_bytes > small and v not in results]
    return not others and bool(live & named)


def find_mirror(task: Task) -> Found:
    """Nest segments so that each value is computed again at most as often as was said."""
    counts = dict(task.settings.counts or ())
    if not counts:
        raise ValueError(
            "strategy='mirror' needs counts={name: how often}, for example counts={'block': 0, 'half': 1}; names are "
            "those of jax.ad_checkpoint.checkpoint_name."
        )
    if not task.inner:
        check_names(task.graph, "counts", counts)
    if (found := _as_it_is(task, tuple(counts))) is not None:
        return found
    graph = task.graph
    levels = []
    for count in range(max(counts.values()) + 1):
        values = named_values(graph, [name for name, c in counts.items() if c <= count])
        levels.append((values, tuple(separators(task, values))))
    _check_not_forbidden(task, levels[0][0], "counts")
    schedule = _level(task, levels, _last_reads(graph), 0, 0, len(graph.ops))
    return Found((schedule,), (_note(graph, levels[0][0], len(schedule)),))


def _level(
    task: Task,
    levels: Sequence[tuple[Sequence[int], Sequence[int]]],
    last: Sequence[int],
    count: int,
    start: int,
    end: int,
) -> Schedule:
    """Return equations ``start .. end-1`` cut where values of at most ``count`` are kept, nested further in between.

    What is kept and not read after a part would be lost with it, so such a part is not nested.
    """
    kept, cuts = levels[count]
    positions = [start, *(p for p in cuts if start < p < end), end]
    segments = []
    for s, e in itertools.pairwise(positions):
        inside = any(s < p < e for _, deeper in levels[count + 1 :] for p in deeper)
        holds = any(s <= task.graph.values[v].producer < e and last[v] < e for v in kept)
        if inside and not holds and may_nest(task.graph, task.cuts, s, e):
            segments.append(around(s, e, _level(task, levels, last, count + 1, s, e)))
        else:
            segments.append(one_segment(task, s, e, wanted=kept))
    return tuple(segments)


def _last_reads(graph: Graph) -> list[int]:
    """Return per value the last equation that reads it under any name or shape."""
    last = last_uses(graph)
    for op in reversed(graph.ops):
        if kind_of(op.eqn) == Kind.ALIAS and len(op.outputs) == 1 and op.operands and op.operands[-1] >= 0:
            last[op.operands[-1]] = max(last[op.operands[-1]], last[op.outputs[0]])
    return last
