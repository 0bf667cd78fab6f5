"""``python -m benchmarks``: run some or all benchmarks."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.architectures.table import ARCHITECTURES
from benchmarks.authors import AUTHORS, SIZES
from benchmarks.common import RESULTS, Options
from benchmarks.headlines import HEADLINES
from benchmarks.longest import ATTENTIONS
from benchmarks.models import MODELS
from benchmarks.offload import NAMES as OFFLOADED
from benchmarks.packages import PACKAGES
from benchmarks.pods.configs import PODS
from benchmarks.shipped.configs import SHIPPED
from benchmarks.split import PLACES

_MODULES = {
    name: f"benchmarks.{name}"
    for name in ("budgets", "stock", "strategies", "planning_time", "gradients", "decorating", "loops", "targets")
}
_MODULES |= {"authors": "benchmarks.authors_remat", "structures": "benchmarks.structures", "hands": "benchmarks.hands"}
_MODULES |= {"sweep": "benchmarks.sweep"}
_MODULES |= {"fit": "benchmarks.fit", "devices": "benchmarks.devices", "time": "benchmarks.timing"}
_MODULES |= {"peaks": "benchmarks.peaks", "overheads": "benchmarks.overheads", "headlines": "benchmarks.headlines"}
_MODULES |= {"devices_absent": "benchmarks.devices_absent", "architectures": "benchmarks.architectures.table"}
_MODULES |= {"referee": "benchmarks.referee.table", "packages": "benchmarks.packages.plans"}
_MODULES |= {"longest": "benchmarks.longest"}
_MODULES |= {"split": "benchmarks.split", "offload": "benchmarks.offload", "gpu": "benchmarks.gpu.table"}
_MODULES |= {"shipped": "benchmarks.shipped.table", "pods": "benchmarks.pods.table"}
_MODULES |= {"predict": "benchmarks.predict", "summary": "benchmarks.summary"}
ALL = tuple(_MODULES)
_MODULES |= {"time_again": "benchmarks.timing_again"}
_EPILOG = """benchmarks (each writes benchmarks/results/<name>.md, growing as it goes):
  budgets        7 models x 7 budgets: compiled peak against budget, slack, overhead, gap     (about 20 minutes)
  stock          our plan at the memory of each stock jax.checkpoint policy: never slower?   (about 20 minutes)
  strategies     every strategy on 4 models, and memory against length on a chain            (about 15 minutes)
  planning_time  seconds to plan against seconds to compile: GPT-2 and 1000 layers            (about 2 minutes)
  gradients      gradients of planned and plain steps against float64 (small models; runs)    (about 2 minutes)
  decorating     seconds to trace a decorated GPT-2 in Flax Linen against the plain one     (about 3 minutes)
  loops          rp.scan against Equinox's checkpointed scan; a loop of 1,000,000 steps       (about 5 minutes; runs)
  targets        GPT-2 and ResNet-50 planned for an H100 and a TPU v5e that are not here      (two hours, with
                 --targets, --timeout 9000; needs the extras cuda12 and tpu)
  authors        our plan at the memory of the checkpoints that authors of scanned models wrote    (--size; an hour)
  structures     every strategy on one network written unrolled, scanned, nested, in a conditional  (about 20 minutes)
  hands          our plan at the memory of jax.checkpoint by hand, on one block in ten structures   (about 3 minutes)
  sweep          the least we name, and our plan at a hand's peak, of 50 small models           (about 30 minutes)
  fit            four whole training steps in budgets, and their largest batches, on CPU, H100, TPUs  (--targets; hours;
                 needs the extras cuda12 and tpu)
  devices        a whole step on eight devices of the host: bytes of one, gradients of one  (about 10 minutes; runs)
  devices_absent  a whole step for eight H100s and eight chips of a v5e that are not here   (--targets; half an hour;
                 needs the extras cuda12 and tpu)
  time           measured seconds of policies and plans against predicted ones, here   (under 30 minutes; runs)
  peaks          predicted against compiled peaks on an H100 and a TPU v5e that are not here (--targets; an hour;
                 needs the extras cuda12 and tpu)
  architectures  the same of 25 other architectures, eight held out, and on a CPU (--targets; a quarter of an hour;
                 needs the extras cuda12 and tpu)
  headlines      what the papers promise, redone: Chen's 1000-layer ResNet, OpenAI's CIFAR-10 ResNet, a long LSTM,
                 O(log n), MONeT's networks, Checkmate's batches (writes to results/headlines/; three hours;
                 imagenet_h100 needs the extra cuda12)
  overheads      predicted overheads against those of compiled modules on both    (--targets; hours; the same extras)
  time_again     not among all: the table of `time` with predictions made anew, nothing measured      (a minute)
  packages       models that packages ship, at 75, 50 and 30 % of their peak: bytes and gradients (an hour; runs what
                 is installed)
  referee        the planner against exact optima of small graphs (Checkmate, a search)   (about 25 minutes)
  predict        what each rule of the evaluator gains, by the figures that peaks, architectures and overheads keep
                 (--without RULE, --targets; 20 minutes)
  split          four published loss heads and eight models with one large place: slices chosen, by hand, and none
                 (--models, --targets, --timeout; hours; needs the extras cuda12 and tpu)
  offload        scanned models by hand and planned, with the host's memory and without
                 (--models, --targets; hours; needs the extras cuda12 and tpu)
  longest        the longest sequence that Llama 3 8B trains on one H100 or H200, by hand and planned (--models: scores,
                 flash; --targets; hours; needs the extra cuda12)
  shipped        ten configurations of MaxText under the policies of its authors, and planned in their bytes
                 (--models, --timeout; two hours; needs the extra tpu)
  pods           whole steps of Llama 3 70B and 405B on 64 and 256 chips, by hand and fitted: bytes, seconds, what chips
                 send each other (--models, --timeout 3000; hours; needs the extras cuda12 and tpu)
  gpu            what a card did (make gpu, on a machine with one) against what was said without it   (a second)
  summary        of these tables the figures that matter most, and how old they are: results/README.md   (a second)

