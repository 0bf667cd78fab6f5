"""The table of strategies, as text and for notebooks: what ``rp.strategies()`` returns.

In: nothing. Out: ``Strategies``, of the records that are registered when it is asked.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from remat_plan.planning.strategies.records import Strategy
from remat_plan.planning.strategies.registry import lookup, strategies

_HEADS = ("strategy", "budget", "what it does", "when not to use it", "source")
_WIDTHS = (13, 8, 27, 22, 32)


class Strategies:
    """All strategies: iterate over the records, look one up by name, print the table."""

    def __iter__(self) -> Iterator[Strategy]:
        return iter(strategies())

    def __len__(self) -> int:
        return len(strategies())

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self)

    def __getitem__(self, name: str) -> Strategy:
        return lookup(name)

    def __repr__(self) -> str:
        return f"<{len(self)} strategies: {', '.join(row.name for row in self)}>"

    def __str__(self) -> str:
        lines = [_line(_HEADS), "  ".join("-" * w for w in _WIDTHS)]
        for row in self:
            cells = [textwrap.wrap(text, w) for text, w in zip(_texts(row), _WIDTHS, strict=True)]
            lines += map(_line, zip_longest(*cells, fillvalue=""))
        return "\n".join([*lines, *_LEGEND])

    def _repr_html_(self) -> str:
        from remat_plan.report import html  # where no table is shown as HTML, nothing of it is needed

        rows = [[html.prose(text) for text in _texts(row)] for row in self]
        return html.grid([(head, "<") for head in _HEADS], rows) + html.small(" ".join(_LEGEND))


_LEGEND = (
    "budget: needed; searched: the fastest of its schedules that fits, without a budget the one with the least",
    "peak; checked: one schedule, which must fit if there is a budget.",
)


def _texts(row: Strategy) -> tuple[str, ...]:
    return row.name, row.budget, row.summary, row.when_not_to_use, row.source


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(f"{cell:<{w}}" for cell, w in zip(cells, _WIDTHS, strict=True)).rstrip()
