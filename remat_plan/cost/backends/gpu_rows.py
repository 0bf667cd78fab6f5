"""Reductions of rows that a kernel makes on its way.

In: a program and its kernels. Out: by kernel, the reductions that need no launch of their own.

A normalisation or softmax reads each row once, reduces it and writes what it makes of it. XLA:GPU makes one kernel of
an array, its reduction and the only step that joins them, ``x - max(x)`` or ``x / sum(x)``
(``SoftmaxRewriterTriton``), and computes that in every reader of the result, with other reductions of the same rows
(``PriorityFusion``). A result that is saved for a backward pass behind a barrier is an array, and so is what other
kernels reduce with its help.

Limits: of what XLA finds worth computing several times, we know only that sums of ``exp`` and the like are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import EXPENSIVE, FUSIBLE, MOVES, Kind
from remat_plan.cost.steps import NOBODY, Program, Step
from remat_plan.cost.work import reduces_rows


@dataclass(slots=True, eq=False)
class _Reduction:
    """A reduction of rows.

    Attributes:
        bytes: of its result.
        sources: what it is made of.
        joins: the steps that join its result with whole rows again.
        is_kept: whether its result is an array.
        position: of its kernel, once that is found.
        rows: the arrays that the kernel reads.
        is_dear: whether it computes functions on the way.
        readers: the kernels that read these arrays again.
    """

    bytes: int
    sources: frozenset[int]
    joins: list[Step] = field(default_factory=list)
    is_kept: bool = False
    position: int = NOBODY
    rows: frozenset[int] = frozenset()
    is_dear: bool = False
    readers: list[int] = field(default_factory=list)

    @property
    def starts_a_kernel(self) -> bool:
        """Whether it makes one with the only step that joins its result with what was reduced."""
        return not self.is_kept and len(self.joins) == 1 and not self.sources.isdisjoint(self.joins[0].reads)


_Derived = dict[int, list[_Reduction]]
"""By value, the reductions of rows that it is made of, with nothing else that is large."""


def launched_with_readers(program: Program, kernels: Sequence[Kernel]) -> Mapping[int, list[int]]:
    """Return, by the position of a kernel, those of the reductions of rows that it makes on its way."""
    found: dict[int, list[int]] = {}
    derived = _reductions(program)
    if not derived:
        return found
    launched = _launched(program, kernels, derived)
    whole = {reader for reduction in launched if reduction.starts_a_kernel for reader in reduction.readers}
    for reduction in launched:
        readers = reduction.readers
        if reduction.is_kept or not readers or not whole.issuperset(readers):
            continue
        if len(readers) == 1 or not reduction.is_dear:
            found.setdefault(readers[0], []).append(reduction.position)
    return found


def _reductions(program: Program) -> _Derived:
    """Find the reductions of rows of a program, and follow their results."""
    sizes = program.sizes
    derived: _Derived = {}
    single: dict[int, int] = {}
    for step in program.steps:
        of = [reduction for value in step.reads for reduction in derived.get(value, ())] if derived else []
        if not step.writes or step.kind == Kind.BARRIER:
            for reduction in of:
                reduction.is_kept = True
            continue
        made = step.writes[0]
        moved = step.primitive in MOVES and len(step.reads) == 1
        if of and (moved or max([sizes[value] for value in step.reads]) <= of[0].bytes):  # one number a row, or moved
            derived[made] = of
            continue
        for reduction in of:
            reduction.joins.append(step)
        if step.kind == Kind.REDUCE and reduces_rows(step.eqn):
            derived[made] = [_Reduction(sizes[made], _sources(step.reads[0], single))]
        elif step.kind in FUSIBLE and len(set(step.reads)) == 1:
            single[made] = step.reads[0]
    for value in program.outputs:
        for reduction in derived.get(value, ()):
            reduction.is_kept = True
    return derived


def _sources(value: int, single: dict[int, int]) -> frozenset[int]:
    """A value and those that it is made of alone."""
    chain = [value]
    while chain[-1] in single:
        chain.append(single[chain[-1]])
    return frozenset(chain)


def _launched(program: Program, kernels: Sequence[Kernel], derived: _Derived) -> list[_Reduction]:
    """Return the reductions that are kernels, with their readers; one that is read without its rows is kept."""
    sizes = program.sizes
    found: dict[_Reduction, None] = {}
    for position, kernel in enumerate(kernels):
        step = kernel.step
        of = dict.fromkeys([r for value in kernel.reads for r in derived.get(value, ())])
        for reduction in of:
            if reduction not in found:
                continue
            if reduction.rows.issubset(kernel.reads):
                reduction.readers.append(position)
            elif any(sizes[value] > reduction.bytes for value in kernel.reads):
                reduction.is_kept = True
        made = derived.get(step.writes[0], ()) if step.kind == Kind.REDUCE and reduces_rows(step.eqn) else ()
        if len(made) == 1 and made[0] not in of:
            found[made[0]] = None
            made[0].position, made[0].readers = position, []
            made[0].rows = frozenset([value for value in kernel.reads if sizes[value] > made[0].bytes])
            made[0].is_dear = any(work.split()[0] in EXPENSIVE for work in kernel.work)
    return list(found)
