"""MONeT's five networks at its memory ratios: our overheads beside those of its README.

In: nothing; networks are compiled for the CPU and never run. Out: ``results/headlines/monet.md``.

Source: Shah et al., "Memory Optimization for Deep Networks", ICLR 2021; its table of results in
github.com/utsaslab/MONeT (README), for PyTorch on a GPU. Their overhead is measured and their memory includes cheaper
implementations of operators; ours is predicted, by recomputation alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.common import Options, Report, Session
from benchmarks.headlines.classifiers import VGG16, googlenet, mobilenet_v2, vgg
from benchmarks.headlines.points import COLUMNS, COLUMNS_TEXT, Point, peak_over, plain_point, plan_of, point_of
from benchmarks.headlines.resnets import Shape, resnet
from benchmarks.headlines.segmenters import unet
from benchmarks.models import Model
from remat_plan.units import BudgetError


@dataclass(frozen=True)
class Network:
    """One of their networks, at their batch, and what they report.

    Attributes:
        make: the model of a batch and an image size.
        batch: examples.
        size: of an image, in pixels.
        plain_gb: memory of PyTorch.
        rows: memory in GB and overhead in per cent of MONeT.
    """

    make: Callable[[int, int], Model]
    batch: int
    size: int
    plain_gb: float
    rows: tuple[tuple[float, float], ...]


def _resnet50(batch: int, size: int) -> Model:
    return resnet("resnet50", Shape((3, 4, 6, 3), 64, True, batch, size, 1000), False)


def _vgg16(batch: int, size: int) -> Model:
    return vgg("vgg16", VGG16, batch, size)


NETWORKS = {
    "ResNet-50": Network(_resnet50, 184, 224, 15.06, ((10.01, 3.22), (6.99, 7.28), (4.99, 11.95))),
    "GoogLeNet": Network(googlenet, 320, 224, 14.93, ((9.98, 7.13), (7.02, 9.71), (4.99, 15.77))),
    "U-Net": Network(lambda batch, size: unet(batch, size, size * 3 // 2), 11, 416, 14.32,
                     ((10.01, -4.10), (7.00, 1.39), (5.01, 11.51))),
    "MobileNet-V2": Network(mobilenet_v2, 272, 224, 14.46, ((10.02, 2.40), (7.01, 5.53), (5.01, 8.72))),
    "VGG-16": Network(_vgg16, 176, 224, 14.12, ((9.71, -5.30), (6.82, 1.99), (5.51, 9.11))),
}  # fmt: skip
"""Of the six memories that their table has for each, the first, the fourth and the last."""

_COLUMNS = ("network", "batch", *COLUMNS, "MONeT, times less", "MONeT +%")
_INTRO = f"""MONeT (Shah et al. 2021): its networks at its batch sizes and at its memory ratios, each the memory of
MONeT over that of PyTorch in the table of its README (github.com/utsaslab/MONeT), with the overhead there, which was
measured on a GPU and gains by cheaper implementations of operators (below 0 in places). Ours is recomputation alone, as
predicted and as compiled. Budgets are shares of the whole plain peak. ResNet-50 has its BatchNorm before the
convolutions; U-Net, whose image size the table does not tell, has 416 x 624 pixels. {COLUMNS_TEXT}"""


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("monet", _INTRO, _COLUMNS, options.results)
    pairs: list[tuple[str, float, float]] = []
    for name, network in NETWORKS.items():
        batch, size = (2, 32) if options.quick else (network.batch, network.size)
        session = Session(network.make(batch, size))
        plain = plain_point(session)
        report.add(name, batch, *plain.cells(plain), "1.00", "0.0")
        for gigabytes, theirs in network.rows[:1] if options.quick else network.rows:
            point = _add_row(report, (name, str(batch)), session, plain, network.plain_gb / gigabytes, theirs)
            pairs += [(name, 100 * point.overhead, theirs)] if point else []
            report.facts = facts(pairs)
    report.finish(report.facts)
    return report


def _add_row(
    report: Report, labels: tuple[str, str], session: Session, plain: Point, times: float, theirs: float
) -> Point | None:
    """Add our plan at one of their ratios."""
    ask = peak_over(round(times, 2))
    try:
        point = point_of(session, ask.name, plan_of(session, ask, plain))
    except BudgetError as error:
        missing = [ask.name, f"least {error.minimum_bytes / 1e9:.4g}", *[""] * (len(COLUMNS) - 2)]
        report.add(*labels, *missing, f"{times:.2f}", f"{theirs}")
        return None
    report.add(*labels, *point.cells(plain), f"{times:.2f}", f"{theirs}")
    return point


def facts(pairs: list[tuple[str, float, float]]) -> list[str]:
    """Where ours is the higher overhead."""
    behind = [f"{name} (+{ours:.1f} % against {theirs} %)" for name, ours, theirs in pairs if ours > theirs]
    return [f"{len(pairs)} rows; our predicted overhead above their measured one: {', '.join(behind) or 'none'}"]
