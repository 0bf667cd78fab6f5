"""What ``jax.jit`` is told of a training step.

In: the step, an example of its arguments, arguments of ``jax.jit``. Out: ``Settings``, checked; for each call of the
step, what they are of its arguments.

Arguments by name count by their position where they have one, so a call means the same however it is written: what is
static or donated is so by either. What can only be given by name stands behind the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_plan.graph.argnums import normalize_argnums, positions
from remat_plan.planning.constraints import NO_CONSTRAINTS, Constraints


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``jax.jit`` is told of a step, and what its marks may keep on the ``host``; ``static_argnames`` are of those
    that have no position.

    Options of XLA win over those of ``compiler_options(target)``.
    """

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    host: Constraints = NO_CONSTRAINTS

    @staticmethod
    def of(
        fn: Callable[..., Any],
        args: Sequence[Any],
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int],
        in_shardings: Any,
        out_shardings: Any,
        compiler_options: Mapping[str, Any] | None,
        host: Constraints,
    ) -> Settings:
        """Check what was said against the step's parameters, and the arguments there are (by position)."""
        options = {} if compiler_options is None else compiler_options
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise TypeError("compiler_options: give XLA's options as a dict with strings as keys.")
        parameters = _parameters(fn)
        names = _with_position(parameters)
        is_open = not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)

        def checked(numbers: int | Sequence[int], name: str) -> tuple[int, ...]:
            asked = positions(numbers, name)
            left_out = tuple(n for n in asked if len(args) <= n and (n < len(names) or is_open))
            here = tuple(n for n in asked if n not in left_out)
            return (*(normalize_argnums(here, len(args), name) if here else ()), *left_out)

        static, donated = checked(static_argnums, "static_argnums"), checked(donate_argnums, "donate_argnums")
        named = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
        if unknown := [] if takes_any else sorted(set(named) - {p.name for p in parameters}):
            raise ValueError(f"static_argnames: the step has no parameter {unknown[0]!r}.")
        static = tuple(dict.fromkeys((*static, *(names.index(name) for name in named if name in names))))
        if both := sorted(set(static) & set(donated)):
            raise ValueError(f"argument {both[0]} is in both static_argnums and donate_argnums; use one of them.")
        by_name = tuple(name for name in named if name not in names)
        return Settings(static, by_name, donated, in_shardings, out_shardings, dict(options), host)

    def of_call(self, count: int, names: Sequence[str]) -> Settings:
        """What they are of a call with so many arguments by position, and behind them some by name."""
        static = [n for n in self.static_argnums if n < count]
        static += [count + n for n, name in enumerate(names) if name in self.static_argnames]
        shardings = self.in_shardings
        if isinstance(shardings, tuple):
            shardings = (*shardings[:count], *(None for _ in names))
        donated = tuple(n for n in self.donate_argnums if n < count)
        return replace(self, static_argnums=tuple(static), donate_argnums=donated, in_shardings=shardings)


def in_position(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a call, those by name at their positions as far as they have one."""
    if not kwargs:
        return args, kwargs
    try:
        call = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature to be had, or another one: the step itself says what is wrong
        return args, kwargs
    return call.args, call.kwargs


def parameter_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """What so many arguments by position are called."""
    names = _with_position(_parameters(fn))[:count]
    return (*names, *(f"argument {n}" for n in range(len(names), count)))


def _with_position(parameters: Sequence[inspect.Parameter]) -> tuple[str, ...]:
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _parameters(fn: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """A function's parameters; none where Python does not know them (of some builtins)."""
    try:
        return tuple(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # builtins need not have a signature
        return ()
