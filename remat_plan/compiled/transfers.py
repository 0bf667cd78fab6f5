"""Transfers between the memory of a device and its host's in a compiled module.

In: an instruction. Out: ``Transfer``, or None. XLA puts what is on the host into memory space 5, and moves it by a
copy, or by an update or a slice of what a loop stacks there; started and awaited apart (``-start``, ``-done``) or at
once.
"""

from __future__ import annotations

from typing import NamedTuple

from remat_plan.compiled.hlo import Computation, Instruction

_MOVES = ("copy", "fusion", "dynamic-update-slice", "dynamic-slice", "slice")


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
