"""What a backend's compiler does to a program's buffers, as a list of rules.

In: functions that answer the questions of the evaluator's stages. Out: ``Rule``, ``Backend``.

XLA has one front end and three back ends that differ in what they leave in memory. A stage asks the rules that its
backend has for it, and knows none by name; without any it does what a compiler does of which nothing else is known:
everything element-wise is fused, kernels run in the order of the program (``GENERIC``). The rules themselves are in
``backends``, a module for each compiler.

    stage       a rule is called with              and answers
    library     equation                           1: a library call may take it in; 2: starts with it; else 0
    kind        equation, kind                     how the equation fuses (``rules.Kind``), after the rules before
    bytes       type, choices of the innermost     bytes of an array
                dimensions
    lower       ``Lowering``, facts, reads         the numbers of its results; None to lower it as any other
    operands    ``Lowering``, facts, reads,        what it reads instead, and whether a library call may take it in
                library
    inner       ``Lowering``, facts, reads         choices of the two innermost dimensions of the result; None where
                                                   it is free
    stacks      whether nothing is made early      whether a loop writes the zeros of its stacks; else they are steps
    hoists      bytes of stacks whose rows a loop  bytes of those copies of them that are made before the loop
                narrows, size of the cache
    whole       ``Program``                        the same program, of steps as the compiler has them before it fuses
    takes_in    name of a primitive                whether it computes its operands on the way in
    follows     names of two primitives            whether the second, the only reader of the first's result, is
                                                   computed with it
    adds        step, the only reader of its       whether it adds its result to what else is read there, in the
                result                             memory of that
    written     steps, readers of each             the positions of those that are written whatever reads them
    divided     steps, readers of each, whether    the positions of those that are not computed in several kernels
                a reader may take a step in
    repeats     step, kernels, ``Copies``          whether it may be computed in each of the kernels, or in the only one
    beside      step, its other readers            whether it is computed again beside its result, which these read
    room        steps, readers of each             ``Emissions``: which kernels have no room for the code of a step
    order       kernels, sizes                     the kernels in the order in which they run, with what those that are
                                                   made as one read
    rows        program, kernels                   by kernel, the reductions of rows that it makes on its way
    apart       kernel                             whether no reader writes over its result
    joins       kernels, sizes                     by kernel, those that are launched with it
    workspace   program, kernels, ``Hardware``     by kernel, the bytes that a library is given beside what it reads
    far         step, bytes that no cache holds,   bytes that no cache speeds up
                moved, written, size of the cache
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what a compiler is known to do at one stage.

    Attributes:
        stage: see the module docstring.
        habit: a name; rules of several stages that are one habit of the compiler share it.
        source: the pass of XLA that it stands for, or where it was seen.
        apply: the function.
        primitives: those that it is asked about, at stages that ask about equations; empty for all.
    """

    stage: str
    habit: str
    source: str
    apply: Callable[..., Any]
    primitives: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Backend:
    """The rules that hold on one backend, and what its users ask beside predictions.

    Attributes:
        rules: in the order in which those of a stage are asked.
        reuses_outputs: temporaries live in the memory of outputs that are not written yet (``BufferAssigner``).
    """

    rules: tuple[Rule, ...] = ()
    reuses_outputs: bool = True

    def of(self, stage: str, primitive: str = "") -> tuple[Callable[..., Any], ...]:
        """The rules of a stage, in order; only those that are asked about a primitive, if one is given."""
        key = stage, primitive
        if key not in self._known:
            asked = [r for r in self.rules if not (primitive and r.primitives) or primitive in r.primitives]
            self._known[key] = tuple([rule.apply for rule in asked if rule.stage == stage])
        return self._known[key]

    def only(self, stage: str) -> Callable[..., Any] | None:
        """The rule of a stage that has one answer; None where the backend has none."""
        return next(iter(self.of(stage)), None)

    @cached_property
    def _known(self) -> dict[tuple[str, str], tuple[Callable[..., Any], ...]]:
        return {}

    def habits(self) -> tuple[str, ...]:
        """The names of what sets predictions here apart from those of ``GENERIC``."""
        shared = [] if self.reuses_outputs else ["reuses_outputs"]
        return tuple(dict.fromkeys([rule.habit for rule in self.rules] + shared))

    def without(self, habit: str) -> Backend:
        """The same backend without one of its habits."""
        left = tuple([rule for rule in self.rules if rule.habit != habit])
        return replace(self, rules=left, reuses_outputs=self.reuses_outputs or habit == "reuses_outputs")


GENERIC = Backend()
"""A fusing compiler that nothing else is known of."""
