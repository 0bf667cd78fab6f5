"""The part of ``_compat`` that knows what JAX calls an effect, and what talks to the host.

In: equations, a traced program. Out: whether running once matters, and to whom; what checks of JAX say of it; a module
for a device that is not here.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import ffi
from jax._src import callback, config, core, debugging, effects
from jax._src.interpreters import mlir
from jax._src.lax import parallel

from remat_plan._compat.values import is_key

_HOST_CALLS = (
    callback.pure_callback_p,
    callback.io_callback_p,
    debugging.debug_callback_p,
    debugging.debug_print_p,
)
"""What runs Python on the host while the device waits."""

_WITHOUT_EFFECT = (parallel.ppermute_p, parallel.pbroadcast_p)
"""Collectives for which JAX notes no effect on the axis along which they move data."""


def named_axes(eqn: Any) -> tuple[str, ...]:
    """Return the axes of a map around the program that an equation speaks of (``psum`` and its kind)."""
    axes = [e.name for e in eqn.effects if isinstance(e, core.NamedAxisEffect)]
    return tuple(sorted(map(str, eqn.params["axis_name"] if eqn.primitive in _WITHOUT_EFFECT else axes)))


def has_effects(eqn: Any) -> bool:
    """Tell whether an equation must run, whoever reads it. Collectives need not: they only speak of an axis."""
    return any(not isinstance(e, core.NamedAxisEffect) for e in eqn.effects)


def runs_once(eqn: Any) -> bool:
    """Tell whether an equation must not run again in the backward pass; a check that runs twice fails twice."""
    return any(not isinstance(e, core.NamedAxisEffect) and not _is_check(e) for e in eqn.effects)


def has_checks(closed: Any) -> bool:
    """Tell whether a jaxpr has checks (``checkify.check``), which compile only where something reports them."""
    return any(map(_is_check, getattr(closed, "jaxpr", closed).effects))


def reporting_checks(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the first failed check too, as ``checkify`` around a whole step has it."""
    from jax.experimental import checkify

    return checkify.checkify(fn, errors=checkify.user_checks)


def checking_leaks() -> bool:
    """Tell whether JAX looks for tracers that outlive their trace; nothing traced may be kept then."""
    return bool(jax.config.jax_check_tracer_leaks)


def checks_keys(closed: Any) -> bool:
    """Tell whether JAX looks for random keys that are used twice, and a program has keys."""
    if not jax.config.jax_debug_key_reuse:
        return False
    return any(is_key(v.aval) for eqn in getattr(closed, "jaxpr", closed).eqns for v in (*eqn.invars, *eqn.outvars))


def without_key_checks() -> AbstractContextManager[None]:
    """Return a context in which JAX does not look for random keys that are used twice."""
    return config.debug_key_reuse(False)


def _is_check(effect: Any) -> bool:
    return type(effect).__name__ == "ErrorEffect"


def has_lost_effects(eqn: Any) -> bool:
    """Tell whether effects are lost where nobody reads the equation's results and a scan around is differentiated."""
    return has_effects(eqn) and not effects.partial_eval_kept_effects.filter_in(eqn.effects)


def changes_arrays(eqn: Any) -> bool:
    """Tell whether mutable arrays (``jax.new_ref``), its own or others, are read or written by an equation."""
    return any(isinstance(e, (effects.JaxprInputEffect, core.InternalMutableArrayEffect)) for e in eqn.effects)


def lower_for_absent_gpu(traced: Any) -> Any:
    """Lower for a GPU that is not here, host callbacks too: JAX's own rules ask for the device itself.

    The module can be compiled, not run. It makes the calls that JAX's would make, of a function that is not there.
    """
    rules: Any = tuple((primitive, _host_call) for primitive in _HOST_CALLS)
    return traced.lower(_private_parameters=mlir.LoweringParameters(override_lowering_rules=rules))


def _host_call(ctx: Any, *operands: Any, **params: Any) -> Any:
    if ctx.tokens_in is not None and ctx.tokens_in.effects():  # in order: the token is handed on
        ctx.set_tokens_out(ctx.tokens_in)
    call = ffi.ffi_lowering("xla_ffi_python_gpu_callback", has_side_effect=True)
    return call(ctx, *operands, index=np.uint64(0))
