"""A user's training step as what is compiled: jitted, for one runner of its marks.

In: a function of arguments by position, what ``jax.jit`` is told, the arguments taken apart (``calls``). Out:
``TrainingStep``: the jitted step for a runner, its arguments as shapes, the trace; ``Split``, an argument's structure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Sharding

from remat_plan import _compat
from remat_plan.cost.hardware import Hardware
from remat_plan.graph.call import struct_of
from remat_plan.graph.frameworks import sort_leaves
from remat_plan.traced.marks import MarkRunner, running_marks
from remat_plan.training.settings import Settings
from remat_plan.training.update import streaming
from remat_plan.verify.compile import CompiledMemory, compile_memory, compile_to_run, compiler_options
from remat_plan.verify.place import HOST, in_memory, place_shardings
from remat_plan.verify.targets import Target


@dataclass(frozen=True)
class Split:
    """A pytree without its arrays: its structure, and all else in it.

    Leaves that are no arrays (activation functions of an Equinox module, say) stay outside ``jax.jit``: they are part
    of what is compiled, as in ``equinox.filter_jit``.
    """

    tree: Any
    others: tuple[Any, ...]
    traced: tuple[bool, ...]

    @staticmethod
    def of(value: Any, is_static: bool = False) -> tuple[Split, Any]:
        """Take a value apart; beside it its arrays, with None in place of all else. A static one has none."""
        leaves, tree = jax.tree.flatten(value)
        traced = tuple(traced and not is_static for traced, _ in sort_leaves(value))
        if is_static:
            return Split(tree, (value,), traced), None
        arrays = jax.tree.unflatten(tree, [x if t else None for x, t in zip(leaves, traced, strict=True)])
        return Split(tree, tuple(x for x, t in zip(leaves, traced, strict=True) if not t), traced), arrays

    def joined(self, arrays: Any, is_static: bool = False) -> Any:
        if is_static:
            return self.others[0]
        return jax.tree.unflatten(self.tree, _compat.merge_lists(self.traced, self.others, jax.tree.leaves(arrays)))


@dataclass(eq=False)
class TrainingStep:
    """A training step, a function of arguments by position, on arguments of some shapes.

    Attributes:
        splits, structs: its arguments without their arrays; shapes, dtypes and shardings of these, a pytree for each.
        is_traced: whether it is called inside a trace, where shardings along automatic axes cannot be seen.
        hosted: which leaves of its arguments, and what it returns in their place, are in the host's memory.
    """

    fn: Callable[..., Any]
    settings: Settings
    splits: tuple[Split, ...]
    structs: tuple[Any, ...]
    is_traced: bool = False
    hosted: frozenset[int] = frozenset()
    _outputs: dict[Any, Split] = field(default_factory=dict)

    @property
    def spans_devices(self) -> bool:
        shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(self.structs))
        return any(isinstance(s, Sharding) and s.num_devices > 1 for s in shardings)

    def jitted(
        self, runner: MarkRunner, target: Target | None = None, shardings: bool = True, nested: bool = False
    ) -> Any:
        """The step, its marks run by a runner, under ``jax.jit``; it takes the arrays of a call.

        Args:
            target: a device that is not attached, for which it is to be compiled; None: it is to be run here.
            shardings: whether ``in_shardings`` are given to ``jax.jit``, or are part of its arguments already.
            nested: whether it is run inside another trace, where ``jax.jit`` takes no options of the compiler.
        """

        @functools.wraps(self.fn, updated=())
        def step(*arrays: Any) -> Any:
            static = self.settings.static_argnums
            args = [s.joined(a, i in static) for i, (s, a) in enumerate(zip(self.splits, arrays, strict=True))]
            with running_marks(runner):
                self._outputs[runner], results = Split.of(self.fn(*args))
            return results

        run = streaming(step, self.structs, self.hosted) if self.hosted else step
        told: dict[str, Any] = {"donate_argnums": self.settings.donate_argnums}
        if (given := self.settings.in_shardings) is not None and shardings:
            told["in_shardings"] = self._in_shardings(given)
        if (out := self.settings.out_shardings) is not None:
            told["out_shardings"] = out if target is None else place_shardings(out, target)
        needed = compiler_options(target) if target is None or target.attached else {}
        options = {**needed, **self.settings.compiler_options}
        return jax.jit(run, compiler_options=None if nested else options or None, **told)

    def trace(self, runner: MarkRunner) -> Any:
        return self.jitted(runner, shardings=False).trace(*self.structs)

    def compile(self, runner: MarkRunner, target: Target, hardware: Hardware) -> CompiledMemory:
        """Compile the step for a target with such rates and return what memory it needs, and its seconds."""
        step, more = self.jitted(runner, target, shardings=False), self.settings.compiler_options
        structs = self.hosting(self.structs, target)
        return compile_memory(step, structs, target, compiler_options=more, hardware=hardware, keep_executable=True)

    def compile_to_run(self, runner: MarkRunner, arrays: Any, target: Target) -> CompiledMemory:
        """Compile the step as it will run, for the arrays of a call where they are."""
        return compile_to_run(self.jitted(runner), self.hosting(arrays, target), target)

    def put(self, arrays: Any, target: Target, memory: str = HOST) -> Any:
        """The arrays of a call, those that are hosted moved to a memory where they are in another."""
        leaves, tree = jax.tree.flatten(arrays)
        for n in self.hosted:
            leaf, sharding = leaves[n], in_memory(leaves[n], memory, target)
            if not _compat.is_tracer(leaf) and getattr(leaf, "sharding", None) != sharding:
                leaves[n] = jax.device_put(leaf, sharding)
        return jax.tree.unflatten(tree, leaves)

    def hosting(self, arrays: Any, target: Target) -> Any:
        """The arrays of a call, or their types, with the types on the host of those that are hosted."""
        leaves, tree = jax.tree.flatten(arrays)
        for n in self.hosted:
            leaves[n] = struct_of(leaves[n]).update(sharding=in_memory(leaves[n], HOST, target))
        return jax.tree.unflatten(tree, leaves)

    def _in_shardings(self, given: Any) -> Any:
        """The user's ``in_shardings`` for where arrays lie."""
        if not self.hosted:
            return given
        leaves, tree = jax.tree.flatten(self.structs)
        shardings = [x.sharding for x in leaves]
        found = [s.with_memory_kind(HOST) if s and n in self.hosted else s for n, s in enumerate(shardings)]
        return jax.tree.unflatten(tree, found)

    def result(self, runner: MarkRunner, arrays: Any) -> Any:
        """What the user's step returns, of what the jitted one did."""
        return self._outputs[runner].joined(arrays)
