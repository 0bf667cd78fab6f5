"""The only place, with its parts, that knows JAX versions or private JAX names.

In: JAX objects whose spelling changed between releases (0.10 to 0.12).
Out: plain functions with one meaning, used by every stage above.

Limits: tested with jax 0.10.2 and 0.12.0.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import config, lib, source_info_util, traceback_util
from jax._src.ad_util import add_any_p as _add_any
from jax._src.interpreters import mlir
from jax._src.util import merge_lists, partition_list  # noqa: F401 (used as _compat.name)
from jax.extend import core as jex_core
from jax.interpreters import partial_eval

from remat_plan._compat.checkpoints import (  # noqa: F401 (used as _compat.name)
    barriers_hold_cotangents,
    checkpoint,
    checkpointed_as,
    checkpointed_jaxpr,
    held,
    high_parameters,
    linear_checkpoint,
    name_equation,
    name_of,
    whole,
)
from remat_plan._compat.effects import (  # noqa: F401 (used as _compat.name)
    changes_arrays,
    checking_leaks,
    checks_keys,
    has_checks,
    has_effects,
    has_lost_effects,
    lower_for_absent_gpu,
    named_axes,
    reporting_checks,
    runs_once,
    without_key_checks,
)
from remat_plan._compat.values import (  # noqa: F401 (used as _compat.name)
    automatic_sharding,
    concrete,
    custom_jvp_jaxpr,
    depending,
    has_explicit_axes,
    has_shardings,
    in_order,
    is_automatic,
    is_elementwise,
    is_float,
    is_float_dtype,
    is_key,
    is_literal,
    is_real,
    is_ref,
    is_spread,
    is_threefry,
    is_tracer,
    jit_arguments,
    lays_out,
    map_of,
    maps_around,
    perturbed,
    shard_map_arguments,
    shard_shape,
    spread,
    struct,
    under_automatic_axes,
    varies,
    varying_axes,
    wide,
    zeros,
)

for _module in (source_info_util, traceback_util):  # our frames are not the user's
    _module.register_exclusion(os.path.dirname(os.path.dirname(__file__)))

api_boundary = traceback_util.api_boundary
"""Decorates a function below which tracebacks show the frames of users only."""


def warn(message: str) -> None:
    """Warn at the user's line that led here, neither one of this package nor of JAX."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and not source_info_util.is_user_filename(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def is_of_while_loop(error: ValueError) -> bool:
    """Tell whether an error says that a ``while_loop`` has no gradient."""
    return "Reverse-mode differentiation does not work for lax.while_loop" in str(error)


INLINE_CALLS = frozenset("jit pjit call closed_call core_call core_closed_call custom_lin_call eval_jaxpr".split())
"""Names of the primitives that only call a jaxpr: calling it inline means the same."""


def jaxlib_version() -> tuple[int, ...]:
    """Return the jaxlib version as integers, for example ``(0, 12, 0)``."""
    return lib.version


def open_jaxpr(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a closed jaxpr into the open one and the values of its constants; accept an open one too."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", ()) or ())


def with_literals(eqn: Any, values: Sequence[Any | None]) -> Any:
    """Return an equation with literals in place of the operands whose value is given (None: left as it is)."""
    atoms = [a if v is None else jex_core.Literal(v, a.aval) for a, v in zip(eqn.invars, values, strict=True)]
    return eqn.replace(invars=atoms)


