"""Where things stand in the user's source, in words: files, lines, values, and effects that are in the way.

In: the file that a traceback names, equations, a ``Graph``. Out: texts for tables, notes and errors. Of a cell of a
notebook, whose file is temporary and named after a process and a hash, the name is the number that stands beside the
cell, ``In[3]``; ``cell`` where nobody knows it.

An effect (``jax.debug.print``, a callback) must happen exactly once and in its order. What only tells something runs
behind the segment that it is in, and keeps nothing from being planned. What is read by others is never inside a
segment; a loop with an effect in its steps is planned inside, but no group of its steps is run again; an equation that
holds one and cannot be planned inside stays as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import is_loop, structure_of

_CELL = re.compile(r"ipykernel_\d+[/\\]\d+\.py$|<?ipython-input-\d+-\w+(\.py)?>?$")
_SHOWN = 3
"""How many places a text names; the others are counted."""


def is_cell(file: str) -> bool:
    """Tell whether a file is a cell of a notebook."""
    return bool(_CELL.search(file))


def file_label(file: str) -> str:
    """Return the name of a file.

    >>> file_label("/home/me/model.py"), file_label("/tmp/ipykernel_71/1234567.py"), file_label("<ipython-input-3-ab>")
    ('model.py', 'cell', 'cell')
    """
    if not is_cell(file):
        return os.path.basename(file)
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return named[1] if named else "cell"


def lines_text(file: str, lines: Collection[int]) -> str:
    """Lines of one file, from the first to the last: ``model.py:3-7``."""
    first, last = min(lines), max(lines)
    return f"{file}:{first}-{last}" if last > first else f"{file}:{first}"


def value_text(graph: Graph, v: int) -> str:
    """One value as text: name or primitive, type, source line."""
    value = graph.values[v]
    if value.producer < 0:
        return f"{'carry' if v in graph.carried else 'argument'} {value.text}"
    eqn = graph.ops[value.producer].eqn
    label = f"{value.name!r}" if value.name else eqn.primitive.name
    return f"{label} {value.text} {line_text(eqn)}".strip()


def line_text(eqn: Any) -> str:
    """The user's source line of an equation as ``file.py:line``, or nothing."""
    file, line, _ = _compat.source_line(eqn)
    return f"{file_label(file)}:{line}" if file else ""


def equation_text(eqn: Any) -> str:
    """One equation as text: its primitive, and the user's source line where there is one; else the largest one in it
    that has a line, as in a loop over slices."""
    name, line = eqn.primitive.name, line_text(eqn)
    inside = [] if line else [inner for inner in equations_in(eqn) if line_text(inner)]
    if inside:
        return f"{name} ({equation_text(max(inside, key=_result_bytes))} in it)"
    return f"{name} {line}".strip()


def equations_in(eqn: Any) -> Iterator[Any]:
    """Yield the equations that an equation runs inside, at every level."""
    for sub in _compat.sub_jaxprs(eqn.params):
        for inner in _compat.open_jaxpr(sub)[0].eqns:
            yield inner
            yield from equations_in(inner)


def _result_bytes(eqn: Any) -> int:
    return sum(_compat.aval_bytes(v.aval) for v in eqn.outvars)


def effect_places(graph: Graph) -> tuple[str, ...]:
    """Primitive and source line of each effect that keeps something from being planned, those inside loops too."""
    return tuple(dict.fromkeys(equation_text(_innermost(op.eqn)) for op in _in_the_way(graph)))


def effect_notes(graph: Graph) -> list[str]:
    """What is not planned because of effects: where, why, and what to do; nothing where nothing is lost."""
    ops = list(_in_the_way(graph))
    loops = _around([op for op in ops if is_loop(op)])
    whole = _around([op for op in ops if not is_loop(op) and _innermost(op.eqn) is not op.eqn])
    apart = dict.fromkeys(equation_text(op.eqn) for op in ops if _innermost(op.eqn) is op.eqn)
    reason = "an effect must happen exactly once. Take it out, or return the value and use it outside"
    notes = []
    if loops:
        notes.append(f"planned step by step, without groups of steps: {loops}; {reason}, if the peak is high")
    if whole:
        notes.append(f"not planned inside: {whole}; {reason}")
    if apart:
        notes.append(f"no segment crosses {_listed(apart)}: {reason}, if that keeps the peak high")
    return notes


def _in_the_way(graph: Graph) -> Iterator[Op]:
    """Yield the operations that are planned less freely because of effects, of the regions inside too."""
    for op in graph.ops:
        structure = structure_of(op) if op.index in graph.apart else None
        if op.index in graph.apart and (structure is None or is_loop(op)):
            yield op
        for region in structure.regions(graph, op) if structure is not None else ():
            yield from _in_the_way(region)


def _around(ops: Iterable[Op]) -> str:
    inside = {equation_text(op.eqn): equation_text(_innermost(op.eqn)) for op in ops}
    return _listed(f"{outer} (for {inner} in it)" for outer, inner in inside.items())


def _innermost(eqn: Any) -> Any:
    for sub in _compat.sub_jaxprs(eqn.params):
        for inner in _compat.open_jaxpr(sub)[0].eqns:
            if _compat.has_effects(inner):
                return _innermost(inner)
    return eqn


def _listed(texts: Iterable[str]) -> str:
    told = list(texts)
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more
