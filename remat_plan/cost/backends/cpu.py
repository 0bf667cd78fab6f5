"""XLA:CPU of jaxlib 0.12: a kernel library, operands in canonical order, kernels as early as can be.

In: equations and steps, as the stages of ``backend`` hand them over. Out: ``CPU``.

Reductions and products are calls of the library YNNPACK (``LibraryRewriter``), which reads its operands from memory in
one canonical layout. There is no arithmetic of 16 bits. Random bits are made in loops, and the gradient of a max-pool
goes by indices of its maxima.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from remat_plan import _compat
from remat_plan.cost import layout
from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.backends.cpu_code import Emissions
from remat_plan.cost.backends.cpu_order import breadth_first
from remat_plan.cost.copies import divided
from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import Facts, equal_key
from remat_plan.cost.rules import MOVES, Kind, eqn_flops
from remat_plan.cost.steps import SCATTERS, Program, RegionCost, Step
from remat_plan.cost.work import REORDERED, with_type
from remat_plan.graph.pooling import by_offsets

_LIBRARY = frozenset(
    "abs add add_any broadcast_in_dim ceil convert_element_type cos div dot_general erf exp expm1 floor "
    "integer_pow log log1p logistic max min mul neg pow reduce_max reduce_min reduce_sum reduce_window_max "
    "reduce_window_sum round rsqrt sign sin sqrt square sub tan tanh".split()
)
"""What a library call can take in (XLA's ynn_support.cc), above 4096 elements: comparisons, selections, slices and
transposes are not in the list, so chains through them are cut there."""

_CONCATENATE = frozenset({"concatenate"})
_RANDOM = frozenset({"random_bits", "threefry2x32"})
_POOLING = frozenset({"select_and_scatter_add"})
_LIBRARY_SEEDS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


def library_role(eqn: Any) -> int:
    """Return 1 for an equation that a library call may take in, 2 for one that it starts with, else 0."""
    name = eqn.primitive.name
    if name not in _LIBRARY or not all(map(_compat.is_real, [a.aval for a in (*eqn.outvars, *eqn.invars)])):
        return 0
    if "window" in name:
        return 2 if tuple(eqn.params["window_strides"]) == tuple(eqn.params["window_dimensions"]) else 0
    largest = max([_compat.aval_bytes(a.aval) for a in (*eqn.outvars, *eqn.invars)])
    if largest < layout.SMALL_BYTES and name != "broadcast_in_dim":
        return 0
    return 2 if name in _LIBRARY_SEEDS else 1


def sums_in_windows(eqn: Any, kind: Kind) -> Kind:
    """A reduction that no library call makes begins with one over windows, which takes nothing in.

    So it is where a dimension that is reduced is as long as its windows.
    """
    if kind != Kind.REDUCE or _compat.is_real(eqn.invars[0].aval):
        return kind
    shape = eqn.invars[0].aval.shape
    return Kind.OPAQUE if any(shape[axis] >= 32 for axis in eqn.params.get("axes", ())) else kind


def rounds_halves(eqn: Any, kind: Kind) -> Kind:
    """Rounding each element-wise result back to 16 bits costs too much to be done twice."""
    half = kind == Kind.CHEAP and eqn.primitive.name not in MOVES and _is_half(eqn.outvars[0].aval)
    return Kind.EXPENSIVE if half else kind


def _is_half(aval: Any) -> bool:
    return _compat.is_float(aval) and aval.dtype.itemsize == 2


def dot_copies(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a product reads, copied where needed, and whether a library call can take it in.

    A transpose before a product is folded into it: the order is found on what was transposed. A reshape between
    them must go: it does where the product's matrix is just what the transpose made.
    """
    if len(reads) != 2:
        return reads, library
    contract, batch = facts.eqn.params["dimension_numbers"]
    folds = layout.folds_transposes(facts.eqn)
    found = []
    canonical = False
    for side in range(2):
        read, shape = reads[side], facts.eqn.invars[side].aval.shape
        contracted, batched = contract[side], batch[side]
        source = state.made_by.get(read)
        if source is not None and source.primitive == "transpose":
            made = source.eqn.outvars[0].aval.shape
            if shape != made and layout.as_matrix(shape, batched, contracted) == (made, 1 - side):
                shape, batched, contracted = made, (), (1 - side,)
            if made == shape:
                back = source.eqn.params["permutation"]
                read, shape = source.reads[0], source.eqn.invars[0].aval.shape
                contracted, batched = tuple([back[d] for d in contracted]), tuple([back[d] for d in batched])
        order = layout.dot_operand_order(shape, batched, contracted, side == 0, folds)
        if order is not None:
            read = state.copy(facts.eqn, read, shape, order, state.sizes[read])
        if side == 0:
            canonical = order is not None or layout.contracts_last(shape, contracted)
        found.append(read)
    return found, int(library and canonical)


def convolution(state: Emitter, facts: Facts, reads: list[int]) -> Sequence[int]:
    """Lower a convolution with the copies of its operands and its result, into and out of NHWC, HWIO and 32 bits.

    In bodies of loops and in branches there are none, and no library that computes it where there should be. The kernel
    gradient of a depthwise convolution is made for all pairs of channels, and copied, with zeros for those of different
    ones, to be summed (``ConvolutionGroupConverter``).
    """
    eqn, out_bytes = facts.eqn, facts.out_bytes[0]
    odd, work = layout.conv_orders(eqn), facts.work
    if state.facts.is_body and any(odd):
        odd, work = (False, False, False), with_type(REORDERED, eqn.outvars[0].aval.dtype)
    spec = eqn.params["dimension_numbers"]
    orders = (tuple(spec.lhs_spec), tuple(spec.rhs_spec))
    width = 2 if _is_half(eqn.outvars[0].aval) else 1
    if len(reads) == 2:
        reads = [
            state.copy(eqn, read, atom.aval.shape, order, width * state.sizes[read]) if bad or width > 1 else read
            for read, atom, order, bad in zip(reads, eqn.invars, orders, odd, strict=False)
        ]
    groups = layout.crossed_groups(eqn)
    made = Step(tuple(reads), Kind.OPAQUE, facts.name, eqn, flops=groups * facts.flops, work=work)
    result = state.emit(facts.key, made, (groups * width * out_bytes,))[0]
    if odd[2] or width > 1 or groups > 1:
        result = state.copy(eqn, result, eqn.outvars[0].aval.shape, spec.out_spec, groups * out_bytes)
    if groups == 1:
        return (result,)
    summed = Step((result,), Kind.REDUCE, "reduce_sum", eqn, library=2)
    return state.emit(state.facts.number(("groups", *equal_key(eqn))), summed, (out_bytes,))


def own_zeros(program: Program) -> Program:
    """Return a program with copies of the zeros that several scatters are made over, one for each.

    The copies depend on nothing either, so all are made at the start.
    """
    scattered = {step.reads[0] for step in program.steps if step.primitive in SCATTERS}
    zeros = {v for step in program.steps if not step.reads for v in step.writes if v in scattered}
    readers = Counter([value for step in program.steps for value in step.reads if value in zeros])
    zeros = {v for v in zeros if readers[v] > 1}
    if not zeros:
        return program
    steps, sizes = list[Step](), [*program.sizes]
    for step in program.steps:
        if step.primitive in SCATTERS and step.reads[0] in zeros:
            own, place = len(sizes), step.place
            sizes.append(sizes[step.reads[0]])
            steps.append(Step(step.reads[:1], Kind.OPAQUE, "copy", step.eqn, (own,), place=place))
            step = replace(step, reads=(own, *step.reads[1:]))
        steps.append(step)
    return replace(program, steps=steps, sizes=sizes)


def reshaped_for_products(step: Step, readers: Sequence[Step]) -> bool:
    """A step is computed again beside its result where that is read through reshapes to matrices, which fuse.

    What counts is the shape that was made: of reshapes between it and the matrix of a product, XLA leaves one, or none.
    """
    for reader in readers:
        sizes = layout.dot_sizes(reader.eqn) if reader.primitive == "dot_general" else None
        if sizes is None:
            return False
        shape, places = step.eqn.outvars[0].aval.shape, [i for i, v in enumerate(reader.reads) if v in step.writes]
        matrices = [sizes[i : i + 2] for i in places]
        if not matrices or any(shape in (matrix, matrix[::-1]) for matrix in matrices):
            return False
    return True


def random_bits(state: Emitter, facts: Facts, reads: list[int]) -> Sequence[int]:
    """Lower random bits, or the words of Threefry that they are made of, to the loop that makes them.

    A step of that loop writes the two words into arrays beside those that it reads. Where it is inside another loop,
    what it counts the elements with, two words again, is made before that one and is there all the time. The key is
    taken apart first, so whatever else is ready runs before the loop.
    """
    eqn, words, inside = facts.eqn, facts.out_bytes, 0
    of_key = len(words) == 1 and _compat.is_threefry(eqn.invars[0].aval)
    if of_key:
        key = state.facts.number(("words", *equal_key(eqn)))
        reads = [state.move(eqn, "slice", tuple(reads), key, state.sizes[reads[0]])]
    if of_key or len(words) == 2:
        words = (4 * eqn.outvars[0].aval.size,) * 2
        inside = sum(words)
        state.counters[eqn.outvars[0].aval.shape] = inside
    loop = Step(tuple(reads), Kind.OPAQUE, facts.name, eqn, (), facts.flops, RegionCost(inside), work=facts.work)
    made = state.emit(facts.key, loop, words)
    if len(words) == len(facts.out_bytes):
        return made
    return (state.move(eqn, "xor", made, state.facts.number(("combined", *equal_key(eqn))), facts.out_bytes[0]),)


def offset_pooling(state: Emitter, facts: Facts, reads: list[int]) -> Sequence[int] | None:
    """Lower the gradient of a max-pool as ``rewrite.pooling`` writes it in planned programs.

    One kernel finds the offset of each maximum in its window, one byte each, from the forward input only, which is
    written out with its padding; the gradient is made of the cotangent at each offset, in the kernels that read it.
    """
    eqn = facts.eqn
    if not state.planned or not by_offsets(eqn.params):
        return None
    pooled, number = eqn.invars[0].aval, state.facts.number
    full, read = eqn.invars[1].aval, reads[1]
    shape = tuple([n + low + high for n, (low, high) in zip(full.shape, eqn.params["padding"], strict=True)])
    if shape != full.shape:
        padded = Step((read,), Kind.REDUCE, "pool_padding", eqn)
        size = state.sizes[read] * math.prod(shape) // full.size
        (read,) = state.emit(number(("pool_padding", *equal_key(eqn))), padded, (size,))
    found_by = Step((read,), Kind.REDUCE, "pool_offsets", eqn, flops=eqn_flops(eqn))
    (offsets,) = state.emit(number(("pool_offsets", *equal_key(eqn))), found_by, (pooled.size,))
    made = Step((offsets, reads[0]), Kind.CHEAP, "pool_spread", eqn)
    return state.emit(number(("pool_spread", *equal_key(eqn))), made, facts.out_bytes)


def index_pooling(state: Emitter, facts: Facts, reads: list[int]) -> Sequence[int]:
    """Lower the gradient of a max-pool: its cotangent is scattered by indices of the maxima into zeros.

    The indices are found by a second pooling, over one full-size index array for each dimension, which the library
    reads from memory. It needs the forward input only, so it runs as soon as that is there.
    """
    eqn, out_bytes = facts.eqn, facts.out_bytes[0]
    pooled, full = eqn.invars[0].aval, eqn.invars[1].aval
    rank, number = len(full.shape), state.facts.number

    def index(dimension: int) -> int:
        step = Step((), Kind.OPAQUE, "iota", eqn)
        return state.emit(number(("iota", dimension, full.shape)), step, (4 * full.size,))[0]

    inputs = (reads[1], *map(index, range(rank)))
    found_by = Step(inputs, Kind.OPAQUE, "reduce_window", eqn, flops=eqn_flops(eqn))
    key = number(("reduce_window", *equal_key(eqn)))
    indices = state.emit(key, found_by, (state.sizes[reads[0]], *[4 * pooled.size] * rank))[1:]
    where = state.move(eqn, "concatenate", indices, number("pool_indices"), 4 * pooled.size * rank)
    zeros = state.move(eqn, "broadcast_in_dim", (), number(("pool_zeros", full.shape, out_bytes)), out_bytes)
    made = Step((zeros, where, reads[0]), Kind.OPAQUE, "pool_scatter", eqn)
    return state.emit(number("pool_scatter"), made, (out_bytes,))


CPU = Backend(
    (
        Rule("library", "library_clusters", "LibraryRewriter", library_role),
        Rule("kind", "library_clusters", "TreeReductionRewriter", sums_in_windows),
        Rule("kind", "widens", "FloatNormalization", rounds_halves),
        Rule("kind", "whole_concatenations", "long rows, many parts", layout.whole_concatenation, _CONCATENATE),
        Rule("operands", "layout_copies", "DotDecomposer", dot_copies, frozenset({"dot_general"})),
        Rule("whole", "copies_zeros", "CopyInsertion", own_zeros),
        Rule("lower", "layout_copies", "ConvCanonicalization", convolution, frozenset({"conv_general_dilated"})),
        Rule("lower", "loops_over_bits", "rounds of Threefry are not unrolled", random_bits, _RANDOM),
        Rule("lower", "offset_pooling", "rewrite.pooling", offset_pooling, _POOLING),
        Rule("lower", "index_pooling", "SelectAndScatterExpander", index_pooling, _POOLING),
        Rule("divided", "fuses_on_all_paths", "InstructionFusion", divided),
        Rule("beside", "layout_copies", "InstructionFusion", reshaped_for_products),
        Rule("room", "max_emissions", "FusionNodeIndexingEvaluation", Emissions),
        Rule("order", "breadth_first", "BFScheduler", breadth_first),
        # Zeros depend on nothing, so those of all stacks are made at the start, unless nothing is made early.
        Rule("stacks", "breadth_first", "BFScheduler", lambda late: late),
    ),
)
