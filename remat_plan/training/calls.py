"""Calls of a training step: taken apart, told from each other, and what of two is not the same.

In: a function of arguments by position, the arguments of one call, what ``jax.jit`` is told. Out: ``StepCall``.

Calls of one *kind* are traced alike: the same structure, shapes, dtypes, weak types, static values and settings of JAX.
Where arrays lie along automatic axes is no part of that. Shardings are the same if they lay out an array alike, however
they are spelt: what a compiled step returns is not spelt as what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding, Sharding

from remat_plan import _compat
from remat_plan.graph.call import struct_of
from remat_plan.small.recent import key_of
from remat_plan.training.settings import Settings
from remat_plan.training.step import Split, TrainingStep
from remat_plan.verify.place import DEVICE

_MOST_CHANGES = 3
"""So many changes are named; the others are counted."""


@dataclass(frozen=True)
class CallKind:
    """What a step is traced for.

    Attributes:
        key: equal for what is alike but for arrays, and hashable where that is not.
        splits, tree: the arguments without their arrays, the structure of the arrays.
        types: of each array.
        context: JAX's settings that tracing depends on (precisions, the mesh that is set).
    """

    key: Any
    splits: tuple[Split, ...] = field(compare=False)
    tree: Any = field(compare=False)
    types: tuple[Any, ...]
    context: Any


@dataclass(frozen=True)
class StepCall:
    """One call of a step (a function of arguments by position), with what ``jax.jit`` is told of this call.

    Attributes:
        names: what the arguments are called.
        splits, arrays: the arguments without their arrays; their arrays, one pytree for each.
        modules: what NNX modules among them are beside their state.
    """

    fn: Callable[..., Any]
    settings: Settings
    names: tuple[str, ...]
    splits: tuple[Split, ...]
    arrays: tuple[Any, ...]
    modules: Any = None

    @staticmethod
    def of(
        fn: Callable[..., Any], values: Sequence[Any], names: Sequence[str], settings: Settings, modules: Any = None
    ) -> StepCall:
        apart = [Split.of(value, i in settings.static_argnums) for i, value in enumerate(values)]
        splits, arrays = zip(*apart, strict=True) if apart else ((), ())
        return StepCall(fn, settings, tuple(names), splits, arrays, modules)

    @cached_property
    def leaves(self) -> list[Any]:
        return jax.tree.leaves(self.arrays)

    @cached_property
    def kind(self) -> CallKind:
        tree = jax.tree.structure(self.arrays)
        key = key_of((self.modules, tree, [(split.tree, split.others) for split in self.splits]))
        types = tuple(map(_type_of, self.leaves))
        return CallKind(key, self.splits, tree, types, _compat.trace_context())

    @property
    def is_traced(self) -> bool:
        """Whether it is made inside a trace (of ``jax.jit``, say)."""
        return any(map(_compat.is_tracer, self.leaves))

    @property
    def has_arrays(self) -> bool:
        """Whether it can be run: no array is a shape only."""
        return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in self.leaves)

    def step(self, hosted: Collection[int] = ()) -> TrainingStep:
        """The step on arguments of these shapes; ``in_shardings`` become part of them.

        ``hosted`` are leaves that an earlier step has put on the host: this one is to say itself where they are.
        """
        leaves, tree = jax.tree.flatten(jax.tree.map(struct_of, self.arrays))
        for n, leaf in enumerate(leaves):
            if n in hosted and leaf.sharding is not None:
                leaves[n] = leaf.update(sharding=leaf.sharding.with_memory_kind(DEVICE))
        structs = _with_shardings(jax.tree.unflatten(tree, leaves), self.settings.in_shardings)
        return TrainingStep(self.fn, self.settings, self.splits, structs, self.is_traced)

    def paths(self) -> list[str]:
        paths, _ = jax.tree_util.tree_flatten_with_path(self.arrays)
        return [self.names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths]


def lies_as(leaf: Any, sharding: Sharding | None, moves: bool) -> bool:
    """Tell whether an argument may be given where one with a sharding is expected (None: one device, whichever it is).

    ``moves``: whether what is committed to no device is put where it is wanted.
    """
    own = sharding_of(leaf)
    if own is None:
        is_array = not isinstance(leaf, jax.ShapeDtypeStruct)
        return (moves and is_array) or sharding is None or sharding.num_devices == 1
    if own is sharding:
        return True
    return own.num_devices == 1 if sharding is None else own.is_equivalent_to(sharding, len(leaf.shape))


def sharding_of(leaf: Any) -> Sharding | None:
    """The sharding that an argument is committed to; None where there is none."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    is_placed = isinstance(leaf, jax.Array) and not _compat.is_tracer(leaf) and leaf.committed
    return leaf.sharding if is_placed else None


def changes(old: CallKind, placed: Sequence[Sharding | None], call: StepCall) -> str:
    """Say what of a call is not as it was in one of another kind, whose arrays lay in such places."""
    new = call.kind
    if old.tree != new.tree or [s.tree for s in old.splits] != [s.tree for s in new.splits]:
        return "the structure of the arguments changed"
    rows = [
        f"{name} changed from {before.others[0]!r} to {after.others[0]!r}"
        for name, before, after in zip(call.names, old.splits, new.splits, strict=True)
        if before.others != after.others
    ]
    arrays = zip(call.paths(), old.types, new.types, placed, call.leaves, strict=True)
    for path, before, after, sharding, leaf in arrays:
        if before != after:
            rows.append(f"{path} changed from {_type_text(before)} to {_type_text(after)}")
        elif not lies_as(leaf, sharding, moves=True):
            rows.append(f"{path} changed from {_place_text(sharding)} to {_place_text(sharding_of(leaf))}")
    if not rows:
        return "JAX's settings (precision or mesh) or NNX modules changed"
    more = len(rows) - _MOST_CHANGES
    return "; ".join(rows[:_MOST_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _type_of(leaf: Any) -> tuple[Any, ...]:
    """Shape, dtype, weak type of an argument; its sharding where that is part of its type."""
    aval = leaf.aval if isinstance(leaf, jax.Array) else struct_of(leaf)
    sharding: Any = getattr(aval, "sharding", None)
    explicit = None
    if _compat.has_explicit_axes(sharding):
        spec = tuple(sharding.spec)
        explicit = tuple(sharding.mesh.shape.items()), spec + (None,) * (len(aval.shape) - len(spec))
    return aval.shape, aval.dtype, bool(aval.weak_type), explicit


def _type_text(kind: tuple[Any, ...]) -> str:
    shape, dtype, weak, explicit = kind
    spec = "" if explicit is None else f" {jax.P(*explicit[1])}"
    return f"{dtype}[{','.join(map(str, shape))}]{spec}{' (weak type)' if weak else ''}"


def _place_text(sharding: Sharding | None) -> str:
    if sharding is None:
        return "no device of its own"
    if isinstance(sharding, NamedSharding):
        return f"{sharding.spec} on {sharding.num_devices} devices"
    return "one device" if sharding.num_devices == 1 else f"{sharding.num_devices} devices"


def _with_shardings(structs: Any, shardings: Any) -> Any:
    """Shapes with ``in_shardings`` of ``jax.jit`` laid over them: one, or a tree that is a prefix of theirs."""
    if shardings is None:
        return structs

    def lay(sharding: Any, part: Any) -> Any:
        def one(x: Any) -> Any:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)

        return part if sharding is None else jax.tree.map(one, part)

    return jax.tree.map(lay, shardings, structs, is_leaf=lambda x: x is None or isinstance(x, Sharding))
