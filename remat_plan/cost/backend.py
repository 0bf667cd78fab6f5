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

from dataclasses import dataclass

from remat_plan.cost.hardware import Hardware


@dataclass(frozen=True, slots=True)
class FusionModel:
    """The rules that hold on one backend.

    Attributes:
        library_clusters: reductions become library calls that take in only those neighbours (products too)
            that nobody else reads; whatever else they read is materialised (XLA:CPU, ``LibraryRewriter``).
        layout_copies: matrix products and convolutions whose operands are not in canonical order read
            transposed copies (XLA:CPU, ``DotDecomposer``, ``ConvCanonicalization``).
        index_pooling: the gradient of a max-pool keeps indices of the maxima, found in the forward pass
            (``SelectAndScatterExpander``).
        widens: there is no 16-bit arithmetic: convolutions read and write 32-bit copies, and rounding each
            element-wise result back is too dear to be done twice (XLA:CPU, ``FloatNormalization``).
        breadth_first: kernels run as soon as what they read is there, in the order in which they became ready
            (XLA:CPU, ``BFScheduler``); otherwise in program order.
        reuses_outputs: temporaries live in the memory of outputs that are not written yet.
        max_copies: a cheap producer is computed again in at most this many kernels.
    """

    library_clusters: bool = False
    layout_copies: bool = False
    index_pooling: bool = False
    widens: bool = False
    breadth_first: bool = False
    reuses_outputs: bool = True
    max_copies: int = 64


GENERIC = FusionModel()
"""A fusing compiler that nothing else is known of: everything element-wise is fused, program order."""

GPU = FusionModel()
"""XLA:GPU of jaxlib 0.12: peaks of plans are 0.90 to 1.09 of what it compiles (``benchmarks/results/targets.md``)."""

TPU = FusionModel()
"""XLA:TPU of libtpu for jaxlib 0.12: 0.92 to 1.19 there."""

CPU = FusionModel(library_clusters=True, layout_copies=True, index_pooling=True, widens=True, breadth_first=True)
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
