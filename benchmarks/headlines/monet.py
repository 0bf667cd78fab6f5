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
from benchmarks.headlines.points import COLUMNS, COLUMNS_TEXT, Ask, add_rows, peak_over, resume
from benchmarks.headlines.resnets import Shape, resnet
from benchmarks.headlines.segmenters import unet
from benchmarks.models import Model


@dataclass(frozen=True)
class Network:
    """One of their networks, at their batch, and what they report.

    Attributes:
        make: the model of a batch and an image size.
        batch: examples.
        size: of an image, in pixels.
        plain_gb: memory of PyTorch.
        monet_gb: the least memory of MONeT.
        monet_percent: its overhead.
    """

    make: Callable[[int, int], Model]
    batch: int
    size: int
    plain_gb: float
    monet_gb: float
    monet_percent: float

    @property
    def asks(self) -> tuple[Ask, Ask]:
        """Their ratio over our plain step, and their bytes."""
        return peak_over(round(self.plain_gb / self.monet_gb, 2)), Ask(
            f"ours, {self.monet_gb:g} GB", lambda _: self.monet_gb * 1e9
        )


def _resnet50(batch: int, size: int) -> Model:
    return resnet("resnet50", Shape((3, 4, 6, 3), 64, True, batch, size, 1000), False)


def _unet(batch: int, size: int) -> Model:
    return unet(batch, size, size * 3 // 2)


def _vgg16(batch: int, size: int) -> Model:
    return vgg("vgg16", VGG16, batch, size)


NETWORKS = {
    "ResNet-50": Network(_resnet50, 184, 224, 15.06, 4.99, 11.95),
    "GoogLeNet": Network(googlenet, 320, 224, 14.93, 4.99, 15.77),
    "MobileNet-V2": Network(mobilenet_v2, 272, 224, 14.46, 5.01, 8.72),
    "VGG-16": Network(_vgg16, 176, 224, 14.12, 5.51, 9.11),
    "U-Net": Network(_unet, 11, 416, 14.32, 5.01, 11.51),
}
"""Of the six memories that their table has for each, the least."""

_COLUMNS = ("network", "batch", *COLUMNS, "GB of MONeT", "times less of MONeT", "MONeT +%")
_INTRO = f"""MONeT (Shah et al. 2021): its networks at its batch sizes, in the least memory of the table in its README
(github.com/utsaslab/MONeT), with the overhead there, which was measured on a GPU and gains by cheaper implementations
of operators. Ours is recomputation alone: first at MONeT's ratio over PyTorch, of our own plain peak, which is larger
than PyTorch's; then in as many bytes as MONeT. ResNet-50 has its BatchNorm before the convolutions; U-Net, whose image
size the table does not tell, has 416 x 624 pixels. {COLUMNS_TEXT}"""


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("monet", _INTRO, _COLUMNS, options.results)
    done = resume(report, {name: len(network.asks) + 1 for name, network in NETWORKS.items()})
    for name, network in NETWORKS.items():
        if name in done:
            continue
        batch, size = (2, 32) if options.quick else (network.batch, network.size)
        session = Session(network.make(batch, size))
        theirs = f"{network.monet_gb:g}", f"{network.plain_gb / network.monet_gb:.2f}", f"{network.monet_percent:g}"
        add_rows(report, (name, str(batch)), session, network.asks, theirs)
    report.finish(report.facts)
    return report
