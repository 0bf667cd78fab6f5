"""What the steps of a scan tell, told behind the scan.

In: a ``scan`` equation with effects in its steps whose results nobody reads, of a kind that JAX (up to 0.12) drops from
a scan that it differentiates (``io_callback``). Out: a jaxpr that computes the same: the scan without these effects,
which stacks what is to be told, and a scan that tells it, in the same order, which nothing differentiates.

Limits: what each step tells is kept until the scan has ended. Effects inside branches stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.calls import inlinable

_Told = tuple[Callable[..., Any], list[Any]]
"""What tells, and the values to call it with."""


def loses_effects(eqn: Any) -> bool:
    """Tell whether an equation is a scan that would lose effects where it is differentiated."""
    if eqn.primitive.name != "scan" or not _compat.has_lost_effects(eqn) or _compat.changes_arrays(eqn):
        return False
    body, _ = _compat.open_jaxpr(eqn.params["jaxpr"])
    return _only_tells(body)


def _only_tells(jaxpr: Any) -> bool:
    """Tell whether an equation with such effects has results that nobody reads, here or in scans and calls inside."""
    read = _read(jaxpr)
    for eqn in jaxpr.eqns:
        if not _compat.has_lost_effects(eqn):
            continue
        inner = inlinable(eqn)
        if _only_tells(_compat.open_jaxpr(inner)[0]) if inner is not None else _tells(eqn, read) or loses_effects(eqn):
            return True
    return False


def _tells(eqn: Any, read: Set[Any]) -> bool:
    return _compat.has_lost_effects(eqn) and read.isdisjoint(eqn.outvars)


def _read(jaxpr: Any) -> set[Any]:
    atoms = [*jaxpr.outvars, *[a for eqn in jaxpr.eqns for a in eqn.invars]]
    return {a for a in atoms if not _compat.is_literal(a)}


def told_behind(eqn: Any) -> Any:
    """Return the closed jaxpr of a scan and of another that tells what its steps would."""

    def run(*args: Any) -> list[Any]:
        outputs, told = _scan(eqn, args)
        for tell, values in told:
            tell(*map(jax.lax.stop_gradient, values))
        return outputs

    with _compat.in_place_of(eqn):
        return jax.make_jaxpr(run)(*[_compat.struct(a.aval) for a in eqn.invars])


def _scan(eqn: Any, args: Sequence[Any]) -> tuple[list[Any], list[_Told]]:
    """Run a scan without what its steps tell; return its outputs and what is to be told."""
    n_consts, n_carry = _compat.scan_counts(eqn)
    body, closed = _compat.open_jaxpr(eqn.params["jaxpr"])
    consts, init, rows = args[:n_consts], list(args[n_consts : n_consts + n_carry]), list(args[n_consts + n_carry :])
    loop = partial(jax.lax.scan, length=eqn.params["length"], reverse=eqn.params["reverse"])
    tells: list[Callable[..., Any]] = []

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], tuple[list[Any], list[list[Any]]]]:
        outputs, told = _equations(body, closed, (*consts, *carry, *row))
        tells[:] = [tell for tell, _ in told]
        return outputs[:n_carry], (outputs[n_carry:], [values for _, values in told])

    carry, (stacked, values) = loop(step, init, rows, unroll=eqn.params["unroll"])

    def tell_all(*flat: Any) -> None:
        def tell(_: None, row: list[list[Any]]) -> tuple[None, None]:
            for function, given in zip(tells, row, strict=True):
                function(*given)
            return None, None

        loop(tell, None, jax.tree.unflatten(tree, flat))

    flat, tree = jax.tree.flatten(values)
    return [*carry, *stacked], [(tell_all, flat)]


def _equations(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list[Any], list[_Told]]:
    """Run a jaxpr without what it tells; return its outputs and what is to be told."""
    told: list[_Told] = []
    read = _read(jaxpr)

    def run(eqn: Any, values: list[Any]) -> list[Any]:
        inner = inlinable(eqn) if _compat.has_lost_effects(eqn) else None
        if inner is not None:
            outputs, more = _equations(*_compat.open_jaxpr(inner), values)
        elif _tells(eqn, read):
            outputs, more = [None] * len(eqn.outvars), [_to_tell(eqn, values)]
        elif loses_effects(eqn):
            outputs, more = _scan(eqn, values)
        else:
            return _compat.bind(eqn, values)
        told.extend(more)
        return outputs

    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    return _compat.run_equations(jaxpr.eqns, env, jaxpr.outvars, run), told


def _to_tell(eqn: Any, values: Sequence[Any]) -> _Told:
    is_literal = [_compat.is_literal(a) for a in eqn.invars]
    given, literals = _compat.partition_list(is_literal, values)
    return lambda *arrays: _compat.bind(eqn, _compat.merge_lists(is_literal, arrays, literals)), given
