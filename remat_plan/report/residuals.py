"""What an analysis has to say, as rows; ``text`` and ``html`` only lay them out.

In: ``Analysis``. Out: ``ResidualGroup`` (equal residuals together), ``Fact`` (totals), a title.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remat_plan.report.rows import Fact, number_of
from remat_plan.results.places import file_label, is_cell
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis, Residual


@dataclass(frozen=True, slots=True)
class ResidualGroup:
    """Equal rows of an analysis."""

    count: int
    row: Residual

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.row.size_bytes

    @property
    def label(self) -> str:
        """The user's name, or what makes it."""
        return repr(self.row.name) if self.row.name else self.row.primitive

    @property
    def type(self) -> str:
        """Type and shape, as ``float32[8,512]``."""
        return f"{self.row.dtype}[{','.join(map(str, self.row.shape))}]"

    @property
    def status(self) -> str:
        """Saved, needed, or both, and by whose backward pass; of whose rule an internal is part."""
        if self.row.why == "internal":
            return f"saved, internal of {self.row.read_by}'s rule"
        if self.row.saved:
            by = f"by {self.row.read_by}"
            return f"saved and needed {by}" if self.row.needed else f"saved {by}, not needed"
        return f"needed by {self.row.read_by}, not saved"

    @property
    def place(self) -> str:
        """Source file and line."""
        file, colon, line = self.row.source.rpartition(":")
        return file_label(file) + colon + line if file else "-"

    @property
    def hint(self) -> str:
        """The same, with folders and the function; a cell of a notebook has no folder."""
        source = self.place if is_cell(self.row.source.rpartition(":")[0]) else self.row.source
        return f"{source} {self.row.function}".strip()


def residual_groups(analysis: Analysis) -> tuple[list[ResidualGroup], list[ResidualGroup]]:
    """Return (made by the program, arguments and constants), equal rows together, most bytes first."""
    counts: dict[Any, int] = {}
    for row in analysis.residuals:
        counts[row] = counts.get(row, 0) + 1
    groups = sorted(
        (ResidualGroup(count, row) for row, count in counts.items()),
        key=lambda g: (-g.size_bytes, g.row.source, g.row.primitive, g.row.why, g.row.read_by),
    )
    owned = [g for g in groups if g.row.primitive in ("argument", "constant")]
    return [g for g in groups if g.row.primitive not in ("argument", "constant")], owned


def analysis_title(analysis: Analysis) -> str:
    """What was analysed."""
    return (
        f"Plain JAX saves {format_bytes(analysis.saved_bytes)} between the forward and backward passes of "
        f"{number_of(analysis.equations, 'equation')}"
    )


def analysis_facts(analysis: Analysis) -> list[Fact]:
    """Totals of an analysis."""
    saved, needed = analysis.saved_bytes, analysis.minimum_residual_bytes
    share = needed / saved if saved else None
    remark = "values of the program; internals of derivative rules follow from them"
    return [
        Fact("plain JAX saves", format_bytes(saved), 1.0 if saved else None, "beside the arguments"),
        Fact("minimum required", format_bytes(needed), share, remark),
        Fact("arguments", format_bytes(analysis.argument_bytes), None, "always live"),
    ]
