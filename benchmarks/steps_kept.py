"""Tables of steps that are compiled by child processes, one step each, and kept: pods, shipped configurations.

In: a ``StepTable``. Out: its report, written after each step, so that a run goes on where another stopped.

The first step of a model is what its others are set against; where it has no figure, those are not made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from benchmarks.common import Options, Report, versions
from benchmarks.kept import Kept


class StepRow(Protocol):
    """A row: of a step of a model, with its figures or what stood in the way, and with which versions."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def step(self) -> str:
        """Of the steps of the table."""
        ...

    @property
    def problem(self) -> str:
        """Why there is no figure; empty where there is one."""
        ...

    def cells(self, model: Any, first: Self | None, /) -> tuple[str, ...]:
        """As text, beside the first step of its model."""
        ...


R = TypeVar("R", bound=StepRow)


@dataclass(frozen=True)
class StepTable(Generic[R]):
    """What tells one table from another.

    Attributes:
        title, intro, columns: of the report.
        module: is run with the name of a model, a step and the file that is kept, and prints a row as JSON.
        restore: makes a row of its fields.
        steps: of each model, in order.
        facts: of rows and the names of all models.
    """

    title: str
    intro: str
    columns: tuple[str, ...]
    module: str
    restore: Callable[..., R]
    steps: tuple[str, ...]
    facts: Callable[[Sequence[R], Iterable[str]], list[str]]

    def kept(self, path: Path) -> Kept[R]:
        """The rows in a file."""
        return Kept(path, self.restore, lambda row: (row.name, row.step))

    def run(self, options: Options, models: Mapping[str, Any]) -> Report:
        """Make what is missing; write and return the table of all that is kept."""
        report = Report(self.title, self.intro, self.columns, options.results)
        kept = self.kept(options.results / f"{self.title}.json")
        for name in options.choose(tuple(models)):
            for step in self.steps:
                first = kept.find((name, self.steps[0]))
                if kept.find((name, step)) is None and (step == self.steps[0] or (first and not first.problem)):
                    row = kept.put(self._child(name, step, kept.path, options))
                    print(*row.cells(models[name], first or row), sep=" | ", flush=True)
                    self._fill(report, kept.read(), models)
        self._fill(report, kept.read(), models)
        report.done = True
        report.write()
        print("\n".join(report.facts), flush=True)
        return report

    def _fill(self, report: Report, rows: Sequence[R], models: Mapping[str, Any]) -> None:
        """Write the table of some rows, in the order of the models."""
        found = {(row.name, row.step): row for row in rows}
        report.rows = [
            found[name, step].cells(model, found.get((name, self.steps[0])))
            for name, model in models.items()
            for step in self.steps
            if (name, step) in found
        ]
        report.facts = self.facts([row for row in rows if row.name in models], models)
        report.write()

    def _child(self, name: str, step: str, path: Path, options: Options) -> R:
        """A step made by a process of its own; one that takes longer than the time that is given has no figure."""
        command = [sys.executable, "-m", self.module, name, step, str(path)]
        with tempfile.TemporaryFile("w+") as err:
            try:
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=err, text=True, timeout=options.timeout_seconds, check=False
                )
            except subprocess.TimeoutExpired:
                problem = f"no result in {options.timeout_seconds:.0f} s"
                return self.restore(name, step, problem=problem, made=versions())
            if done.returncode:
                err.seek(0)
                last = (err.read().strip().splitlines() or ["failed"])[-1]
                return self.restore(name, step, problem=last[:120].replace("|", "/"), made=versions())
        return self.restore(**json.loads(done.stdout.splitlines()[-1]))


def listed(rows: Iterable[StepRow]) -> str:
    """Rows as a fact names them."""
    return ", ".join(f"{row.name} ({row.step})" for row in rows) or "none"
