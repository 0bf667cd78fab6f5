"""What plain JAX keeps between the forward and backward passes, and what is really needed.

In: ``Graph``. Out: ``Analysis``: one row per value, sorted by bytes, with totals. Nothing is compiled.

*Kept* is what JAX's own linearisation stores: values that the backward pass reads, and internals of JVP rules
(for ``tanh`` it is ``1 - y*y`` instead of ``y``). *Needed* is the least set of program values from which the
backward pass can be run without recomputing anything but internals.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from remat_plan import _compat
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import needed_values
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Residual:
    """One value that is kept (or needed) for the backward pass.

    Attributes:
        size_bytes, shape, dtype: of the value.
        primitive: what makes it; ``"argument"`` for inputs, ``"constant"`` for closed-over arrays.
        source: ``file.py:line`` of the user's code.
        function: the user's function there.
        name: the user's ``checkpoint_name``, or ``""``.
        why: ``"value"`` (a value of the program) or ``"internal"`` (made by a derivative rule).
        needed: whether the backward pass needs it; False for internals, which can be made from what is needed.
        kept: whether plain JAX keeps it.
        read_by: primitive whose backward pass reads it.
    """

    size_bytes: int
    shape: tuple[int, ...]
    dtype: str
    primitive: str
    source: str
    function: str
    name: str
    why: str
    needed: bool
    kept: bool
    read_by: str


@dataclass(frozen=True, slots=True, repr=False)
class Analysis:
    """What a gradient step keeps. See the module docstring.

    Attributes:
        residuals: sorted by bytes, largest first. Arguments are listed but not counted in the totals: they
            are there anyway.
        kept_bytes: what plain JAX keeps beside the arguments.
        needed_bytes: what is really needed beside the arguments.
        argument_bytes: bytes of all arguments.
        equations: how many equations the program has.
    """

    residuals: tuple[Residual, ...]
    kept_bytes: int
    needed_bytes: int
    argument_bytes: int
    equations: int

    def to_json(self) -> str:
        """Return the analysis as JSON text: the totals, and one object for each residual."""
        return json.dumps({"kind": "analysis", **asdict(self)}, sort_keys=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the largest residuals as bars (needs matplotlib)."""
        from remat_plan.report import plots

        return plots.plot_analysis(self, ax)

    def __repr__(self) -> str:
        kept, needed = format_bytes(self.kept_bytes), format_bytes(self.needed_bytes)
        return f"<Analysis of {self.equations} equations: {kept} kept, {needed} needed>"

    def __str__(self) -> str:
        from remat_plan.report import text

        return text.analysis_text(self)

    def __rich__(self) -> Any:
        from remat_plan.report import tables, terminal

        return terminal.render(tables.analysis_table(self))

    def _repr_html_(self) -> str:
        from remat_plan.report import html

        return html.analysis_html(self)


def _row(graph: Graph, v: int, kept: bool, needed: bool, read_by: str) -> Residual:
    value = graph.values[v]
    constants = {c for c, _ in graph.constants}
    primitive, source, function = "constant" if v in constants else "argument", "", ""
    if value.producer >= 0:
        eqn = graph.ops[value.producer].eqn
        primitive = eqn.primitive.name
        source, function = _place(eqn)
    return Residual(
        value.size_bytes,
        tuple(value.aval.shape),
        str(value.aval.dtype),
        primitive,
        source,
        function,
        value.name,
        "value",
        needed,
        kept,
        read_by,
    )


def _place(eqn: object) -> tuple[str, str]:
    file, line, function = _compat.source_line(eqn)
    return (f"{file}:{line}" if file else ""), function


def analyze_graph(graph: Graph) -> Analysis:
    """Return the analysis of a graph."""
    needed = needed_values(graph)
    kept: dict[int, str] = {}
    readers: dict[int, str] = {}
    internals: list[Residual] = []
    for op in graph.ops:
        if not op.differentiated:
            continue
        need = graph.needs[op.kind]
        for side, position in need.direct:
            v = op.operands[position] if side == "in" else op.outputs[position]
            if v >= 0:
                kept.setdefault(v, op.primitive)
        for v in [op.operands[i] for i in need.operands] + [op.outputs[j] for j in need.outputs]:
            readers.setdefault(v, op.primitive)
        source, function = _place(op.eqn)
        for aval in need.internal_avals:
            internals.append(
                Residual(
                    _compat.aval_bytes(aval),
                    tuple(aval.shape),
                    str(aval.dtype),
                    op.primitive,
                    source,
                    function,
                    "",
                    "internal",
                    False,
                    True,
                    op.primitive,
                )
            )
    rows = [
        _row(graph, v, v in kept, v in needed, kept.get(v) or readers[v])
        for v in sorted(set(kept) | set(needed))
        if v >= 0
    ]
    made = {v for v in set(kept) | set(needed) if v >= 0 and graph.values[v].producer >= 0}
    everything = sorted(rows + internals, key=lambda r: (-r.size_bytes, r.source, r.primitive, r.why))
    return Analysis(
        residuals=tuple(everything),
        kept_bytes=sum(graph.values[v].size_bytes for v in made if v in kept) + sum(r.size_bytes for r in internals),
        needed_bytes=sum(graph.values[v].size_bytes for v in made if v in needed),
        argument_bytes=sum(graph.values[v].size_bytes for v in graph.inputs),
        equations=len(graph.ops),
    )
