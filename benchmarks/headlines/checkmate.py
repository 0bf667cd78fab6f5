"""Checkmate's largest batches in 16 GB at the cost of one more forward pass at most.

In: nothing; steps are compiled for the CPU and never run. Out: ``results/headlines/checkmate.md``.

Source: Jain et al. 2020, arXiv 1910.02653, section 6.4 and figure 6. The rule there: the total cost, in FLOPs, is at
most that of two forward passes and one backward pass. Its text gives two of the six numbers: MobileNet 1105 images, 5.1
times the batch of checkpointing all activations; U-Net 61 images against 16, 3.8 times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

import remat_plan as rp
from benchmarks.common import Options, Report
from benchmarks.headlines.classifiers import VGG19, mobilenet, vgg
from benchmarks.headlines.points import resume
from benchmarks.headlines.resnets import Shape, resnet
from benchmarks.headlines.segmenters import fcn8, segnet, unet
from benchmarks.models import Model
from remat_plan.cost.rules import jaxpr_flops

BUDGET, QUICK_BUDGET = "16GB", "2MB"


@dataclass(frozen=True)
class Network:
    """One of their networks.

    Attributes:
        make: the model of a batch.
        theirs: the factor over the plain batch that the text of the paper gives; None where it gives none.
    """

    make: Callable[[int], Model]
    theirs: float | None = None


def _resnet50(batch: int) -> Model:
    return resnet("resnet50", Shape((3, 4, 6, 3), 64, True, batch, 224, 1000), False)


def _quick(batch: int) -> Model:
    return resnet("resnet", Shape((2, 2), 4, True, batch, 32, 10), False)


NETWORKS = {
    "MobileNet": Network(mobilenet, 5.1),
    "U-Net": Network(unet, 3.8),
    "ResNet-50": Network(_resnet50),
    "VGG-19": Network(lambda batch: vgg("vgg19", VGG19, batch)),
    "FCN-8": Network(fcn8),
    "SegNet": Network(segnet),
}
QUICK_NETWORKS = {"ResNet": Network(_quick)}
_COLUMNS = (
    "network",
    "plain batch",
    "our batch",
    "factor",
    "peak GB",
    "overhead +%",
    "allowed +%",
    "factor of Checkmate",
)
_INTRO = """Checkmate (Jain et al. 2020, section 6.4): the largest batch whose gradient step needs at most 16 GB, with
arguments and gradients, as `rp.max_batch` finds it by compiling for a CPU: of the plain step, and of a planned one that
costs at most one more forward pass. Allowed: the FLOPs of a forward pass over those of the step; overhead: predicted
seconds. U-Net, FCN-8 and SegNet at 416 x 608, the others at 224 x 224, as there. Factor of Checkmate: where the text
of the paper says it (the others are bars of a figure). Nothing was run."""


def forward_share(model: Model) -> float:
    """The FLOPs of a forward pass over those of the gradient step."""
    forward = jaxpr_flops(jax.make_jaxpr(model.loss)(model.params, model.batch))
    return forward / jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(model.loss))(model.params, model.batch))


def largest(make: Callable[[int], Model], budget: str, limit: float) -> Any:
    """The largest batches, plain and within a limit on overhead."""
    loss = make(1).loss

    def gradient_step(params: Any, inputs: Any) -> Any:
        return jax.value_and_grad(rp.remat(loss))(params, inputs)

    def make_args(batch: int) -> tuple[Any, Any]:
        model = make(batch)
        return model.params, model.batch

    return rp.max_batch(gradient_step, make_args, budget=budget, multiple_of=1, overheads=(limit,), target="cpu")


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("checkmate", _INTRO, _COLUMNS, options.results)
    budget, networks = (QUICK_BUDGET, QUICK_NETWORKS) if options.quick else (BUDGET, NETWORKS)
    done = resume(report, dict.fromkeys(networks, 1))
    for name, network in networks.items():
        if name in done:
            continue
        limit = forward_share(network.make(1))
        found = largest(network.make, budget, limit)
        plain, ours = found.rows[:2]
        factor, peak_gb = ours.size / max(plain.size, 1), (ours.peak_bytes or 0) / 1e9
        report.add(
            *(name, plain.size, ours.size, f"{factor:.2f}", f"{peak_gb:.4g}", f"{100 * ours.overhead:.1f}"),
            *(f"{100 * limit:.1f}", "" if network.theirs is None else network.theirs),
        )
    most = max(float(row[_COLUMNS.index("factor")]) for row in report.rows)
    report.finish([f"largest factor: {most:.2f} (Checkmate's largest: 5.1, of MobileNet)"])
    return report
