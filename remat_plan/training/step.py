"""A user's training step as what is compiled: jitted, for one runner of its marks.

In: the step, its arguments, and what ``jax.jit`` is told. Out: ``TrainingStep``: the jitted step for a runner, its
arguments as shapes, the trace.

Leaves of arguments and results that are no arrays (activation functions of an Equinox module, say) stay outside
``jax.jit``: they are part of what is compiled, as in ``equinox.filter_jit``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Sharding

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.call import is_traced, normalize_argnums, positions, struct_of
from remat_plan.marks import MarkRunner, running_marks
from remat_plan.verify.compile import CompiledMemory, compile_memory, compiler_options
from remat_plan.verify.place import place_shardings
from remat_plan.verify.targets import Target


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``jax.jit`` is told of a step.

    Attributes:
        static_argnums: positions of arguments that are not traced.
        donate_argnums: positions of arguments whose memory results may take.
        in_shardings, out_shardings: as in ``jax.jit``; None where nothing is said.
        compiler_options: of XLA; they win over those of ``compiler_options(target)``.
    """

    static_argnums: tuple[int, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        args: Sequence[Any],
        static_argnums: int | Sequence[int],
        donate_argnums: int | Sequence[int],
        in_shardings: Any,
        out_shardings: Any,
        compiler_options: Mapping[str, Any] | None = None,
    ) -> Settings:
        """Check positions against the arguments there are.

        Raises:
            TypeError, ValueError: a bad position, or one that is static and donated; options that are not by name.
        """
        options = {} if compiler_options is None else compiler_options
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise TypeError("compiler_options: give options of XLA by name, as a dict whose keys are texts.")

        def checked(numbers: int | Sequence[int], name: str) -> tuple[int, ...]:
            found = positions(numbers, name)
            return normalize_argnums(found, len(args), name) if found else ()

        static, donated = checked(static_argnums, "static_argnums"), checked(donate_argnums, "donate_argnums")
        if both := sorted(set(static) & set(donated)):
            raise ValueError(f"argument {both[0]} is in static_argnums and in donate_argnums; it can be only in one.")
        return Settings(static, donated, in_shardings, out_shardings, dict(options))


@dataclass(frozen=True)
class _Split:
    """A pytree taken apart: a tree of its arrays with None for all else, and all else."""

    arrays: Any
    tree: Any
    others: tuple[Any, ...]
    traced: tuple[bool, ...]

    @staticmethod
    def of(value: Any, is_static: bool = False) -> _Split:
        leaves, tree = jax.tree.flatten(value)
        traced = tuple(not is_static and is_traced(x) for x in leaves)
        arrays = jax.tree.unflatten(tree, [x if t else None for x, t in zip(leaves, traced, strict=True)])
        others = tuple(x for x, t in zip(leaves, traced, strict=True) if not t)
        return _Split(None if is_static else arrays, tree, (value,) if is_static else others, traced)

    def joined(self, arrays: Any, is_static: bool = False) -> Any:
        """The pytree with other arrays in it."""
        if is_static:
            return self.others[0]
        left, others = iter(jax.tree.leaves(arrays)), iter(self.others)
        return jax.tree.unflatten(self.tree, [next(left) if t else next(others) for t in self.traced])

    def without_arrays(self) -> _Split:
        """What may be kept: no array is."""
        return _Split(None, self.tree, self.others, self.traced)


@dataclass(eq=False)
class TrainingStep:
    """A training step on arguments of some shapes.

    Attributes:
        fn: the user's function.
        settings: what ``jax.jit`` is told.
        splits: its arguments without their arrays.
        structs: shapes, dtypes and shardings of their arrays, one pytree per argument.
    """

    fn: Callable[..., Any]
    settings: Settings
    splits: tuple[_Split, ...]
    structs: tuple[Any, ...]
    _outputs: dict[Any, _Split] = field(default_factory=dict)

    @staticmethod
    def of(fn: Callable[..., Any], args: Sequence[Any], settings: Settings) -> TrainingStep:
        """Take the arguments apart; ``in_shardings`` become part of their shapes."""
        splits = [_Split.of(a, i in settings.static_argnums) for i, a in enumerate(args)]
        structs = jax.tree.map(struct_of, tuple(split.arrays for split in splits))
        structs = _with_shardings(structs, settings.in_shardings)
        return TrainingStep(fn, settings, tuple(split.without_arrays() for split in splits), structs)

    @property
    def spans_devices(self) -> bool:
        """Whether an argument is spread over several devices."""
        shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(self.structs))
        return any(isinstance(s, Sharding) and s.num_devices > 1 for s in shardings)

    def dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What the jitted step is given for arguments of the user's step."""
        return tuple(_Split.of(a, i in self.settings.static_argnums).arrays for i, a in enumerate(args))

    def jitted(self, runner: MarkRunner, target: Target | None = None, shardings: bool = True) -> Any:
        """The step, its marks run by a runner, under ``jax.jit``; it takes what ``dynamic`` returns.

        Args:
            runner: of the marks.
            target: a device that is not attached, for which it is to be compiled; None: it is to be run here.
            shardings: whether ``in_shardings`` are given to ``jax.jit``, or are part of its arguments already.
        """

        @functools.wraps(self.fn, updated=())
        def step(*arrays: Any) -> Any:
            static = self.settings.static_argnums
            args = [s.joined(a, i in static) for i, (s, a) in enumerate(zip(self.splits, arrays, strict=True))]
            with running_marks(runner):
                result = _Split.of(self.fn(*args))
            self._outputs[runner] = result.without_arrays()
            return result.arrays

        told: dict[str, Any] = {"donate_argnums": self.settings.donate_argnums}
        if self.settings.in_shardings is not None and shardings:
            told["in_shardings"] = self.settings.in_shardings
        if self.settings.out_shardings is not None:
            out = self.settings.out_shardings
            told["out_shardings"] = out if target is None else place_shardings(out, target)
        needed = compiler_options(target) if target is None or target.attached else {}
        options = {**needed, **self.settings.compiler_options}
        return jax.jit(step, compiler_options=options or None, **told)

    def trace(self, runner: MarkRunner) -> Any:
        """Trace the step, its marks run by a runner."""
        return self.jitted(runner, shardings=False).trace(*self.structs)

    def compile(self, runner: MarkRunner, target: Target, fast: bool, hardware: Hardware) -> CompiledMemory:
        """Compile the step for a target with such rates and return what memory it needs, and its seconds."""
        step = self.jitted(runner, target, shardings=False)
        more = self.settings.compiler_options
        return compile_memory(step, self.structs, target, fast=fast, compiler_options=more, hardware=hardware)

    def result(self, runner: MarkRunner, arrays: Any) -> Any:
        """What the user's step returns, of what the jitted one did."""
        return self._outputs[runner].joined(arrays)


def _with_shardings(structs: Any, shardings: Any) -> Any:
    """Shapes with ``in_shardings`` of ``jax.jit`` laid over them: one, or a tree that is a prefix of theirs."""
    if shardings is None:
        return structs

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, Sharding)

    def lay(sharding: Any, part: Any) -> Any:
        def one(x: Any) -> Any:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)

        return part if sharding is None else jax.tree.map(one, part)

    return jax.tree.map(lay, shardings, structs, is_leaf=is_leaf)
