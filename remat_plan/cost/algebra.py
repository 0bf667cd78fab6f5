"""What XLA makes of arithmetic before it makes kernels (``AlgebraicSimplifier``, the same on all backends).

In: an ``Emitter``, an equation, the numbers of what it reads. Out: what it reads instead, or the number of its result.

Only what changes which arrays there are: a sum that scatters into its other summand, a product with a condition or
with one, a quotient by a broadcast. Products of matrices that are none are in ``lowered``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import Facts, equal_key
from remat_plan.cost.layout import SMALL_BYTES
from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import Step

_ADDING_SCATTERS = frozenset({"scatter-add", "scatter_add", "pool_scatter"})


def scatter_into(
    state: Emitter, addition: Facts, reads: Sequence[int], add: Callable[[Facts, Sequence[int]], Sequence[int]]
) -> int | None:
    """Add a value to a scatter that nothing else reads by scattering into the value; None where there is no such one.

    Gradients of gathers and of max-pools are scattered into zeros, which are no array then. The sum of two of them is
    one of all their rows if these are fewer than those of the result, and left as it is if not. ``add`` lowers another
    sum.
    """
    both = [s for s in map(state.made_by.get, reads) if s is not None and s.primitive in _ADDING_SCATTERS]
    if len(both) == 2 and sum([state.sizes[scatter.reads[-1]] for scatter in both]) >= state.sizes[reads[0]]:
        return None
    for value, other in (reads, reads[::-1]) if len(reads) == 2 else ():
        scatter = state.made_by.get(value)
        if scatter is None or scatter.primitive not in _ADDING_SCATTERS or state.readers[value]:
            continue
        into, *where = scatter.reads
        zeros = state.made_by.get(into)
        if zeros is None or zeros.reads:
            state.readers[into] -= 1  # by the scatter, which is no more
            (other,) = add(addition, (into, other))
        key = state.facts.number((scatter.primitive, *equal_key(scatter.eqn)))
        return state.emit(key, replace(scatter, reads=(other, *where)), (state.sizes[value],))[0]
    return None


def factor(state: Emitter, facts: Facts, operands: Sequence[int | None]) -> int | None:
    """Return the other factor of a product, if the first is of ones.

    The cotangent of a loss is one, so that what was summed for its gradient is handed on as it is.
    """
    if not is_of_ones(state, facts, operands):
        return None
    size = facts.eqn.outvars[0].aval.size
    pairs = zip(operands, facts.eqn.invars, strict=True)
    return next((v for v, a in pairs if v is not None and v not in state.ones and a.aval.size == size), None)


def is_of_ones(state: Emitter, facts: Facts, operands: Sequence[int | None]) -> bool:
    """Tell whether an equation reads a number one, or an array of them."""
    return facts.has_one or not state.ones.isdisjoint(operands)


def product(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a product reads, and whether a library call may take it in.

    That of two negations needs neither, and that of a converted condition selects by the condition itself.
    """
    makers = [state.made_by.get(read) for read in reads]
    if len(reads) == 2 and all(maker is not None and maker.primitive == "neg" and maker.reads for maker in makers):
        reads = [maker.reads[0] for maker in makers if maker is not None]
    for place, read in enumerate(reads):
        maker = state.made_by.get(read)
        if maker is None or maker.primitive != "convert_element_type" or not maker.reads:
            continue
        condition = maker.eqn.invars[0].aval
        if condition.dtype == bool and condition.shape == facts.eqn.outvars[0].aval.shape:
            return [*reads[:place], maker.reads[0], *reads[place + 1 :]], 0
    return reads, library


def quotient(state: Emitter, facts: Facts, reads: list[int]) -> tuple[list[int], Kind]:
    """Return what a quotient reads, and how it fuses: by a broadcast, it is a product with the broadcast reciprocal.

    Small reciprocals are kernels of their own, so a library call ends there.
    """
    broadcast = state.made_by.get(reads[-1]) if len(reads) == 2 else None
    if broadcast is None or broadcast.primitive != "broadcast_in_dim" or not broadcast.reads:
        return reads, facts.kind
    divisor, size = broadcast.reads[0], state.sizes[broadcast.reads[0]]
    library = int(facts.library and size >= SMALL_BYTES)
    made = Step((divisor,), Kind.EXPENSIVE, "div", facts.eqn, library=library, unary=True)
    (inverse,) = state.emit(state.facts.number(("reciprocal", size)), made, (size,))
    spread = facts.fills[1] if facts.narrow[1:] == (True,) else state.facts.of(broadcast.eqn).key
    return [reads[0], *state.emit(spread, replace(broadcast, reads=(inverse,)), (state.sizes[reads[1]],))], Kind.CHEAP
