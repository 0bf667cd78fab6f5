"""What one kernel of a compiled module reads, writes and computes.

In: an instruction of a ``Module``, a fusion or one by itself. Out: ``Traffic``: bytes at its border, FLOPs inside; for
what moves values between the device and its host, ``Transfer``.

Inside a fusion nothing is written to memory, and only those elements are computed that the result needs. So elements
are counted from the result back to the parameters: a slice wants as many as it has, an update in place none of what
it leaves as it is, a reduction all that it sums. A step of a loop that reads one layer of stacked residuals is charged
with one layer.

XLA:CPU makes one kernel of a transposed copy and the chain of operations before it, and computes the chain in the order
in which the copy is written: every operand is read in strides (``turned_operands``). Which copies are slow is the rule
of the evaluator (``splits_rows``): one that leaves rows whole ran at 45 GB/s (2 x 12.6 MB), against 41 of a copy in
order, and 6 to 9 of copies that split rows (two cores).

XLA puts what is on the host into memory space 5, and moves it by a copy, or by an update or a slice of what a loop
stacks there; started and awaited apart (``-start``, ``-done``) or at once.

Limits: an element that is read twice in one kernel is read from memory once. An update of a parameter is taken to be in
place. Caches between kernels are not known. As in the evaluator, operands much smaller than what is written in another
order are broadcast and not counted, nor are copies that convolutions read (see ``cost.emitter``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.compiled.operations import work_of
from remat_plan.cost.layout import splits_rows
from remat_plan.cost.work import is_product

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATED_WITH = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations that may write a part of their first operand in place, and which operand is the part."""
_RENAMES = frozenset({"bitcast", "reshape"})
_COPIES = frozenset({"copy", "transpose"})
_MOVES = ("copy", "fusion", "dynamic-update-slice", "dynamic-slice", "slice")


class Traffic(NamedTuple):
    """What one run of one kernel reads and writes, its FLOPs by class of work (``cost.work``)."""

    moved_bytes: float
    work: Mapping[str, float]

    @property
    def matrix_flops(self) -> float:
        """FLOPs of products and convolutions."""
        return sum(flops for work, flops in self.work.items() if is_product(work))


def traffic(module: Module, inside: Computation, found: Instruction) -> Traffic:
    """What a kernel reads, writes and computes; ``inside`` is the computation that it is in."""
    callee = module.called(found, "calls") if found.opcode in ("fusion", "fusion-start") else []
    return _fusion(module, callee[0]) if callee else _single(inside, found)


def _fusion(module: Module, body: Computation) -> Traffic:
    wanted, moved = _wanted(body)
    work: Counter[str] = Counter()
    for found in body.instructions.values():
        if not (elements := wanted.get(found.name, 0.0)):
            continue
        if found.opcode == "parameter":
            moved += elements * _item_bytes(found)
        elif found.opcode == "fusion":
            for callee in module.called(found, "calls"):
                work.update(_fusion(module, callee).work)
        else:
            work.update(_work(body, found, elements))
    return Traffic(moved, work)


def _work(inside: Computation, found: Instruction, elements: float) -> dict[str, float]:
    """FLOPs of one operation by its class of work, none of what only moves."""
    kind, flops = work_of(inside, found, elements, _read_elements(inside, found, elements))
    return {kind: flops} if flops else {}


def _single(inside: Computation, found: Instruction) -> Traffic:
    """An instruction that is a kernel by itself; what it updates it updates in place."""
    elements = float(_updated(inside, found) if found.opcode in _UPDATED_WITH else found.size)
    operands = [inside.instructions[name] for name in found.operands if name in inside.instructions]
    reads = [_wanted_of(inside, found, index, elements, True) for index in range(len(operands))]
    read = sum(n * _item_bytes(operand) for n, operand in zip(reads, operands, strict=True))
    return Traffic(read + _result_bytes(inside, found), _work(inside, found, elements))


def _result_bytes(inside: Computation, found: Instruction) -> float:
    """Bytes that an instruction by itself writes."""
    arrays = found.arrays
    if found.opcode in _UPDATED_WITH:
        return _updated(inside, found) * _item_bytes(found)
    if found.opcode.endswith("-start") and found.opcode != "all-reduce-start":
        arrays = arrays[len(found.operands) :]  # the operands come first; of a copy, what is as large
    elif found.opcode == "custom-call" and len(arrays) > 1:
        last = arrays[-1]  # of single bytes in a row is the memory that a library call works in
        is_workspace = last.kind in ("u", "s") and last.item_bytes == 1 and len(last.shape) == 1
        arrays = arrays[:-1] if is_workspace else arrays
    return sum(array.bytes for array in arrays)


def _outputs(body: Computation) -> list[Instruction]:
    """What a fusion returns."""
    if body.root.opcode != "tuple":
        return [body.root]
    return [body.instructions[name] for name in body.root.operands if name in body.instructions]


def _wanted(body: Computation) -> tuple[dict[str, float], float]:
    """So many elements of each instruction are needed for the results of a fusion, of which so many bytes are written.

    None of a parameter that is handed on is.
    """
    wanted: dict[str, float] = {}
    updates: set[str] = set()
    written = 0.0
    for output in _outputs(body):
        elements, size = output.size, output.bytes
        if (updated := _in_place(body, output)) is not None:
            updates.add(updated.name)
            elements = _updated(body, updated)
            size = elements * _item_bytes(output)
        wanted[output.name] = float(elements)
        written += size if output.opcode != "parameter" else 0.0
    for found in reversed(body.instructions.values()):
        elements = wanted.get(found.name, 0.0)
        if not elements or (found is body.root and found.opcode == "tuple"):
            continue
        for index, name in enumerate(found.operands):
            if (operand := body.instructions.get(name)) is not None:
                more = _wanted_of(body, found, index, elements, found.name in updates)
                wanted[name] = min(float(operand.size), wanted.get(name, 0.0) + more)
    return wanted, written


