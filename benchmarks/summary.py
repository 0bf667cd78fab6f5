"""The figures that matter most, on one screen.

In: the facts at the end of ``results/*.md``, the history of the repository. Out: ``results/README.md``: each figure,
with its table, the commit that last changed that, and how many commits have changed the package since then.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import RESULTS, Options

ROOT = RESULTS.parent.parent
_INTRO = """# Results

Made by `python -m benchmarks summary` of the tables in this folder. Age: commits that changed the package since the
table was made. A figure of an old table may be better or worse today.

| question | figure | table | commit | age |
| --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Number:
    """One figure.

    Attributes:
        question: what it answers.
        table: the file that has it, without ``.md``.
        pattern: of the line that has it; its first group is the figure.
    """

    question: str
    table: str
    pattern: str

    def read(self, results: Path) -> str:
        """The figure; raises ``ValueError`` where the table does not have it (any more)."""
        text = (results / f"{self.table}.md").read_text(encoding="utf-8")
        if (found := re.search(self.pattern, text, re.MULTILINE)) is None:
            raise ValueError(f"results/{self.table}.md has no line that matches {self.pattern!r}")
        return found[1].strip()


NUMBERS = (
    Number("Does a plan exceed its budget?", "budgets", r"^\* over the budget: (.*)$"),
    Number(
        "How much of a budget is left unused, where anything is recomputed?",
        "budgets",
        r"^\* mean slack of .*?: ([\d.]+ %)",
    ),
    Number(
        "The same of whole training steps, and how often is one compiled?",
        "fit",
        r"^\* those that recompute anything: (.*)$",
    ),
    Number("Is a hand faster, block by block?", "hands", r"^\* (\d+ rows, \d+ behind)"),
    Number(
        "Is the least above that of a named strategy, or a hand ahead, in small models?",
        "sweep",
        r"^\* (\d+ models, \d+ behind)",
    ),
    Number("Are authors' own checkpoints faster?", "authors", r"^\* (\d+ rows, \d+ behind)"),
    Number("Which policies of JAX compute less at the same peak?", "stock", r"^\* ours with more FLOPs .*?: (.*)$"),
    Number(
        "How far from the optimum, in small graphs?",
        "referee",
        r"^\* planner: \d+ budgets met; over the optimum (.*?);",
    ),
    Number(
        "Off by, peaks of architectures that no rule is read off: CPU",
        "architectures",
        r"^\* cpu, held out: off by (.*) on",
    ),
    Number("H100", "architectures", r"^\* gpu:h100, held out: off by (.*) on"),
    Number("TPU v5e", "architectures", r"^\* tpu:v5e:1x1, held out: off by (.*) on"),
    Number(
        "How far are predicted from measured overheads on a CPU, by measured rates?",
        "timing",
        r"^\* off by, measured rates: (.*?) of",
    ),
    Number("The same by the rates that plans go by at first", "timing", r"^\* off by, rates of the table: (.*?) of"),
    Number("Our time on an H100 against a hand's, planned for its bytes", "gpu", r"^\* ours against .*?: (.*)$"),
    Number("Predicted overheads against an H100's clock", "gpu", r"^\* time predicted, off by: (.*?);"),
    Number(
        "Gradients off by more than twice the rounding of the plain step",
        "gradients",
        r"^\* error of planned above .*?: (\w+)",
    ),
    Number(
        "How much faster is a step with the host's memory, in the bytes of each layer in jax.checkpoint?",
        "offload",
        r"^\* in the bytes of each layer .*? by: (.*)$",
    ),
    Number("Is a hand that moves values faster, in its bytes?", "offload", r"^\* slower than a hand .*?: (.*)$"),
    Number(
        "How much longer are the sequences of Llama 3 8B that one GPU trains than with each layer in jax.checkpoint?",
        "longest",
        r"^\* times as long as by hand: (.*)$",
    ),
    Number(
        "Are policies of configurations that MaxText ships ahead, in their bytes?",
        "shipped",
        r"^\* behind the policy of the authors: (.*)$",
    ),
    Number(
        "Does planning take longer than compiling the plain step?",
        "planning_time",
        r"^\* planning takes more .*?: (.*)$",
    ),
)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _row(number: Number, results: Path) -> str:
    table = f"{number.table}.md"
    commit = _git("log", "-1", "--format=%h", "--", str(results / table))
    age = _git("rev-list", "--count", f"{commit}..HEAD", "--", "remat_plan") if commit else "0"
    return f"| {number.question} | {number.read(results)} | [{number.table}]({table}) | {commit or 'none'} | {age} |\n"


def run(options: Options) -> None:
    """Write the screen and print it. Tables have to be committed before, for their ages to be right."""
    text = _INTRO + "".join(_row(number, options.results) for number in NUMBERS)
    (options.results / "README.md").write_text(text, encoding="utf-8")
    print(text)
