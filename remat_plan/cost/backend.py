"""What a backend's compiler does to a program's buffers, as a few switches.

In: a ``Hardware`` (its name tells the platform), models registered for platforms of one's own.
Out: ``FusionModel``: which of the rules of ``layout``, ``fusion`` and ``schedule`` hold there.

XLA has one front end and three back ends that differ in what they leave in memory. XLA:GPU and XLA:TPU write
reductions, matrix products and convolutions whose operands are computed on the way in, in any layout. XLA:CPU
(since jaxlib 0.11) hands reductions and matrix products to the library YNNPACK, which reads its operands from
memory in one canonical layout, and runs kernels breadth first. Each switch below names the pass it stands
for.

Limits: read off jaxlib 0.12.0 and the sources of XLA of that time; older jaxlibs differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import MATRIX_PRIMITIVES


@dataclass(frozen=True, slots=True)
class FusionModel:
    """The rules that hold on one backend.

    Attributes:
        library_clusters: reductions become library calls that take in only those neighbours (products too)
            that nobody else reads; whatever else they read is materialised (XLA:CPU, ``LibraryRewriter``).
        layout_copies: matrix products and convolutions whose operands are not in canonical order read
            transposed copies (XLA:CPU, ``DotDecomposer``, ``ConvCanonicalization``).
        index_pooling: the gradient of a max-pool reads indices of the maxima, a second pooling (XLA:CPU,
            ``SelectAndScatterExpander``).
        offset_pooling: in planned programs that gradient is written by ``rewrite.pooling``.
        widens: there is no 16-bit arithmetic: convolutions read and write 32-bit copies, and rounding each
            element-wise result back is too dear to be done twice (XLA:CPU, ``FloatNormalization``).
        breadth_first: kernels run as soon as what they read is there, in the order in which they became ready
            (XLA:CPU, ``BFScheduler``); otherwise in program order.
        reuses_outputs: temporaries live in the memory of outputs that are not written yet.
        writes_over: an element-wise kernel writes over an operand that dies there.
        repeats_from_bytes: an expensive element-wise step (``exp``, ``tanh``, ``div``) whose elements have at least so
            many bytes is as cheap to repeat as any other, since kernels wait for memory (XLA:GPU, ``PriorityFusion``).
        fuses_operands: matrix products and convolutions compute their operands on the way in (XLA:TPU, where both are
            convolutions and may be the root of a fusion).
        kernel_copies: convolutions read their kernels from a copy in the order of cuDNN, output features first, which
            forward and backward pass share; the gradient of a transposed one's kernel, which cuDNN lacks, reads copies
            of both operands (XLA:GPU, ``GpuLayoutAssignment``).
        tiles: arrays are padded to tiles, and what enters a network's first convolution is copied (``cost.tiles``).
        epilogues: products that take in the element-wise steps which are their only readers: these are written with
            them, so nobody computes them again (XLA:GPU, ``CudnnFusedConvRewriter``; XLA:TPU, output fusions).
        whole_concatenations: a concatenation along rows is a kernel of its own, so the parts are not kept where it is
            (XLA:CPU, XLA:TPU).
        whole_splits: so is what is split into parts, as the gradient of a concatenation is (XLA:TPU).
        max_copies: a cheap producer is computed again in at most this many kernels.
        max_emissions: so often the code of one step may be in a kernel (XLA:CPU; ``cost.emissions``); 0 is no limit.
        weighs_copies_from_bytes: and, where its elements have at least so many bytes, only if that reads no more than
            writing it once and reading the result (XLA:GPU, ``PriorityFusion``; XLA:TPU, of 32 bits): sums of several
            arrays, as residual streams are, are written.
        row_kernels: a reduction of rows takes no kernel of its own where one that reads its result reads the rows too,
            as normalisations and softmax do (XLA:GPU, ``SoftmaxRewriterTriton``). Its result counts as memory all the
            same.
        sums_images: what is reduced to a number for each channel is made in one kernel with these sums, and so not
            written over an operand; what reads the same arrays as sums of another waits for them and is made with them
            (XLA:GPU, ``MultiOutputFusion``; ``cost.siblings``).
        further_results: reductions and element-wise kernels are made by the kernel that makes the last of what they
            read, or beside the first that reads the same arrays (XLA:TPU, ``MultiOutputFusion``; ``cost.outputs``).
        fills_chip: the compiler decides what is in the memory on the chip: of what does not fit it holds a part, and
            element-wise kernels gain by it for their results only (XLA:TPU).
        counts_gains: seconds below those of the plain program are counted upon without a clock, since predictions are
            held to the compiler's own kernels (XLA:GPU, XLA:TPU).
        loops_over_bits: random bits are made in a loop over arrays as large as they are: of Threefry two, of 32-bit
            words, that whatever reads the bits combines on the way in (XLA:CPU; elsewhere its rounds are unrolled, and
            fuse).
        clears_stacks: what a loop stacks is written over zeros, which the loop writes when it begins (XLA:GPU; on
            XLA:CPU they are steps of their own, see ``Lowering.stacks``).
        isolates: primitives whose blocks should stay outside segments. The gradient of a max-pool reads indices of its
            maxima, which take another pooling to find (XLA:GPU); predictions do not know of it.
    """

    library_clusters: bool = False
    layout_copies: bool = False
    index_pooling: bool = False
    offset_pooling: bool = False
    widens: bool = False
    breadth_first: bool = False
    reuses_outputs: bool = True
    writes_over: bool = True
    repeats_from_bytes: int = 1 << 10
    fuses_operands: bool = False
    kernel_copies: bool = False
    tiles: bool = False
    epilogues: frozenset[str] = frozenset()
    whole_concatenations: bool = False
    whole_splits: bool = False
    max_copies: int = 64
    max_emissions: int = 0
    weighs_copies_from_bytes: int = 1 << 10
    row_kernels: bool = False
    sums_images: bool = False
    further_results: bool = False
    fills_chip: bool = False
    counts_gains: bool = False
    loops_over_bits: bool = False
    clears_stacks: bool = False
    isolates: frozenset[str] = frozenset()

    def rules(self) -> tuple[str, ...]:
        """The names of the rules that hold here and not on a fusing compiler that nothing is known of."""
        return tuple([f.name for f in fields(self) if getattr(self, f.name) != getattr(GENERIC, f.name)])

    def without(self, rule: str) -> FusionModel:
        """The same backend without one of its rules."""
        return replace(self, **{rule: getattr(GENERIC, rule)})


GENERIC = FusionModel()
"""A fusing compiler that nothing else is known of: everything element-wise is fused, program order."""

GPU = FusionModel(
    repeats_from_bytes=4,
    kernel_copies=True,
    weighs_copies_from_bytes=1,
    row_kernels=True,
    sums_images=True,
    epilogues=frozenset({"conv_general_dilated"}),
    counts_gains=True,
    clears_stacks=True,
    isolates=frozenset({"reduce_window_max"}),
)
"""XLA:GPU of jaxlib 0.12. Of 16 bits, expensive steps are kept: they halve the bytes that a kernel waits for."""

TPU = FusionModel(
    reuses_outputs=False,
    writes_over=False,
    repeats_from_bytes=1,
    fuses_operands=True,
    tiles=True,
    epilogues=MATRIX_PRIMITIVES,
    whole_concatenations=True,
    whole_splits=True,
    weighs_copies_from_bytes=4,
    further_results=True,
    fills_chip=True,
    counts_gains=True,
)
"""XLA:TPU of libtpu for jaxlib 0.12. What it keeps in on-chip memory (128 MiB on a v5e) is not taken off."""

CPU = FusionModel(
    library_clusters=True,
    layout_copies=True,
    index_pooling=True,
    offset_pooling=True,
    widens=True,
    breadth_first=True,
    whole_concatenations=True,
    max_emissions=15,
    loops_over_bits=True,
)
"""XLA:CPU of jaxlib 0.12."""


_MODELS = {"cpu": CPU, "gpu": GPU, "tpu": TPU}


def register_backend(platform: str, model: FusionModel) -> None:
    """Make the rules of another compiler known: ``Hardware`` whose name begins with its platform is judged by them.

    Args:
        platform: a new name, such as ``"npu"``; what follows a colon in the name of a ``Hardware`` is left out.
        model: the rules.

    Raises:
        ValueError: the platform has rules, or its name holds a colon.
    """
    if ":" in platform or platform in _MODELS:
        raise ValueError(f"platform {platform!r}: give a new name without a colon; this one has rules already.")
    _MODELS[platform] = model


def model_for(hardware: Hardware) -> FusionModel:
    """Return the rules of a device's backend; those of a fusing compiler where none are registered.

    >>> from remat_plan.cost.hardware import hardware_for
    >>> model_for(hardware_for("gpu:h100", "gpu")) is GPU
    True
    """
    return _MODELS.get(hardware.name.split(":")[0], GENERIC)


@contextmanager
def judged_by(platform: str, model: FusionModel) -> Iterator[None]:
    """Within this context, a platform goes by other rules: what a rule is worth shows in predictions made without it.

    Args:
        platform: one that has rules.
        model: the rules in their place.
    """
    before = _MODELS[platform]
    _MODELS[platform] = model
    try:
        yield
    finally:
        _MODELS[platform] = before
