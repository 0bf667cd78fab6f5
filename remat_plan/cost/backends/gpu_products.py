"""Products of matrices of XLA:GPU: several with a common operand are one, and the library has memory for some.

In: a lowered program; its kernels. Out: the program with products merged; by kernel the bytes of a workspace.

``x @ q``, ``x @ k`` and ``x @ v`` become one product of ``x`` with an array of all three matrices (``DotMerger``). The
result is there until the last reader of any part has run; a part that another product reads is copied at once. So do
their gradients become one product of ``x`` with an array of the gradients behind it, and so do products of one matrix
with several arrays. None of them may depend on another one, and they grow no further than a limit.

Limits: a merged product runs as soon as its last operand is there; XLA:GPU first runs what frees more memory. Of
batches of products XLA:GPU swaps the sides at times, and finds common operands that are not seen here.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import READ_ROW, WRITE_ROW, Kind
from remat_plan.cost.steps import Program, Step
from remat_plan.cost.work import is_product

_MERGED_BYTES = 64 * 2**20
"""Products take in others, from the smallest to the largest, until the result and what is not common have more than
this: read off modules of up to twelve products of 1 to 80 MiB. Eight of 8.03 MiB are one, the ninth is not."""

_WITH_WORKSPACE = frozenset({"gpu:h100", "gpu:h200"})
"""Older GPUs have no more than 4 MiB for any product."""

_ROW_WORKSPACE_BYTES = 32 * 2**20
"""What cuBLAS is given for a product that reads or writes a row where it lies (``dynamic_slice_fusion``). For other
products XLA:GPU cuts it down to 4 MiB."""


def merge_products(program: Program) -> Program:
    """Return a program with one product in the place of several that have an operand in common."""
    groups = _groups(program)
    if not groups:
        return program
    sizes, placed = [*program.sizes], dict[int, Sequence[Step]]()
    for group in groups:
        steps = [program.steps[position] for position in sorted(group.positions)]
        first, others = steps[0], tuple([v for step in steps for v in step.reads if v != group.shared])
        whole, made = len(sizes), len(sizes) + 1
        sizes += [sum([sizes[v] for v in others]), sum([sizes[step.writes[0]] for step in steps])]
        joined = Step(others, Kind.CHEAP, "concatenate", first.eqn, (whole,), place=first.place)
        flops = sum([step.flops * step.equations for step in steps])
        product = replace(first, reads=(group.shared, whole), writes=(made,), flops=flops, equations=1, key=None)
        parts = [Step((made,), Kind.CHEAP, "slice", s.eqn, s.writes, unary=True, place=s.place) for s in steps]
        placed.update(dict.fromkeys(group.positions, ()))
        placed[min(group.positions)] = joined, product, *parts
    found = [made for position, step in enumerate(program.steps) for made in placed.get(position, (step,))]
    return replace(program, steps=list(_in_order(found)), sizes=sizes)


def row_workspace(program: Program, kernels: Sequence[Kernel], hardware: Hardware) -> Mapping[int, int]:
    """Return, by the position of a kernel, what cuBLAS is given for a product that reads or writes a row of a loop."""
    if hardware.name not in _WITH_WORKSPACE:
        return {}
    rows = {value for step in program.steps if step.primitive == READ_ROW for value in step.writes}
    rows.update([value for step in program.steps if step.primitive == WRITE_ROW for value in step.reads])
    return {
        position: _ROW_WORKSPACE_BYTES
        for position, kernel in enumerate(kernels if rows else ())
        if not rows.isdisjoint([*kernel.reads, *kernel.step.writes])
        and any(work.startswith("product") for work in kernel.work)
    }


def calls_library(kernel: Kernel) -> bool:
    """Tell whether a kernel is a call of cuBLAS or cuDNN, which hands out its result with the workspace, in a tuple.

    ``HeapSimulator`` lets an instruction write over the result of its own operand only, which is the tuple.
    """
    return any(map(is_product, kernel.work))


@dataclass(slots=True)
class _Group:
    """Products that are one: their common operand and positions, their bits, and those of what they depend on."""

    shared: int
    positions: list[int]
    bits: int = 0
    before: int = 0


def _groups(program: Program) -> list[_Group]:
    """Find the products that are merged.

    Operands are tried in the order in which they are made, but rows of loops last: XLA:GPU numbers those anew.
    """
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for position, step in enumerate(program.steps):
        if step.primitive == "dot_general" and len(set(step.reads)) == 2:
            for side in (0, 1):
                alike[step.reads[side], *_signature(step.eqn, side)].append(position)
    several = [(key[0], positions) for key, positions in alike.items() if len(positions) > 1]
    if not several:
        return []
    rows = {value for step in program.steps if step.primitive == READ_ROW for value in step.writes}
    several.sort(key=lambda found: (found[0] in rows, found[0]))
    needs = _needs(program.steps, sorted({position for _, positions in several for position in positions}))
    groups, merged = list[_Group](), set[int]()
    for shared, positions in several:
        if all(needs[after][1] & needs[before][0] for before, after in itertools.pairwise(positions)):
            continue  # each one depends on the one before
        sizes = {p: _bytes(program.steps[p], shared, program.sizes) for p in positions if p not in merged}
        left = sorted(sizes, key=sizes.__getitem__)
        while len(left) > 1:
            group, size, rest = _Group(shared, []), 0, list[int]()
            for position in left:
                bit, before = needs[position]
                if size > _MERGED_BYTES or not _may_join(group, bit, before, groups):
                    rest.append(position)
                    continue
                group.positions.append(position)
                group.bits, group.before, size = group.bits | bit, group.before | before, size + sizes[position]
            if len(group.positions) > 1:
                groups.append(group)
                merged.update(group.positions)
            left = rest
    return groups


def _signature(eqn: Any, side: int) -> tuple[Any, ...]:
    """What has to be equal for products with the same operand on a side; which side that is, of batches only."""
    contract, batch = eqn.params["dimension_numbers"]
    types = tuple([a.aval.dtype for a in (*eqn.invars, *eqn.outvars)])
    shape, place = eqn.invars[side].aval.shape, side if batch[side] else None
    return shape, contract[side], batch[side], place, types, eqn.params["precision"]


def _bytes(step: Step, shared: int, sizes: Sequence[int]) -> int:
    """Bytes of the result of a product, and of the operand that is not common."""
    return sum([sizes[value] for value in (*step.reads, *step.writes) if value != shared])


def _needs(steps: Sequence[Step], positions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """By position of a product a bit of its own, and those of the ones that it depends on."""
    bits = {position: 1 << number for number, position in enumerate(positions)}
    behind: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for position in range(positions[0], positions[-1] + 1):
        step, mask = steps[position], 0
        for value in step.reads:
            mask |= behind.get(value, 0)
        if position in bits:
            found[position] = bits[position], mask
            mask |= bits[position]
        if mask:
            behind.update(dict.fromkeys(step.writes, mask))
    return found


def _may_join(group: _Group, bit: int, before: int, others: Sequence[_Group]) -> bool:
    """Tell whether neither a product nor a group depends on the other one, nor by way of other groups."""
    return not (_all_before(before, others) & group.bits or _all_before(group.before, others) & bit)


def _all_before(mask: int, groups: Sequence[_Group]) -> int:
    """Products that others depend on, with what these depend on as parts of groups."""
    left = [*groups]
    while (found := next((group for group in left if group.bits & mask), None)) is not None:
        mask |= found.bits | found.before
        left.remove(found)
    return mask


def _in_order(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield steps in their order, but each one after what it reads."""
    maker = {value: position for position, step in enumerate(steps) for value in step.writes}
    missing = [{maker[value] for value in step.reads if value in maker} for step in steps]
    readers: dict[int, list[int]] = defaultdict(list)
    for position, makers in enumerate(missing):
        for made in makers:
            readers[made].append(position)
    ready = [position for position, makers in enumerate(missing) if not makers]
    while ready:
        position = heapq.heappop(ready)
        yield steps[position]
        for reader in readers[position]:
            missing[reader].discard(position)
            if not missing[reader]:
                heapq.heappush(ready, reader)
