"""What ``jax.checkpoint`` is in the installed JAX, under the flags that are set: a part of ``_compat``.

In: equations; a function of arrays, a policy. Out: what checkpoints and names are in a program; the function under
``jax.checkpoint``, with a backward pass that waits for its cotangents. Use these through ``_compat``.

Recomputation saves memory only where it waits for the backward pass: XLA runs early whatever it can. The barrier of
``jax.checkpoint`` holds residuals *and* cotangents. Under ``jax_remat_barrier_no_cotangents`` (with ``jax_remat3``, jax
0.12) it holds residuals only, and in unrolled code nothing is saved on a CPU, a GPU or a TPU.

So there a function is one equation, whose JVP is what ``jax.checkpoint`` makes of it: ``jax.linearize`` gives its
values and its residuals, for any policy and by any implementation; the tangents are *another such equation*, of these
residuals and of tangents, linear in the latter. Its transpose puts residuals and cotangents through one barrier before
anything else. The tangents are a function like any other, so all derivatives are there, forward and reverse.

Limits: second derivatives hold back no more than the arguments of the first.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.interpreters import batching
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.util import merge_lists, partition_list
from jax.extend import core as jex_core
from jax.extend.core.primitives import name_p
from jax.interpreters import ad, mlir, partial_eval

from remat_plan._compat.values import depending, is_literal, struct

_REMAT_CALLS = frozenset({"remat2", "checkpoint", "remat"})
"""Names under which ``jax.checkpoint`` has appeared as a primitive, and that of ours."""


def checkpointed_jaxpr(eqn: Any) -> Any | None:
    """Return the jaxpr of an equation that ``jax.checkpoint`` made, or ``checkpoint`` here; None for all others."""
    if eqn.primitive.name in _REMAT_CALLS:
        return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    made = eqn.params.get("_prim")  # under jax_remat3
    return made.jaxpr if type(made).__name__ == "RematTraced" else None


def high_parameters(value: Any) -> dict[str, Any] | None:
    """Return the parameters of a primitive of JAX's newer kind (it is a parameter of one equation for all of them)."""
    return value.params if any(c.__name__ == "HiPrim" for c in type(value).__mro__) else None


def name_of(eqn: Any) -> str | None:
    """Return the name that an equation of ``checkpoint_name`` gives; None for all others."""
    if eqn.primitive is name_p:
        return str(eqn.params["name"])
    made = eqn.params.get("_prim")  # under jax_remat3
    return str(made.name) if type(made).__name__.startswith("CheckpointName") else None


def name_equation(eqn: Any, name: str) -> Any:
    """Return an equation that gives a name, with the primitive that every version of JAX has for it."""
    return eqn.replace(primitive=name_p, params={"name": name})


def barriers_hold_cotangents() -> bool:
    """Tell whether the barrier of ``jax.checkpoint`` waits for cotangents (the second flag counts under the first)."""
    return not (_is_set("jax_remat3") and _is_set("jax_remat_barrier_no_cotangents"))


def _is_set(flag: str) -> bool:
    return bool(getattr(jax.config, flag, False))


def checkpoint(run: Callable[..., Any], *, prevent_cse: bool = True, policy: Any = None) -> Callable[..., Any]:
    """Return a function of arrays under ``jax.checkpoint``, with a barrier that waits for cotangents."""
    stock = _jax_checkpoint(run, prevent_cse=prevent_cse, policy=policy)

    def call(*args: Any) -> Any:
        return stock(*args) if barriers_hold_cotangents() or not prevent_cse else held(run, args, policy)

    return call


