"""Chen et al. 2016: ResNets of 100 to 1000 layers on ImageNet, batch 32; memory against depth.

In: nothing; networks are compiled and never run. Out: ``results/headlines/imagenet.md`` for a CPU with scanned stages,
``imagenet_unrolled.md`` with unrolled ones, ``imagenet_h100.md`` with 1001 unrolled layers for an H100.

The paper (arXiv 1604.06174, abstract and section 5.2) takes a 1000-layer ResNet from 48 GB to 7 GB of feature maps for
30 % more running time, on a Titan X. The depths here are those of the 200-layer network of its code
(dmlc/mxnet-memonger, ``layers = [3, 24, 36, 3]``), in proportion.
"""

from __future__ import annotations

from benchmarks.common import Options, Report, Session
from benchmarks.headlines.points import (
    COLUMNS,
    COLUMNS_TEXT,
    SQRT,
    Ask,
    add_rows,
    bar,
    peak_over,
    resume,
    temporaries_over,
)
from benchmarks.headlines.resnets import Shape, resnet

DEPTHS = ((15, 121, 182, 15), (6, 49, 72, 6), (3, 24, 36, 3), (2, 12, 17, 2))
"""Blocks of each stage: 1001, 401, 200 and 101 layers."""

UNROLLED_DEPTHS = DEPTHS[1:]
"""Those that are compiled for a CPU with unrolled stages too: on 1001 layers XLA:CPU ran out of 24 GB of memory,
where XLA:GPU needs a small part of that."""

QUICK_DEPTHS = ((2, 5),)
ASKS = (SQRT, peak_over(4), peak_over(6.9), peak_over(10), temporaries_over(10))
H100_ASKS = (temporaries_over(6.9), peak_over(6.9))
"""Of the network that takes longest to plan, what the paper claims, by its measure and by ours."""

FEW_ASKS = (SQRT, peak_over(4))
DEEP = 400
"""Networks with fewer layers are asked for less: they show how memory grows."""

QUICK_ASKS = (SQRT, temporaries_over(2))
BARS = ((6.9, 15.0), (10.0, 20.0))
"""Times less memory than plain, and the overhead in per cent that it may cost at the greatest depth."""

_COLUMNS = ("layers", "stages", *COLUMNS)
_INTRO = f"""Chen et al. 2016, figure 5: ResNets (bottlenecks, BatchNorm) of growing depth at batch 32, 224 x 224,
float32. Stages: each a Python loop over its blocks (`unrolled`), or one `lax.scan` (`scanned`). The paper went from 48
to 7 GB of feature maps (6.9 times less) at 1000 layers for 30 % more time. Compiled for a CPU, or as the table is
called. {COLUMNS_TEXT}"""


def shape_of(depths: tuple[int, ...], quick: bool) -> Shape:
    """The network with so many blocks in each stage."""
    return Shape(depths, 4, True, 2, 32, 10) if quick else Shape(depths, 64, True, 32, 224, 1000)


def run_scanned(options: Options) -> Report:
    """Measure the networks with scanned stages; write and return the table."""
    return _run("imagenet", "scanned", ASKS, DEPTHS, "cpu", options)


def run_unrolled(options: Options) -> Report:
    """Measure the networks with unrolled stages; write and return the table."""
    return _run("imagenet_unrolled", "unrolled", ASKS, UNROLLED_DEPTHS, "cpu", options)


def run_h100(options: Options) -> Report:
    """Measure the deepest network with unrolled stages, for an H100; write and return the table."""
    return _run("imagenet_h100", "unrolled", H100_ASKS, DEPTHS[:1], "gpu:h100", options)


def _run(
    name: str,
    stages: str,
    deep_asks: tuple[Ask, ...],
    depths: tuple[tuple[int, ...], ...],
    target: str,
    options: Options,
) -> Report:
    report = Report(name, _INTRO, _COLUMNS, options.results)
    shapes = [shape_of(each, options.quick) for each in (QUICK_DEPTHS if options.quick else depths)]
    asks = {str(s.layers): QUICK_ASKS if options.quick else deep_asks if s.layers >= DEEP else FEW_ASKS for s in shapes}
    done = resume(report, {label: len(row) + 1 for label, row in asks.items()})
    for shape in shapes:
        label = str(shape.layers)
        if label not in done:
            session = Session(resnet(f"resnet{label}", shape, stages == "scanned"), target)
            points = add_rows(report, (label, stages), session, asks[label])
            if shape.layers >= DEEP:
                report.facts += [line for each in BARS for line in bar(f"{label} layers", points, *each)]
            report.write()
    report.finish(report.facts)
    return report
