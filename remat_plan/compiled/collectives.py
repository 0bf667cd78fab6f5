"""What the devices of a compiled program send each other, by the pass in which they do.

In: the text of an optimized module. Out: ``Collective``s by pass and kind, loops counted by their trip count.

XLA:TPU hides some in fusions, which are walked like calls; an all-reduce whose fusion keeps a device's part is a
reduce-scatter; gathers and sums beside a matrix product become rings of permutes. Passes are told by the names that JAX
gives to instructions: what ``jax.checkpoint`` runs again is a ``rematted_computation``, what is transposed is of the
backward pass.

Limits: a loop without a known trip count counts once. Around a collective that XLA adds without a name, that of the
instruction counts which calls its computation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from remat_plan.compiled.hlo import Computation, Instruction, Module, parse
from remat_plan.compiled.trips import Constants, steps_of

FORWARD, AGAIN, BACKWARD = PASSES = "forward", "again", "backward"
_KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "collective-broadcast")
_CALLED = ("calls", "to_apply", "branch_computations", "true_computation", "false_computation")


@dataclass(frozen=True, slots=True)
class Collective:
    """All collectives of one kind in one pass.

    Attributes:
        pass_name: ``"forward"``, ``"again"`` (what recomputation repeats) or ``"backward"``.
        kind: HLO's name of it.
        count: how often one runs.
        size_bytes: of an all-gather what a device holds afterwards, of all others what it gives.
    """

    pass_name: str
    kind: str
    count: int
    size_bytes: int


def collectives(text: str) -> tuple[Collective, ...]:
    """The collectives of a module; none for a text without an entry computation.

    >>> collectives('''ENTRY %main (x: f32[4]) -> f32[8] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[8]{0} all-gather(%x), dimensions={0}, metadata={op_name="jit(f)/transpose(jvp())/mul"}
    ... }''')
    (Collective(pass_name='backward', kind='all-gather', count=1, size_bytes=32),)
    """
    module = parse(text) if any(f" {kind}" in text for kind in _KINDS) else None
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for key, times, size_bytes in _walk(module, module.entry, 1, {}, "") if module is not None else ():
        sums[key][0] += times
        sums[key][1] += int(times * size_bytes)
    order = sorted(sums, key=lambda key: (PASSES.index(key[0]), _KINDS.index(key[1])))
    return tuple([Collective(*key, *sums[key]) for key in order])


def _walk(
    module: Module, inside: Computation, times: int, around: Constants, name: str
) -> Iterator[tuple[tuple[str, str], int, float]]:
    """Those of a computation that runs so often; ``name`` is that of the instruction which calls it."""
    for found in inside.instructions.values():
        own = found.word("op_name") or name
        kind = found.opcode.removesuffix("-start")
        if kind in _KINDS:
            is_part = kind == "all-reduce" and "all-reduce-scatter" in inside.name
            yield (_pass(own), "reduce-scatter" if is_part else kind), times, _bytes(inside, found, kind)
        elif found.opcode == "while":
            count, known = steps_of(module, inside, found, around)
            for part in module.called(found, "body"):
                yield from _walk(module, part, times * (1 if count is None else count), known, own)
        elif found.opcode in ("fusion", "call", "conditional", "async-start"):
            for part in module.called(found, *_CALLED):
                yield from _walk(module, part, times, {}, own)


def _pass(name: str) -> str:
    if "rematted_computation" in name:
        return AGAIN
    return BACKWARD if "transpose(" in name else FORWARD


def _bytes(inside: Computation, found: Instruction, kind: str) -> float:
    operands = [inside.operand(found, index) for index in range(len(found.operands))]
    given = sum(operand.bytes for operand in operands if operand is not None)
    if kind != "all-gather":
        return given
    return found.bytes - given if found.opcode != kind else found.bytes  # of what is started the type has both
