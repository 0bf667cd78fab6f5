"""Policies of ``jax.checkpoint`` that any equation can be shown to.

In: names, or a policy. Out: a policy that takes the parameters of an equation apart from its own arguments.

JAX calls a policy as ``policy(primitive, *types, **parameters)``, so a policy with an argument called ``prim``, as its
own have it, fails on an equation with a parameter of that name (``TypeError: multiple values for argument``).

JAX also knows policies by identity (``everything_saveable``) and, up to 0.10, by class: neither is changed.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from remat_plan.graph.action import Action

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of arguments by position; ``""`` for those that no keyword can mean."""
    parameters = inspect.signature(function).parameters.values()
    return tuple([p.name if p.kind is not p.POSITIONAL_ONLY else "" for p in parameters if p.kind in _BY_POSITION])


def _call(function: Callable[..., Any], names: Sequence[str], given: Sequence[Any], parameters: dict[str, Any]) -> Any:
    """Call a function without those parameters whose arguments are given by position."""
    taken = set(names[: len(given)])
    return function(*given, **{k: v for k, v in parameters.items() if k not in taken})


class _Guarded:
    """A function as a policy; equal to another one of an equal function, so that JAX finds what it keeps by policy."""

    def __init__(self, policy: Callable[..., Any], names: tuple[str, ...]):
        self.policy, self.names = policy, names
        self.__name__ = getattr(policy, "__name__", type(policy).__name__)

    def __call__(self, primitive: Any, /, *types: Any, **parameters: Any) -> Any:
        return _call(self.policy, self.names, (primitive, *types), parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Guarded) and self.policy == other.policy

    def __repr__(self) -> str:
        return repr(self.policy)  # a jaxpr reads as it does with the policy itself

    def __hash__(self) -> int:
        return hash(self.policy)


@functools.cache
def _guarded_class(kind: type) -> type:
    """Return a class whose objects are called as policies safely, and are else what those of ``kind`` are."""
    names = _names(kind.__call__)

    def call(self: Any, primitive: Any, /, *types: Any, **parameters: Any) -> Any:
        return _call(kind.__call__, names, (self, primitive, *types), parameters)

    return type(kind.__name__, (kind,), {"__call__": call, "__slots__": (), "__qualname__": kind.__qualname__})


def guarded(policy: Any) -> Any:
    """Return a policy that says what the given one says, whatever an equation's parameters are called.

    What cannot go wrong is returned as it is: None, and a policy without named arguments by position.
    """
    if policy is None or not callable(policy):
        return policy
    if inspect.isfunction(type(policy).__call__):
        made = copy.copy(policy)
        object.__setattr__(made, "__class__", _guarded_class(type(policy)))
        return made
    names = _names(policy)
    return _Guarded(policy, names) if any(names) else policy


def keeping(tags: Iterable[tuple[Action, str]]) -> Callable[..., Any] | None:
    """Return the policy that keeps exactly the values with these names, each where its action says."""
    moved, kept = ([name for action, name in tags if action.on_host is on_host] for on_host in (True, False))
    if not moved:
        return named_policy(kept)
    to_host = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=moved,
        offload_src="device",
        offload_dst="pinned_host",
    )
    return guarded(to_host)


def named_policy(names: Sequence[str]) -> Callable[..., Any] | None:
    """Return the policy that saves exactly the values tagged with these names; None, which saves nothing, for none."""
    return guarded(jax.checkpoint_policies.save_only_these_names(*names)) if names else None
