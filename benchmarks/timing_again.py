"""The table of measured against predicted seconds, with predictions of the code as it is: nothing is measured.

In: ``results/timing.json``, which ``benchmarks.timing`` writes. Out: ``results/timing.md``.
"""

from __future__ import annotations

from benchmarks.common import Options, Report
from benchmarks.timing import Store, table


def run(options: Options) -> Report:
    """Predict by the stored rates what was measured; write and return the table."""
    path = options.results / "timing.json"
    store = Store.read(path)
    if not store.steps:
        raise FileNotFoundError(f"{path} is not there: `python -m benchmarks time` measures and writes it.")
    return table(store, options)