def call_jaxpr(eqn: Any) -> Any | None:
    """Return the jaxpr that a call-like equation runs once, or None."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        if inner is not None and (hasattr(inner, "eqns") or hasattr(inner, "jaxpr")):
            return inner
    return None


def lowering_function(eqn: Any, platform: str = "") -> Callable[..., Any] | None:
    """Return the function that JAX compiles in place of an equation, or None where it has another kind of rule.

    Many are lowered by tracing one (``mlir.lower_fun``), and "high" ones say what they expand to. JAX has one rule per
    platform and a common one, which ``platform=""`` asks for.
    """
    rules = mlir._platform_specific_lowerings.get(platform, {})
    rule: Any = rules.get(eqn.primitive) or mlir._lowerings.get(eqn.primitive)
    rule = getattr(rule, "rule", rule)
    if getattr(rule, "__qualname__", "").startswith("lower_fun."):
        return dict(zip(rule.__code__.co_freevars, rule.__closure__, strict=True))["fun"].cell_contents
    return getattr(eqn.primitive, "to_lojax", None) if "_prim" in eqn.params else None


def scan_counts(eqn: Any) -> tuple[int, int]:
    """Return how many operands of a ``scan`` are constants of its body, and how many are carried."""
    if "num_consts" in eqn.params:  # jax < 0.11
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """Return every jaxpr found in an equation's parameters."""
    return [found for _, found in named_jaxprs(params)]


