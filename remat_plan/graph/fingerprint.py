"""A program's identity: one short text per equation, and a digest of them all.

In: ``Graph``. Out: ``Fingerprint``; two programs with the same one can run the same plan.

Texts hold primitive, parameters (addresses removed), types of operands and outputs, and which earlier values it
reads; so they are the same in every process. Numbers that random keys are made from are left out: layers that draw
different random numbers run the same plan.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from remat_plan.graph.records import Graph
from remat_plan.graph.walks import Texts

_SEEDED = ("random_seed", "random_fold_in")
"""Primitives whose literal operands do not change what a program costs."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a program.

    ``digest`` is of everything; ``equations`` are digests of eight hexadecimal digits, ``labels`` what a person can
    read of each (``dot_general float32[8,4]``); ``inputs`` are types, ``differentiated`` numbers of arguments.
    """

    digest: str
    equations: tuple[str, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    differentiated: tuple[int, ...]


def fingerprint(graph: Graph) -> Fingerprint:
    """Return the identity of a graph."""
    texts = Texts()
    number: dict[int, str] = {v: f"a{i}" for i, v in enumerate(graph.inputs)}
    number.update((v, f"c{i}:{graph.values[v].text}") for i, (v, _) in enumerate(graph.constants))
    equations, labels = [], []
    for op in graph.ops:
        seeded = op.primitive in _SEEDED
        operands = (
            number[v] if v >= 0 else "seed" if seeded else f"lit:{graph.literals[-1 - v]!r}" for v in op.operands
        )
        reads = ",".join(operands)
        outputs = " ".join(graph.values[v].text for v in op.outputs)
        for i, v in enumerate(op.outputs):
            number[v] = f"{op.index}.{i}"
        body = f"{op.primitive}|{texts.of(op.eqn)}|{reads}|{outputs}|{int(op.differentiated)}"
        equations.append(hashlib.sha256(body.encode()).hexdigest()[:8])
        labels.append(f"{op.primitive} {outputs}".strip())
    inputs = tuple(graph.values[v].text for v in graph.inputs)
    ends = ",".join(number[v] if v >= 0 else repr(graph.literals[-1 - v]) for v in graph.outputs)
    moving = ",".join(number[v] for v in graph.differentiated_inputs)
    whole = "\n".join((*inputs, *equations, ends, moving))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    moved = set(graph.differentiated_inputs)
    differentiated = tuple([i for i, v in enumerate(graph.inputs) if v in moved])
    return Fingerprint(digest, tuple(equations), tuple(labels), inputs, differentiated)


def difference(planned: Fingerprint, given: Fingerprint) -> str:
    """Say where two programs first differ."""
    if planned.inputs != given.inputs:
        for i, (a, b) in enumerate(zip(planned.inputs, given.inputs, strict=False)):
            if a != b:
                return f"argument leaf {i} was {a}, now it is {b}"
        counts = f"there were {len(planned.inputs)} argument arrays, now there are {len(given.inputs)}"
        return f"{counts} (a bool is none, unless jax.jit takes it: name it in its static_argnums)"
    for i, (a, b) in enumerate(zip(planned.equations, given.equations, strict=False)):
        if a != b:
            then, now = planned.labels[i], given.labels[i]
            same = " (other parameters or operands)" if then == now else ""
            return f"equation {i} was {then}, now it is {now}{same}"
    if len(planned.equations) != len(given.equations):
        i = min(len(planned.equations), len(given.equations))
        longer = planned if len(planned.equations) > i else given
        which = "planned" if longer is planned else "given"
        return (
            f"{len(planned.equations)} equations were planned, now there are {len(given.equations)}; the first "
            f"one without a counterpart is equation {i} of the {which} program, {longer.labels[i]}"
        )
    if planned.differentiated != given.differentiated:
        return f"gradients were with respect to argument leaves {planned.differentiated}, now {given.differentiated}"
    return "the outputs are different"
