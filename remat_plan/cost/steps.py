"""The records of a lowered program: steps over numbered values.

In and out: plain data, made by ``program``, read by ``fusion``, ``buffers`` and ``memory``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from remat_plan.cost.backend import GENERIC, Backend
from remat_plan.cost.rules import FUSIBLE, MOVES, Kind
from remat_plan.cost.work import ELEMENTWISE

SCATTERS = frozenset(
    "scatter scatter-add scatter_add scatter-mul scatter_mul scatter-min scatter_min scatter-max scatter_max "
    "pool_scatter".split()
)
_IN_PLACE = SCATTERS | {"dynamic_update_slice"}
NOBODY = -1
"""In the place of a step or kernel: whoever else makes or reads a value, such as the caller."""

Place = tuple[int, ...]
"""The number of an operation of the whole program; where it is a call, and so on, of one inside it. Empty: of none."""

ELSEWHERE = MOVES | {"gather", "pool_spread"}
"""Element-wise kernels whose elements are not those of the operands at the same place."""


Buffer = tuple[int, int, int]
"""A temporary: its bytes, the first and the last step that it is there in."""


class RegionCost(NamedTuple):
    """What an equation with jaxprs inside (a loop, a branch) costs.

    Attributes:
        transient_bytes: needed inside, beyond its inputs and outputs (a carry is both).
        seconds: of all its steps.
        matrix_flops: of all its steps, in products and convolutions.
        live_bytes: of ``transient_bytes``, what is needed in each step of the body; empty where that is not known.
        buffers: the temporaries of the body.
        host_bytes: written to the host's memory, and kept there.
        link_seconds: on the link to the host, of a single transfer; what is inside has its own in ``seconds``.
    """

    transient_bytes: int = 0
    seconds: float = 0.0
    matrix_flops: float = 0.0
    live_bytes: tuple[int, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    host_bytes: int = 0
    link_seconds: float = 0.0


NO_REGION = RegionCost()


@dataclass(slots=True)
class Step:
    """One equation: which values it reads and writes, and what it costs.

    ``library`` tells whether a library call may take it in (1) or starts with it (2); ``unary`` that computing it again
    reads no more memory than reading its result. ``equations`` counts the equal equations it stands for. ``place`` is
    that of the operation which it is of. ``carries`` are the operands of a loop that its
    results are written over, with those results. ``work`` is the class of its FLOPs (see ``work``). ``splits_rows``
    tells a copy into another order after which neighbours in memory are none (see ``layout``). ``key`` tells it from
    other steps on the same values; None where it equals no other one.
    """

    reads: tuple[int, ...]
    kind: Kind
    primitive: str
    eqn: Any
    writes: tuple[int, ...] = ()
    flops: float = 0.0
    region: RegionCost = NO_REGION
    library: int = 0
    unary: bool = False
    equations: int = 1
    carries: tuple[tuple[int, int], ...] = ()
    work: str = ELEMENTWISE
    splits_rows: bool = False
    place: Place = ()
    key: int | None = None

    def behind(self, reads: tuple[int, ...]) -> Step:
        """The same step on other values, which writes nothing yet."""
        costs = self.flops, self.region, self.library, self.unary, self.equations
        rest = self.work, self.splits_rows, self.place, self.key
        return Step(reads, self.kind, self.primitive, self.eqn, (), *costs, (), *rest)


@dataclass(slots=True)
class Program:
    """Steps in execution order over numbered values.

    ``sizes[v]`` are the bytes of value ``v``; ``inputs`` and ``outputs`` are values that the caller owns;
    ``pinned`` values are materialised whatever reads them; ``storage[v]``, for the values behind a barrier,
    is the value whose buffer they live in; ``backend`` is the one that the program was lowered for. In the body of
    a loop, ``carried[v]`` is the input whose memory output ``v`` is written over, and ``around_bytes`` are needed for
    what is made before it.
    """

    steps: list[Step]
    sizes: list[int]
    inputs: frozenset[int]
    outputs: tuple[int, ...]
    storage: Mapping[int, int] = field(default_factory=dict)
    backend: Backend = GENERIC
    carried: Mapping[int, int] = field(default_factory=dict)
    around_bytes: int = 0
    pinned: frozenset[int] = frozenset()


def can_write_in_place(step: Step) -> bool:
    """Tell whether XLA may give the step's output the buffer of an input that dies there."""
    if step.kind in FUSIBLE:
        return step.primitive not in ELSEWHERE
    return step.primitive in _IN_PLACE


def live_steps(steps: list[Step], outputs: Sequence[int]) -> list[Step]:
    """Return the steps that the outputs depend on, and those with effects."""
    used = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if step.kind == Kind.BARRIER and not used.issuperset(step.writes):
            pairs = [(r, w) for r, w in zip(step.reads, step.writes, strict=True) if w in used]
            step = replace(step, reads=tuple([r for r, _ in pairs]), writes=tuple([w for _, w in pairs]))
        if used.isdisjoint(step.writes) and (step.eqn is None or not step.eqn.effects):
            continue
        used.update(step.reads)
        kept.append(step)
    kept.reverse()
    return kept


def as_compiled(program: Program) -> Program:
    """Return a program, all of whose steps are known, as its backend has it."""
    for rule in program.backend.of("whole"):
        program = rule(program)
    return program
