"""The program as data: values, operations, the graph.

In: nothing. Out: frozen records used by every later stage.

A ``Graph`` is the user's function after flattening: one list of equations in execution order, calls inlined,
dead equations dropped. Values and operations are numbered; records refer to each other by number only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MATRIX_PRIMITIVES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
"""Products and convolutions."""

TAG_PREFIX = "remat_plan:"
"""How the names begin that a plan gives to the values it saves."""

AXIS_PREFIX = "remat_plan_axis:"
"""How the names begin that ``rp.split`` gives to what it slices; behind it stand the argument and the dimension."""


@dataclass(frozen=True, slots=True)
class Value:
    """One array of the program: its number, JAX's abstract value, bytes on one device, the number of the operation that
    makes it (-1 for inputs and constants), and the user's ``checkpoint_name`` or ``""``."""

    index: int
    aval: Any
    size_bytes: int
    producer: int
    name: str

    @property
    def text(self) -> str:
        """Dtype and shape as JAX prints them, for example ``float32[8,512]``; not along which axes of a mesh parts
        differ."""
        return self.aval.str_short().partition("{V:")[0] if hasattr(self.aval, "str_short") else str(self.aval)


@dataclass(frozen=True, slots=True)
class Op:
    """One equation of the flattened program.

    Attributes:
        eqn: the JAX equation: primitive and parameters (its own variables are not used).
        operands: value numbers, or ``-1 - k`` for the ``k``-th literal of ``Graph.literals``; ``reads``: values only.
        active: which operands carry a tangent of the differentiated inputs.
        differentiated: whether a cotangent reaches this equation in the backward pass.
        kind: number of the class of equal equations (same primitive, parameters, types, literals, activity, outputs
            that are given a cotangent).
        effectful: whether it has a JAX effect (``debug.print``, ...), so that it must run exactly once (see
            ``Graph.apart``).
    """

    index: int
    eqn: Any
    operands: tuple[int, ...]
    outputs: tuple[int, ...]
    active: tuple[bool, ...]
    differentiated: bool
    kind: int
    effectful: bool
    reads: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple([v for v in self.operands if v >= 0]))

    @property
    def primitive(self) -> str:
        """Name of the JAX primitive."""
        return self.eqn.primitive.name


@dataclass(frozen=True, slots=True)
class Graph:
    """A flattened program. See the module docstring.

    Attributes:
        ops, values: in execution order.
        inputs, differentiated_inputs: value numbers of flattened arguments, and of those that gradients are taken of.
        constants: (value number, array) of closed-over constants.
        literals: Python or NumPy scalars written into equations.
        outputs: value numbers, or ``-1 - k`` for literals; ``output_avals`` are their types.
        wanted: the values among them that are given a cotangent.
        needs: per operation class, what its backward pass reads (see ``graph.needs``).
        alike: per operation class, a number that it shares with those that are equal work: which part of an array a
            slice is, what a name is, and what number a literal is, do not matter.
        active, moving: per value, whether it carries a tangent and a cotangent; whether it carries a tangent.
        apart: operations with an effect and with results that are read, so that they stay outside any segment. One
            whose results nobody reads may be among the operations of a segment, and runs right behind it.
        merged: how many equations were left out since they repeat another.
        is_region: whether it is inside a structure of another graph.
        carried: of the body of a loop, the inputs that the last step handed on.
        in_place: runs a function while the maps around the region are being traced, whose axes its equations may speak
            of; None where there are none.
        bodies: regions inside structures, by class of equation, filled when asked for; so are segments in slices, and
            what of them is apart, by what they are.
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    differentiated_inputs: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    literals: tuple[Any, ...]
    outputs: tuple[int, ...]
    output_avals: tuple[Any, ...]
    wanted: frozenset[int]
    needs: tuple[Any, ...]
    alike: tuple[int, ...]
    active: tuple[bool, ...]
    moving: tuple[bool, ...]
    apart: frozenset[int] = frozenset()
    keep_remat: bool = False
    merged: int = 0
    is_region: bool = False
    carried: tuple[int, ...] = ()
    in_place: Callable[[Callable[[], Any]], Any] | None = field(default=None, compare=False, repr=False)
    bodies: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