def checkpointed_as(eqn: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays under ``jax.checkpoint`` as the function of an equation is."""
    params = high_parameters(eqn.params.get("_prim")) or eqn.params
    prevented = params.get("prevent_cse", True)  # for all operands or for each
    prevent_cse = any(prevented) if isinstance(prevented, tuple) else bool(prevented)
    return checkpoint(run, prevent_cse=prevent_cse, policy=params["policy"])


def linear_checkpoint(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under ``jax.checkpoint`` that may be in the rule of a ``custom_jvp``: linear in the tangents.

    It is transposed there, which JAX cannot do with its own under ``jax_remat3``.
    """
    stock = _jax_checkpoint(run, prevent_cse=False)

    def call(*args: Any) -> Any:
        return held(run, args, None) if _is_set("jax_remat3") else stock(*args)

    return call


def held(run: Callable[..., Any], args: Sequence[Any], policy: Any) -> Any:
    """Call a function of arrays under ``jax.checkpoint``, with the barrier of this module."""
    return _call(_held, run, args, policy=policy)


def whole(run: Callable[..., Any], *args: Any) -> Any:
    """Call a function of arrays so that JAX never evaluates it partially, which it does even where all is known.

    In a loop nothing would be under ``jax.checkpoint`` any longer, and what steps have in common would be before it.
    """
    return _call(_whole, run, args)


_jax_checkpoint = jax.checkpoint  # the original, even where a program puts ``rp.checkpoint`` in its place


def _call(primitive: Any, run: Callable[..., Any], args: Sequence[Any], **params: Any) -> Any:
    """Call a function of arrays by one equation."""
    closed, shapes = jax.make_jaxpr(run, return_shape=True)(*args)
    return jax.tree.unflatten(jax.tree.structure(shapes), _bind(primitive, closed, jax.tree.leaves(args), **params))


def _bind(primitive: Any, closed: Any, args: Sequence[Any], **params: Any) -> list[Any]:
    """Bind the equation for a jaxpr; what it closed over become operands, since they may be differentiated."""
    opened = getattr(closed, "jaxpr", closed)
    call = jex_core.ClosedJaxpr(convert_constvars_jaxpr(opened), ())
    return primitive.bind(*closed.consts, *args, call_jaxpr=call, **params)


def _make_call(name: str) -> Any:
    """Return a primitive whose equations call a jaxpr; how they are differentiated is left open.

    It has the name of one of JAX's calls, for whoever reads the program.
    """
    made = jex_core.Primitive(name)
    made.multiple_results = True

    def run(*args: Any, call_jaxpr: Any, **_: Any) -> list[Any]:
        return jex_core.jaxpr_as_fun(call_jaxpr)(*args)

    def types(*_: Any, call_jaxpr: Any, **__: Any) -> tuple[list[Any], Any]:
        return list(call_jaxpr.out_avals), call_jaxpr.effects

    def batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], *, call_jaxpr: Any, **params: Any) -> Any:
        to_first = [batching.zero_if_mapped] * len(call_jaxpr.out_avals)
        batched, mapped = batching.batch_jaxpr_axes(call_jaxpr, axis, dims, to_first)
        return _bind(made, batched, args, **params), [0 if is_mapped else None for is_mapped in mapped]

    made.def_impl(run)
    made.def_effectful_abstract_eval(types)
    batching.fancy_primitive_batchers[made] = batch
    partial_eval.dce_rules[made] = partial_eval.dce_jaxpr_closed_call_rule
    mlir.register_lowering(made, mlir.lower_fun(run, multiple_results=True))
    made.to_lojax = run  # where the jaxpr has equations of JAX's newer kind (jax 0.12)
    return made


_held, _whole = _make_call("checkpoint"), _make_call("closed_call")


def _moving(tangents: Sequence[Any]) -> list[bool]:
    return [type(t) is not ad.Zero and t.dtype != jax.dtypes.float0 for t in tangents]


def _whole_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: Any) -> Any:
    """What is differentiated is what is called."""
    moves = _moving(tangents)
    still, moving = partition_list(moves, primals)
    run = jex_core.jaxpr_as_fun(call_jaxpr)
    return jax.jvp(lambda *xs: run(*merge_lists(moves, still, xs)), moving, partition_list(moves, tangents)[1])


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: Any, policy: Any
) -> tuple[list[Any], list[Any]]:
    moves = _moving(tangents)
    still, moving = partition_list(moves, primals)
    _, directions = partition_list(moves, tangents)
    run = _jax_checkpoint(jex_core.jaxpr_as_fun(call_jaxpr), policy=policy, prevent_cse=False)
    outputs, push = jax.linearize(lambda *xs: run(*merge_lists(moves, still, xs)), *moving)
    closed: Any = jax.make_jaxpr(push)(*directions)
    linear = getattr(closed, "jaxpr", closed)
    reached = depending(linear.eqns, linear.invars)
    moved = [not is_literal(v) and v in reached for v in linear.outvars]
    some = jax.make_jaxpr(lambda *ds: partition_list(moved, push(*ds))[1])(*directions)
    unmoved = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x, m in zip(outputs, moved, strict=True) if not m]
    return outputs, merge_lists(moved, unmoved, _bind(_held, some, directions, policy=None))


def _transpose(cotangents: Sequence[Any], *operands: Any, call_jaxpr: Any, policy: Any) -> list[Any]:
    del policy
    linear = [ad.is_undefined_primal(x) for x in operands]
    live = [type(ct) is not ad.Zero for ct in cotangents]
    kept, unknown = partition_list(linear, operands)
    kept, given = jax.lax.optimization_barrier((kept, partition_list(live, cotangents)[1]))
    run = jex_core.jaxpr_as_fun(call_jaxpr)
    some = jax.linear_transpose(
        lambda *xs: partition_list(live, run(*merge_lists(linear, kept, xs)))[1], *[struct(x.aval) for x in unknown]
    )
    return merge_lists(linear, [None] * len(kept), some(given))


ad.primitive_jvps[_held] = _jvp
ad.primitive_transposes[_held] = _transpose
ad.primitive_jvps[_whole] = _whole_jvp