Nothing but `gradients`, `loops`, `devices`, `time` and `packages` runs a model: steps are compiled and their memory is
read. No accelerator is used.

`time` keeps its rows in timing.json and goes on where it stopped; a model that is named is run again. Run it on a
machine that does nothing else. `overheads`, `peaks`, `architectures`, `fit`, `targets`, `devices_absent`, `split`,
`offload`, `longest`, `shipped` and `pods` keep theirs in JSON beside the tables and make only what is missing: delete a
line to make it again.

examples:
  python -m benchmarks                          everything, in that order
  python -m benchmarks budgets --models gpt2    one benchmark, one model
  python -m benchmarks --quick                  tiny models, a few minutes: tests the benchmarks, not the plans"""


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run what it names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the plans of remat_plan and write tables.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(ALL)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="tiny models; writes to results/quick/")
    known = {"authors": AUTHORS, "headlines": HEADLINES, "packages": PACKAGES, "architectures": ARCHITECTURES}
    known |= {"split": PLACES, "offload": OFFLOADED, "longest": ATTENTIONS, "shipped": SHIPPED, "pods": PODS}
    parser.add_argument("--models", nargs="+", default=(), metavar="model",
                        choices=sorted({*MODELS, *(name for names in known.values() for name in names)}),
                        help=f"only these: {', '.join(MODELS)}; "
                        + "; ".join(f"of {name}: {', '.join(names)}" for name, names in known.items()))  # fmt: skip
    parser.add_argument("--size", choices=SIZES, default="small", help="of the models of authors (default small)")
    parser.add_argument(
        "--targets", nargs="+", default=(), metavar="target", help="of those that name targets: only these"
    )
    parser.add_argument("--policies", nargs="+", default=(), metavar="policy", help="of authors: only these")
    parser.add_argument("--without", nargs="+", default=(), metavar="rule", help="of predict: only these rules")
    parser.add_argument("--results", type=Path, help="folder for the tables (default: benchmarks/results)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="s",
                        help="seconds for a child of planning_time, targets, shipped, pods, split")  # fmt: skip
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(_MODULES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(_MODULES)}")
    results = given.results or (RESULTS / "quick" if given.quick else RESULTS)
    options = Options(
        *(tuple(given.models), given.quick, given.timeout, results, given.size, tuple(given.policies)),
        targets=tuple(given.targets),
        without=tuple(given.without),
    )
    for name in given.names or ALL:
        print(f"\n== {name}", flush=True)
        importlib.import_module(_MODULES[name]).run(options)


if __name__ == "__main__":
    main()
