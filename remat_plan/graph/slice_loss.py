"""The loss that a segment ends in, as one sum over slices.

In: a ``Slicer``, what the segment reads and what leaves it. Out: the segment as a function of what it reads, with a
``lax.scan`` that is differentiated for one scalar that it adds up. That is the one that the segment ends in, where it
is linear in sums over slices, but for terms that do not depend on them; or the only sum that is given a cotangent.
None where there are more, or slices that are.

Nothing of such a loop need run twice: a slice's part of the gradient can be made together with its part of the loss
(``Choice.gradient_first``). What else leaves the segment (logits, how many labels were right) is made of sums and
slices as they are.

What is added behind the loop and does not depend on the slices (a penalty on weights) is no part of any slice. Within
slices it counts as zero; it is carried through the operations behind the loop by itself, and added to what the loop
makes. Its gradient is JAX's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from jax import numpy as jnp

from remat_plan import _compat
from remat_plan.graph.flatten import depending
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.slicer import Slicer
from remat_plan.graph.uses import makers

_LINEAR = frozenset(
    {"neg", "convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy", "name"}
)
_ADDITIONS = frozenset({"add", "sub", "add_any"})


def summed(
    slicer: Slicer, reads: Sequence[int], leaves: Sequence[int], given: Collection[int]
) -> Callable[..., list[Any]] | None:
    """The segment as a function of what it reads, see the module docstring.

    ``given``: what of the values that leave it is given a cotangent. What else a linear end reads (how many labels
    count, say) is made before the loop.
    """
    apart, graph = slicer.apart, slicer.graph
    asked = {v for v in _asked(graph, apart.after, given) if v in apart.sums or v in dict(apart.stacked)}
    tail = _find_tail(slicer, *given) if len(given) == 1 else None
    if not asked.issubset(apart.sums) or (tail is None and len(asked) != 1):
        return None
    (total,) = asked if tail is None else given
    aval = graph.values[total].aval
    if aval.shape or not jnp.issubdtype(aval.dtype, jnp.floating):
        return None
    loss = _Loss(slicer, total, tail or ())
    behind = [v for i in loss.tail for v in graph.ops[i].reads if v not in loss.moving]
    around = [v for i in apart.before for v in graph.ops[i].outputs]
    before = makers(graph, [*behind, *around], {*reads})
    loop = [*apart.sums, *(v for v, _ in apart.stacked)]
    after = apart.after if tail is None else makers(graph, [v for v in leaves if v != total], {*reads, *loop, total})
    left = {*leaves, *(v for i in after for v in graph.ops[i].reads)}
    sums = [total, *(v for v in apart.sums if v in left and v != total)]

    def run(*args: Any) -> list[Any]:
        env = dict(zip(reads, args, strict=True))
        slicer.run_whole(before, env)
        slicer.loop(env, sums, lambda made: loss.part(made, env))
        beside = loss.terms_beside(env)
        env[total] = env[total] if beside is None else env[total] + beside
        slicer.run_whole(after, env)
        return [env[v] for v in leaves]

    return run


def _asked(graph: Graph, ops: Sequence[int], given: Collection[int]) -> set[int]:
    """The values that are given a cotangent by operations, or are ``given`` one."""
    asked = set(given)
    for op in [graph.ops[i] for i in ops]:
        pairs = zip(op.operands, graph.needs[op.kind].reached, strict=True)
        asked.update([v for v, reached in pairs if reached])
    return asked


def _find_tail(slicer: Slicer, loss: int) -> list[int] | None:
    """The operations behind the loop that make the loss of the value that is split; None unless they are linear in
    it."""
    graph, found = slicer.graph, []
    moving = _depending(slicer).intersection(slicer.apart.sums)
    path = makers(graph, [loss], slicer.apart.sums)
    for index in sorted({*path}.intersection(slicer.apart.after)):
        op = graph.ops[index]
        moves = [v in moving for v in op.operands]
        if any(moves):
            if not _is_linear(op, moves):
                return None
            moving.update(op.outputs)
            found.append(index)
    return found if loss in moving else None


def _depending(slicer: Slicer) -> set[int]:
    """The values that are made of the one that the segment is split by."""
    order = sorted([*(i for i, _ in slicer.apart.axes), *slicer.apart.after])
    return depending([slicer.graph.ops[i] for i in order], [slicer.value])


def _is_linear(op: Op, moving: Sequence[bool]) -> bool:
    """Whether an operation is linear in those operands that are made of sums, with what is added to them left out."""
    name = op.primitive
    if name == "mul":
        return not all(moving)
    kinds = [_compat.is_float(a.aval) for a in (*op.eqn.invars, *op.eqn.outvars)]
    if name == "div":
        return not moving[1] and all(kinds)
    if name == "convert_element_type" and not kinds[-1]:
        return False
    return name in _ADDITIONS or name in _LINEAR


class _Loss:
    """The scalar that slices add up, and the operations behind the loop that it is made by.

    Attributes:
        moving: the values behind the loop that depend on the slices.
    """

    def __init__(self, slicer: Slicer, loss: int, tail: Sequence[int]):
        self.slicer, self.loss, self.tail = slicer, loss, tail
        ops = [slicer.graph.ops[i] for i in tail]
        self.moving = _depending(slicer).intersection(slicer.apart.sums).union(*[op.outputs for op in ops])

    def terms_beside(self, env: dict[int, Any]) -> Any | None:
        """The part of the loss that no slice has a part of; None where there is none.

        Only what is added, and what is made of it, is computed: sums of zero might be divided by zero.
        """
        graph, found = self.slicer.graph, dict[int, Any]()
        for index in self.tail:
            op = graph.ops[index]
            if found.keys() & set(op.reads) or self.adds(op):
                values = [
                    found.get(v, _compat.zeros(a.aval)) if v in self.moving else self.read(env, v)
                    for v, a in zip(op.operands, op.eqn.invars, strict=True)
                ]
                found.update(zip(op.outputs, _compat.bind(op.eqn, values), strict=True))
        return found.get(self.loss)

    def adds(self, op: Op) -> bool:
        """Whether an operation adds something that does not depend on the slices."""
        return op.primitive in _ADDITIONS and any(v not in self.moving for v in op.operands)

    def read(self, env: dict[int, Any], v: int) -> Any:
        return self.slicer.graph.literals[-1 - v] if v < 0 else env[v]

    def part(self, made: dict[int, Any], env: dict[int, Any]) -> dict[int, Any]:
        """The part of one slice, of what it made, as if nothing else were added behind the loop."""
        made, graph = dict(made), self.slicer.graph
        for index in self.tail:
            op = graph.ops[index]
            skips = [op.primitive in _ADDITIONS and v not in self.moving for v in op.operands]
            values = [
                _compat.zeros(a.aval) if skip else self.read(made if v in self.moving else env, v)
                for v, a, skip in zip(op.operands, op.eqn.invars, skips, strict=True)
            ]
            made.update(zip(op.outputs, _compat.bind(op.eqn, values), strict=True))
        return {self.loss: made[self.loss]}
