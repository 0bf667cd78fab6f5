"""What XLA:TPU writes to memory though it computes nothing: rows, parts, pads, heads, spectra.

In: equations and steps, as the stages of ``backend`` hand them over. Out: rules of ``tpu``.

A fusion reads its operands in tiles, so what takes single rows or every second one out of the tiles is a kernel of its
own, and so is what changes the dimensions in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import Facts
from remat_plan.cost.layout import whole_concatenation
from remat_plan.cost.rules import FUSIBLE, Kind
from remat_plan.cost.steps import RegionCost, Step

_SPLIT = 384
"""Multiples of 128 from this length on are transformed in two products, shorter lengths and all others in one."""


def alone(eqn: Any, kind: Kind) -> Kind:
    """Rows are fetched by a kernel of its own, and a pad between elements is one, as of associative scans."""
    is_fused = eqn.primitive.name == "pad" and not any(inside for _, _, inside in eqn.params["padding_config"])
    return kind if is_fused else Kind.OPAQUE


def strides(state: Emitter, facts: Facts, reads: list[int]) -> tuple[int, ...] | None:
    """A slice in strides along a dimension in the tiles is a kernel of its own, but for one of broadcasts.

    That is a broadcast by itself (``AlgebraicSimplifier``): the decay of a linear recurrence is no array at any level
    of its scan.
    """
    source = _broadcast_source(state, reads[0])
    if source is not None:
        key = state.facts.number(("part of broadcasts", facts.key, reads[0]))
        return (state.move(facts.eqn, "broadcast_in_dim", source, key, facts.out_bytes[0]),)
    if all(step == 1 for step in (facts.eqn.params.get("strides") or ())[-2:]):
        return None
    return state.emit(facts.key, Step(tuple(reads), Kind.OPAQUE, facts.name, facts.eqn), facts.out_bytes)


def _broadcast_source(state: Emitter, value: int) -> tuple[int, ...] | None:
    """Return what a value is computed of, element by element, if that is broadcasts of one other; else None."""
    waiting, seen, sources = [value], {value}, set[tuple[int, ...]]()
    while waiting:
        step = state.made_by.get(waiting.pop())
        if step is None or step.kind not in FUSIBLE or len(sources) > 1:
            return None
        if step.primitive == "broadcast_in_dim":
            sources.update([step.reads] if step.reads else [])
            continue
        waiting += [v for v in step.reads if v not in seen]
        seen.update(step.reads)
    return next(iter(sources), ()) if len(sources) < 2 else None


def whole_concatenations(steps: Sequence[Step], users: Sequence[Sequence[int]]) -> list[int]:
    """A concatenation of long rows, or of many parts, is written, unless only products of matrices read it."""
    return [
        index
        for index, step in enumerate(steps)
        if step.primitive == "concatenate"
        and whole_concatenation(step.eqn, step.kind) == Kind.OPAQUE
        and not all(user >= 0 and steps[user].primitive == "dot_general" for user in users[index])
    ]


def merged_heads(steps: Sequence[Step], users: Sequence[Sequence[int]]) -> list[int]:
    """What a batch of products made is transposed in memory before a product reads it, as merged heads are."""
    made = {value: step for step in steps for value in step.writes}

    def is_batch(step: Step | None) -> bool:
        return step is not None and step.primitive == "dot_general" and bool(step.eqn.params["dimension_numbers"][1][0])

    return [
        index
        for index, step in enumerate(steps)
        if step.primitive == "transpose"
        and is_batch(made.get(step.reads[0]))
        and any(user >= 0 and steps[user].primitive == "dot_general" for user in users[index])
    ]


def transforms(state: Emitter, facts: Facts, reads: list[int]) -> tuple[int, ...]:
    """Lower a Fourier transform: products with complex matrices, of three real products each.

    Those of several dimensions have these in the tiles, which pads short ones. A short transform reads its operands as
    products do; a long one (``_SPLIT``) is two, between which all is copied, and its spectrum has all frequencies,
    those of real arrays too, whose second half says nothing new. That real arrays have no imaginary part is not made
    use of: the transform of these zeros along the last of several dimensions is an array, the same for all.
    """
    eqn, given, out = facts.eqn, facts.eqn.invars[0].aval, facts.eqn.outvars[0].aval
    lengths, rank, bytes_of = eqn.params["fft_lengths"], given.ndim, state.facts.bytes
    is_split = lengths[-1] >= _SPLIT and not lengths[-1] % 128
    inner = ((rank - 1, rank - 2), (rank - 2, rank - 1)) if len(lengths) > 1 else None
    shape = (*given.shape[: rank - len(lengths)], *lengths)
    whole = bytes_of(jax.ShapeDtypeStruct(shape, (out if out.dtype.kind == "c" else given).dtype), inner)
    size = whole if is_split and out.dtype.kind == "c" else bytes_of(out, inner)
    is_half = given.dtype.kind != "c" and not is_split
    if is_half and len(lengths) > 1:
        nothing = Step((), Kind.OPAQUE, "dft", eqn)
        reads = [*reads, *state.emit(state.facts.number(("no imaginary part", shape)), nothing, (whole // 2,))]
    between = RegionCost(whole if is_half else 2 * whole)
    name = facts.name if is_split else "dft"
    made = Step(tuple(reads), Kind.OPAQUE, name, eqn, (), facts.flops, between, work=facts.work)
    return state.emit(facts.key, made, (size,))