def named_jaxprs(params: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return every jaxpr found in an equation's parameters, with the name of the parameter."""
    items = [(k, item) for k, v in params.items() for item in (v if isinstance(v, (tuple, list)) else (v,))]
    return [(k, item) for k, item in items if is_jaxpr(item)]


def is_jaxpr(value: Any) -> bool:
    """Tell whether a parameter is a jaxpr, open or closed."""
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def is_function(value: Any) -> bool:
    """Tell whether a parameter is a function, or one that JAX has wrapped."""
    return callable(value) or hasattr(value, "call_wrapped")


def live_jaxpr(closed: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the open jaxpr without dead equations and unused inputs, and its constants."""
    jaxpr, constants = open_jaxpr(closed)
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0], constants


def without_dead_results(closed: Any) -> Any:
    """Return a closed jaxpr without equations, and results of loops and calls, that nothing is made of."""
    jaxpr, constants = open_jaxpr(closed)
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return jex_core.ClosedJaxpr(live, list(constants))


def trace_context() -> Any:
    """Return a key of the settings that tracing depends on: precisions, meshes, named axes, and so on."""
    return config.trace_context()


def without_cache_writes() -> AbstractContextManager[None]:
    """Return a context, of this thread alone, in which no program takes long enough to go into the persistent cache."""
    return config.persistent_cache_min_compile_time_secs(math.inf)


def as_function(closed: Any) -> Callable[..., list[Any]]:
    """Return a closed jaxpr as a function of flat values."""
    return jex_core.jaxpr_as_fun(closed)


def run_jaxpr(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Run an open jaxpr on flat values, with its constants."""
    return as_function(jex_core.ClosedJaxpr(jaxpr, list(constants)))(*args)


def bind(eqn: Any, invals: Sequence[Any]) -> list[Any]:
    """Run one equation on values, as ``jax.core.eval_jaxpr`` would, and return its outputs as a list.

    The new equation keeps the source line and name stack of the old one.
    """
    sub = eqn.primitive.get_bind_params(eqn.params)
    with in_place_of(eqn), eqn.ctx.manager:
        if isinstance(sub, tuple):  # jax <= 0.10: (functions, parameters)
            functions, params = sub
            out = eqn.primitive.bind(*functions, *invals, **params)
        else:
            out = eqn.primitive.bind(*invals, **sub)
    return list(out) if eqn.primitive.multiple_results else [out]


def aval_bytes(aval: Any) -> int:
    """Return the bytes of an abstract value on one device (the shard where its sharding is known); tokens are 0."""
    if getattr(aval, "shape", None) is None or getattr(aval, "dtype", None) is None:
        return 0
    return _array_bytes(shard_shape(tuple(aval.shape), getattr(aval, "sharding", None)), aval.dtype)


@functools.lru_cache(maxsize=4096)  # shapes: a large program has some hundreds
def _array_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    count = math.prod(int(dim) for dim in shape)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return count * (16 if "rbg" in str(dtype) else 8)
    return count * np.dtype(dtype).itemsize


def source_frames(eqn: Any) -> list[tuple[str, int, str]]:
    """Return (file, line, function) of the user's code that made an equation, the innermost first.

    Frames of installed packages are left out, so that a layer of Flax is shown where the user's model calls it; where
    there are no others, the innermost of them is all.
    """
    frames = [
        (frame.file_name, frame.start_line, frame.function_name)
        for frame in source_info_util.user_frames(eqn.source_info.traceback)
    ]
    return [frame for frame in frames if "site-packages" not in frame[0]] or frames[:1]


def source_line(eqn: Any) -> tuple[str, int, str]:
    """Return (file, line, function) of the innermost of ``source_frames``; ``("", 0, "")`` when unknown."""
    return next(iter(source_frames(eqn)), ("", 0, ""))


def standing_at(eqn: Any, place: Any) -> Any:
    """Return an equation with the source line of another one."""
    return eqn.replace(source_info=eqn.source_info.replace(traceback=place.source_info.traceback))


def in_scope(eqn: Any, name: str) -> bool:
    """Tell whether an equation was traced inside a ``jax.named_scope``."""
    return name in str(eqn.source_info.name_stack)


def drops_checkpoint_barriers() -> bool:
    """Tell whether XLA:CPU of this jaxlib undoes ``jax.checkpoint`` in unrolled code (jaxlib <= 0.11.0)."""
    return jaxlib_version() < (0, 11, 1)


@functools.cache
def cond_forwards_residuals() -> bool:
    """Tell whether a differentiated ``cond`` keeps its operands as they are (jax 0.10 keeps copies of them)."""

    def linearized(known: bool, x: float) -> Any:
        return jax.linearize(lambda y: jax.lax.cond(known, lambda z: z * z, jax.numpy.sin, y), x)[0]

    conds = [e for e in jax.make_jaxpr(linearized)(True, 1.0).eqns if e.primitive.name == "cond"]
    branches = [open_jaxpr(branch)[0] for e in conds for branch in e.params["branches"]]
    return not any(v in b.invars for b in branches for v in b.outvars if not is_literal(v))


def in_place_of(eqn: Any) -> AbstractContextManager[None]:
    """Return a context in which what is traced stands at the source line of an equation."""
    info = eqn.source_info
    return source_info_util.user_context(
        info.traceback, name_stack=source_info_util.current_name_stack() + info.name_stack
    )


def zero_tangent(value: Any) -> Any:
    """Return a zero tangent for a value (``float0`` zeros for integers)."""
    aval = jax.typeof(value)
    if is_float(aval):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def evaluate(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Run an open jaxpr on values and return its outputs as a list."""
    return core.eval_jaxpr(jaxpr, constants, *args)


def run_equations(
    eqns: Sequence[Any],
    env: dict[Any, Any],
    outputs: Sequence[Any],
    run: Callable[[Any, list[Any]], Sequence[Any]] = bind,
) -> list[Any]:
    """Run equations by ``run`` on the values of an environment, which gets those that it lacks; return the outputs."""

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [a.val if is_literal(a) else env[a] for a in atoms]

    for eqn in eqns:
        values = zip(eqn.outvars, run(eqn, read(eqn.invars)), strict=True)
        env.update((v, x) for v, x in values if v not in env)
    return read(outputs)


def addition(aval: Any) -> Any:
    """Return the equation with which JAX adds two cotangents of a type."""
    one, other, total = (jex_core.Var(aval) for _ in range(3))
    return jex_core.new_jaxpr_eqn([one, other], [total], _add_any, {}, frozenset())


def needed_equations(eqns: Sequence[Any], outputs: Sequence[Any], known: frozenset[Any] = frozenset()) -> list[Any]:
    """Return those equations that the given variables depend on, in order; not those that ``known`` ones depend on."""
    needed = {v for v in outputs if not is_literal(v)} - known
    found = []
    for eqn in reversed(eqns):
        if any(v in needed for v in eqn.outvars):
            needed.update(a for a in eqn.invars if not is_literal(a) and a not in known)
            found.append(eqn)
    return found[::-1]