def _wanted_of(inside: Computation, found: Instruction, index: int, elements: float, in_place: bool) -> float:
    """So many elements of an operand are needed for so many of an operation's result."""
    operand = inside.operand(found, index)
    size = float(operand.size) if operand is not None else 0.0
    if found.opcode in _SLICES:
        return min(size, elements) if index == 0 else size
    if found.opcode in _UPDATED_WITH:
        if index:
            return size
        if not in_place:
            return min(size, elements)
        return 0.0 if found.opcode == "dynamic-update-slice" else float(_updated(inside, found))
    if size <= found.size:
        return min(size, elements)
    return size * min(1.0, elements / max(found.size, 1))


def _in_place(body: Computation, found: Instruction) -> Instruction | None:
    """The update that a result is, if it writes a part of a parameter; None for all else."""
    while found.opcode in _RENAMES and (source := body.operand(found, 0)) is not None:
        found = source
    if found.opcode not in _UPDATED_WITH:
        return None
    target = body.operand(found, 0)
    while target is not None and target.opcode in _RENAMES:
        target = body.operand(target, 0)
    return found if target is not None and target.opcode == "parameter" else None


def _updated(inside: Computation, found: Instruction) -> int:
    """Elements that an update writes."""
    part = inside.operand(found, _UPDATED_WITH[found.opcode])
    return found.size if part is None else part.size


def _read_elements(inside: Computation, found: Instruction, elements: float) -> float:
    """Elements of the operands that an operation combines: of half of them, the others are what it starts with."""
    count = max(1, len(found.operands) // 2) if found.opcode == "reduce" else len(found.operands)
    first = 2 if found.opcode == "scatter" else 0
    return sum(_wanted_of(inside, found, index, elements, True) for index in range(first, count))


def _item_bytes(found: Instruction) -> float:
    return found.bytes / found.size if found.size else 0.0


def turned_operands(module: Module, inside: Computation, found: Instruction) -> int:
    """How many operands a kernel writes in another order than it reads them."""
    if found.opcode in _COPIES:
        return int(_turns(inside, found) and not _is_for_convolution(inside, found))
    if found.opcode != "fusion":
        return 0
    bodies = module.called(found, "calls")
    strided = _read_in_strides(bodies[0]) if bodies else 0
    return strided if strided and not _is_for_convolution(inside, found) else 0


def _read_in_strides(body: Computation) -> int:
    """Parameters of a fusion that are read for a copy into another order, and are about as large as it."""
    turns = [found for found in body.instructions.values() if found.opcode in _COPIES and _turns(body, found)]
    if not turns:
        return 0
    written = max(turn.bytes for turn in turns)
    read = {name for turn in turns for name in turn.operands}
    for found in reversed(body.instructions.values()):
        if found.name in read:
            read.update(found.operands)
    parameters = (found for found in body.instructions.values() if found.opcode == "parameter")
    return sum(2 * found.bytes >= written for found in parameters if found.name in read)


def _turns(inside: Computation, found: Instruction) -> bool:
    """Whether a copy splits rows.

    >>> from remat_plan.compiled.hlo import parse
    >>> entry = parse('''ENTRY %main (x: f32[4,8]) -> f32[8,4] {
    ...   %x = f32[4,8]{1,0} parameter(0)
    ...   ROOT %y = f32[8,4]{1,0} transpose(%x), dimensions={1,0}
    ... }''').entry
    >>> _turns(entry, entry.root)
    True
    """
    read = inside.operand(found, 0)
    if read is None or not read.arrays or not found.arrays:
        return False
    shape = read.arrays[0].shape
    source = found.numbers("dimensions") if found.opcode == "transpose" else tuple(range(len(shape)))
    return splits_rows(shape, read.minor_first[::-1], [source[d] for d in reversed(found.minor_first)])


def _is_for_convolution(inside: Computation, found: Instruction) -> bool:
    """Whether a convolution reads a result, directly or by another view of it."""
    names = {found.name}
    for other in inside.instructions.values():
        if not names.isdisjoint(other.operands):
            if other.opcode == "convolution":
                return True
            if other.opcode in _RENAMES | {"get-tuple-element"}:
                names.add(other.name)
    return False


class Transfer(NamedTuple):
    """So many bytes on their way to the host, or ``returning`` from it."""

    size_bytes: float
    returning: bool


def transfer(inside: Computation, found: Instruction) -> Transfer | None:
    """Return what an instruction moves between the device and the host; None where it moves nothing.

    >>> from remat_plan.compiled.hlo import parse
    >>> entry = parse('''ENTRY %main (x: f32[8]) -> f32[8] {
    ...   %x = f32[8]{0} parameter(0)
    ...   ROOT %y = f32[8]{0:S(5)} copy(%x)
    ... }''').entry
    >>> transfer(entry, entry.root)
    Transfer(size_bytes=32.0, returning=False)
    """
    name = found.opcode.removesuffix("-start")
    if name not in _MOVES:
        return None
    # Of what is started the type has the operands, the result and a context; of a copy the result comes first.
    started = found.opcode != name
    made = found.arrays[0 if name == "copy" else -2 if started else 0 :] if found.arrays else ()
    operands = [a for n in found.operands if n in inside.instructions for a in inside.instructions[n].arrays]
    if not made or not any(array.on_host for array in (*made[:1], *operands)):
        return None
    on_device = [array.bytes for array in (made[0], *operands) if not array.on_host]
    return Transfer(max(on_device, default=0.0), not made[0].on_host)
