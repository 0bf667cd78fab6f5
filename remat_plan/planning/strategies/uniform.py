"""The same rule on every block, or on the whole program: what people write by hand, and ``speed``.

In: ``Task``. Out: ``Found``.

``each_block``, ``dots`` and ``dots_no_batch`` are ``jax.checkpoint`` on every block with ``nothing_saveable``,
``dots_saveable`` and ``dots_with_no_batch_dims_saveable``. Blocks are those of the cuts; where a sequence of blocks
repeats (the two halves of a transformer layer), each repetition is one block, as one would write it. The last block
(head and loss) stays as it is. ``nothing`` is one ``jax.checkpoint`` around the whole function with
``nothing_saveable``. ``everything_saveable`` means, in JAX, what is kept without ``jax.checkpoint``; so ``everything``
leaves the function as it is.

``speed`` (OpenAI gradient-checkpointing "speed") keeps the outputs of matrix products and of convolutions and computes
the rest again, between each two cuts.

Limits: effects whose results are read cannot be inside ``jax.checkpoint``; they stay outside here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from remat_plan.graph.records import Op
from remat_plan.planning.saving import is_product, is_unbatched_product, plain_segment, save_segment, stays_plain
from remat_plan.planning.strategies.chains import equal_groups, is_alone, one_segment
from remat_plan.planning.strategies.records import Found, Schedule, Task


def blocks(task: Task) -> list[tuple[int, int]]:
    """Return ranges of equations: the blocks that one would wrap by hand; see the module docstring."""
    cuts = task.cuts
    n = len(cuts.positions) - 1
    works = [_work(task, start, end) for start, end in itertools.pairwise(cuts.positions)]
    known: dict[object, int] = {}
    classes = [known.setdefault(work, len(known)) for work in works]
    for i in range(n):
        if is_alone(task, cuts.positions[i], cuts.positions[i + 1]):
            classes[i] = -1 - i  # unlike any other, so that it stays by itself
    return [(cuts.positions[a], cuts.positions[b]) for a, b in equal_groups(classes)]


def _work(task: Task, start: int, end: int) -> object:
    """The products of a block with their types, or all its equations where it has none.

    What is around them may differ in the first layer (which reads an argument) and in the last (a normalisation).
    """
    ops = [op for op in task.graph.ops[start:end] if op.index not in task.cuts.free]
    ops = [op for op in ops if is_product(op)] or ops
    return tuple((op.primitive, tuple(task.graph.values[v].text for v in op.outputs)) for op in ops)


def find_each_block(task: Task) -> Found:
    """``jax.checkpoint`` on every block."""
    return _on_blocks(task, ())


def find_dots(task: Task) -> Found:
    """``dots_saveable`` on every block: matrix products and convolutions are kept."""
    return _on_blocks(task, _products(task.graph.ops, is_product))


def find_dots_no_batch(task: Task) -> Found:
    """``dots_with_no_batch_dims_saveable`` on every block: products without batch dimensions, no convolutions."""
    return _on_blocks(task, _products(task.graph.ops, is_plain_dot))


def layer_of_nothing(task: Task) -> Found:
    """The body of a loop as one segment that saves nothing."""
    return _layer(task, ())


def layer_of_products(task: Task) -> Found:
    """The body of a loop as one segment that keeps matrix products and convolutions."""
    return _layer(task, _products(task.graph.ops, is_product))


def layer_of_plain_dots(task: Task) -> Found:
    """The body of a loop as one segment that keeps products without batch dimensions."""
    return _layer(task, _products(task.graph.ops, is_plain_dot))


def _layer(task: Task, wanted: tuple[int, ...]) -> Found:
    return Found((tuple(one_segment(task, s, e, wanted=wanted) for s, e in _stretches(task)),))


def is_plain_dot(op: Op) -> bool:
    """Whether an equation is a matrix product without batch dimensions."""
    return op.primitive == "dot_general" and is_unbatched_product(op)


def _products(ops: Iterable[Op], kind: Callable[[Op], bool]) -> tuple[int, ...]:
    return tuple(v for op in ops if kind(op) for v in op.outputs)


def _on_blocks(task: Task, wanted: tuple[int, ...]) -> Found:
    ranges = blocks(task)
    last = len(task.graph.ops)
    schedule = tuple(one_segment(task, s, e, plain=e == last, wanted=wanted) for s, e in ranges)
    return Found((schedule,), (f"{len(schedule)} blocks; the last one is unchanged",))


def find_speed(task: Task) -> Found:
    """Keep matrix products and convolutions between each two cuts."""
    products = _products(task.graph.ops, is_product)
    last = len(task.graph.ops)
    pairs = itertools.pairwise(task.cuts.positions)
    schedule = tuple(one_segment(task, s, e, plain=e == last, wanted=products) for s, e in pairs)
    return Found((schedule,), (f"{len(products)} outputs of products and convolutions, {len(schedule)} segments",))


def find_nothing(task: Task) -> Found:
    """One ``jax.checkpoint`` around the whole function that saves nothing."""
    return Found((_whole(task, plain=False),), ("one segment around the whole function",))


def find_everything(task: Task) -> Found:
    """What ``everything_saveable`` comes to: the function as it is."""
    graph, cuts = task.graph, task.cuts
    if not cuts.limits.forbidden:
        return Found(((plain_segment(graph, cuts, 0, len(graph.ops)),),), ("what plain JAX keeps is kept",))
    return Found((_whole(task, plain=True),), ("what plain JAX saves is saved, except what must be recomputed",))


def _whole(task: Task, plain: bool) -> Schedule:
    make = plain_segment if plain else save_segment
    alone = [stays_plain(task.graph, task.cuts, s, e) for s, e in _stretches(task)]
    pairs = zip(_stretches(task), alone, strict=True)
    return tuple((plain_segment if single else make)(task.graph, task.cuts, s, e) for (s, e), single in pairs)


def _stretches(task: Task) -> Iterator[tuple[int, int]]:
    """Yield the longest ranges between equations that must stay outside segments, and these."""
    graph = task.graph
    outside = graph.apart | task.cuts.limits.pinned
    start = 0
    for op in graph.ops:
        if op.index in outside:
            if op.index > start:
                yield start, op.index
            yield op.index, op.index + 1
            start = op.index + 1
    if start < len(graph.ops):
        yield start, len(graph.ops)
