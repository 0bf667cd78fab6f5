"""OpenAI gradient-checkpointing: the CIFAR-10 ResNet at batch 1280, of growing depth; memory and cost against depth.

In: nothing; networks are compiled for the CPU and never run. Out: ``results/headlines/cifar.md``.

Its README (github.com/cybertronai/gradient-checkpointing) claims "more than 10x larger models" at "only a 20% increase
in computation time", and shows the ResNet of ``cifar10_main.py`` (two 3x3 convolutions a block, 16, 32 and 64 channels)
at batch size 1280.
"""

from __future__ import annotations

from benchmarks.common import Options, Report, Session
from benchmarks.headlines.points import COLUMNS, COLUMNS_TEXT, SQRT, add_rows, bar, peak_over, resume
from benchmarks.headlines.resnets import Shape, resnet

BLOCKS = (36, 144, 9)
"""Blocks of each of the three stages: 218, 866 and 56 layers."""

QUICK_BLOCKS = (4,)
ASKS = (SQRT, peak_over(5), peak_over(10))
BARS = ((10.0, 20.0),)
_COLUMNS = ("layers", *COLUMNS)
_INTRO = f"""OpenAI's gradient-checkpointing: the ResNet for CIFAR-10 (blocks of two 3x3 convolutions, 16, 32 and 64
channels, BatchNorm before each) at batch 1280, 32 x 32, float32, stages scanned. It claims models more than ten times
as large for 20 % more time. {COLUMNS_TEXT}"""


def shape_of(blocks: int, quick: bool) -> Shape:
    """The network with so many blocks in each stage."""
    return Shape((blocks,) * 3, 4, False, 4, 16, 10) if quick else Shape((blocks,) * 3, 16, False, 1280, 32, 10)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    report = Report("cifar", _INTRO, _COLUMNS, options.results)
    shapes = [shape_of(blocks, options.quick) for blocks in (QUICK_BLOCKS if options.quick else BLOCKS)]
    done = resume(report, {str(shape.layers): len(ASKS) + 1 for shape in shapes})
    for shape in shapes:
        if str(shape.layers) not in done:
            points = add_rows(report, (str(shape.layers),), Session(resnet("cifar", shape, True)), ASKS)
            report.facts += [line for each in BARS for line in bar(f"{shape.layers} layers", points, *each)]
            report.write()
    report.finish(report.facts)
    return report
