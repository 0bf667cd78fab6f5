"""Kernels that write what they read in another order.

In: a kernel of a ``Module``. Out: how many of its operands are read in strides.

XLA:CPU makes one kernel of a transposed copy and the chain of operations before it, and computes the chain in the order
in which the copy is written: every operand is read in strides. ``Hardware.kernel_seconds`` charges by the operand.
Which copies are slow is the rule of the evaluator (``cost.layout.splits_rows``): one that leaves rows whole ran at 45
GB/s (2 x 12.6 MB), against 41 of a copy in order, and 6 to 9 of copies that split rows (XLA:CPU, two cores).

Limits: as in the evaluator, operands much smaller than what is written are broadcast and not counted, nor are copies
that convolutions read (see ``cost.emitter``).
"""

from __future__ import annotations

from remat_plan.compiled.hlo import Computation, Instruction, Module
from remat_plan.cost.layout import splits_rows

_COPIES = frozenset({"copy", "transpose"})
_VIEWS = frozenset({"bitcast", "reshape", "get-tuple-element"})


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
            if other.opcode in _VIEWS:
                names.add(other.name)
    return False
