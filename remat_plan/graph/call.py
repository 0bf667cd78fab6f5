"""A call of a user's function, taken apart into arrays that are traced and everything else.

In: a function, its arguments, ``argnums``. Out: ``Call``: flat arrays, which of them are differentiated, the
flat function, and how to put results together again.

Arrays and ``ShapeDtypeStruct`` are traced; booleans, strings, None, functions and whatever else sits in the arguments
stay as they are (as in ``jax.grad``, so that ``if train:`` works). Python numbers are traced too, so that another
number is no other program; but those inside a model (``frameworks.is_model``) stay as they are, and so do all that are
not differentiated where the function cannot do without their values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from remat_plan import _compat
from remat_plan.graph.argnums import FLAT_NAMES, fixed_arguments, name_arguments, normalize_argnums
from remat_plan.graph.frameworks import check_function, is_nnx_module, is_number, sort_leaves
from remat_plan.small.wording import short


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an argument leaf, its sharding kept where it is known."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if _compat.is_tracer(leaf) or not hasattr(leaf, "dtype"):
        struct, sharding = _compat.struct(jax.typeof(leaf)), _compat.automatic_sharding(_compat.concrete(leaf))
        return struct if sharding is None else struct.update(sharding=sharding)
    sharding = None
    if isinstance(leaf, jax.Array) and getattr(leaf.sharding, "mesh", None) is not None:
        sharding = leaf.sharding if _compat.lays_out(leaf.sharding) else None
    aval = jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf
    dtype = jax.dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(aval.shape, dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))


_NO_LOSS = " If it returns (loss, aux), pass has_aux=True. If it is a layer, use rp.checkpoint(fn, budget=...)."

_NO_GRADIENT = (
    " If it already is a gradient (jax.grad, jax.value_and_grad, jitted or not), pass the loss instead and take "
    "the gradient of the planned function."
)


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments taken apart.

    ``tree`` is the structure of ``(args, kwargs)``; ``traced`` tells which of its leaves are arrays. These are
    ``leaves``, the others ``static``; ``differentiated`` tells which of ``leaves`` gradients are taken of.
    """

    fn: Callable[..., Any]
    tree: Any
    traced: tuple[bool, ...]
    static: tuple[Any, ...]
    leaves: tuple[Any, ...]
    differentiated: tuple[bool, ...]

    def flat_fn(self, *leaves: Any) -> Any:
        """Call the user's function on flat arrays."""
        args, kwargs = jax.tree.unflatten(self.tree, _compat.merge_lists(self.traced, self.static, leaves))
        modules = [m for m in jax.tree.leaves((args, kwargs), is_leaf=is_nnx_module) if is_nnx_module(m)]
        before = jax.tree.leaves(modules)
        result = self.fn(*args, **kwargs)
        after = jax.tree.leaves(modules)
        if len(before) != len(after) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise TypeError(
                f"the function writes to its flax.nnx module {type(modules[0]).__name__} (batch statistics, counters "
                "of random streams, all that nnx.remat or nnx.jit inside hand back), but here it would write to a "
                "copy. Use rp.remat(fn, budget=...), rp.fit for a whole step, or rp.nnx.remat on methods: these return "
                "updates."
            )
        return result

    def of_arguments(self, numbers: Collection[int]) -> Call:
        """This call with gradients of what is differentiated in some arguments alone, if anything is."""
        counts = [part.num_leaves for part in self.tree.children()[0].children()]
        asked = [n in numbers for n, count in enumerate(counts) for _ in range(count)]
        asked += [False] * (len(self.traced) - len(asked))  # what is given by name
        arrays = _compat.partition_list(self.traced, asked)[1]
        moving = tuple([a and b for a, b in zip(arrays, self.differentiated, strict=True)])
        return replace(self, differentiated=moving) if any(moving) else self

    @property
    def structs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of ``leaves``."""
        return tuple(struct_of(x) for x in self.leaves)

    @property
    def types(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Types of ``leaves``, as the function is traced on them.

        Arrays along automatic axes name their mesh in their type, and JAX then writes it into equations; values inside
        ``jit`` are traced without it (``_compat.struct``). A plan is made of the one and applied to the other.
        """
        return tuple(
            jax.ShapeDtypeStruct(s.shape, s.dtype, weak_type=s.weak_type) if _compat.is_automatic(s.sharding) else s
            for s in self.structs
        )

    @property
    def layout(self) -> tuple[Any, ...]:
        """How the arrays lie on several devices along automatic axes, as far as that is known: no part of their types,
        but of what the compiler makes of them."""
        return tuple([(i, _compat.spread(s)) for i, s in enumerate(self.structs) if _compat.is_automatic(s.sharding)])

    def trace(self) -> tuple[Call, Any, Any]:
        """Trace the function; return the call, its closed jaxpr and the tree of its output shapes.

        The call is another one where the function needs to know the Python numbers in its arguments.
        """
        try:
            call, (closed, shapes) = self, self._trace()
        except (TypeError, IndexError):  # what JAX raises where a value has to be known
            call = self._with_numbers()
            if call is None:
                raise
            closed, shapes = call._trace()
        if any(_compat.is_ref(v.aval) for v in _compat.open_jaxpr(closed)[0].constvars):
            raise _no_refs("the function closes over one")
        return call, closed, shapes

    def _trace(self) -> tuple[Any, Any]:
        """Trace the function; JAX's messages then speak of it, and of its arguments."""

        @functools.wraps(self.fn, updated=())
        def traced(*leaves: Any) -> Any:
            return self.flat_fn(*leaves)

        traced.__signature__ = FLAT_NAMES  # type: ignore[attr-defined]
        try:
            return jax.make_jaxpr(traced, return_shape=True)(*self.types)
        except (TypeError, IndexError) as error:  # what JAX raises where a value must be known
            name_arguments(error, self.fn, self.tree, self.traced)
            raise

    def _with_numbers(self) -> Call | None:
        """This call with its Python numbers as they are; None where that changes nothing that may be changed."""
        known = [is_number(leaf) for leaf in self.leaves]
        moving = _compat.partition_list(known, self.differentiated)[0]
        if not any(known) or any(moving) != any(self.differentiated):
            return None
        fixed = _compat.merge_lists(self.traced, [True] * len(self.static), known)
        values = _compat.merge_lists(self.traced, self.static, self.leaves)
        leaves, static = map(tuple, _compat.partition_list(fixed, values))
        traced = tuple(not k for k in fixed)
        return replace(self, traced=traced, static=static, leaves=leaves, differentiated=tuple(moving))


def make_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: int | Sequence[int],
    static_argnums: int | Sequence[int] = (),
) -> Call:
    """Take the call of a loss apart.

    Raises ``TypeError`` if a differentiated argument has a leaf that is no float, ``ValueError`` for a bad position.
    """
    check_function(fn, f"fn={short(fn)}: the first argument must be")
    if not args:
        raise ValueError("no arguments: pass example arguments (arrays or jax.ShapeDtypeStruct) after the function.")
    numbers = normalize_argnums(argnums, len(args))
    fixed, _ = fixed_arguments(fn, len(args), static_argnums, ())
    both = sorted(set(numbers) & fixed)
    if both:
        raise ValueError(f"argument {both[0]} is in both argnums and static_argnums; it can be in only one of them.")

    def moves(path: Any, leaf: Any, in_model: bool) -> bool:
        position = path[1].idx if path[0].idx == 0 else -1
        if position in numbers and not _compat.is_float(struct_of(leaf)):
            if in_model or is_nnx_module(args[position]):  # a buffer: equinox.filter_grad, nnx.grad take none of it
                return False
            raise TypeError(
                f"argument {position}{jax.tree_util.keystr(path[2:])} has dtype {struct_of(leaf).dtype}, which has "
                f"no gradient; argnums={short(argnums)} must name floating-point arguments only. Pass it as "
                "another argument, or close over it."
            )
        return position in numbers

    call = _take_apart(fn, args, kwargs, fixed, (), moves)
    if not any(call.differentiated):
        raise ValueError(
            f"argnums={short(argnums)}: these arguments hold no floating-point array to differentiate. (Argument 0 "
            "of a method is the object itself; its first parameter is argnums=1.)"
        )
    return call


def make_function_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static_argnums: int | Sequence[int] = (),
    static_argnames: Sequence[str] = (),
) -> Call:
    """Take the call of any function apart: every array of floating point in its arguments is differentiated."""
    fixed, names = fixed_arguments(fn, len(args), static_argnums, static_argnames)
    return _take_apart(fn, args, kwargs, fixed, names, lambda _, leaf, __: _compat.is_float(struct_of(leaf)))


def _take_apart(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fixed: Collection[int],
    fixed_names: Collection[str],
    moves: Callable[[Any, Any, bool], bool],
) -> Call:
    """Sort the leaves of a call; ``moves`` tells whether an array is differentiated, from its path, itself, and
    whether it is in a model."""
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs={short(kwargs)}: give a mapping of names to arguments.")
    leaves: list[Any] = []
    static: list[Any] = []
    differentiated: list[bool] = []
    wrapped = tuple(_Static(a) if i in fixed else a for i, a in enumerate(args))
    named = {k: _Static(v) if k in fixed_names else v for k, v in kwargs.items()}
    paths, tree = jax.tree_util.tree_flatten_with_path((wrapped, named))
    kinds = sort_leaves((wrapped, named))
    for (path, leaf), (array, in_model) in zip(paths, kinds, strict=True):
        if array and _compat.is_ref(getattr(leaf, "aval", None)):
            raise _no_refs(f"argument {jax.tree_util.keystr(path[1:])} is one")
        if array and not all(isinstance(size, (int, np.integer)) for size in struct_of(leaf).shape):
            raise TypeError(
                f"argument {jax.tree_util.keystr(path[1:])} is {short(leaf)}, but plans are for sizes that are "
                "numbers. With jax.export, export the function once for each size."
            )
        if array:
            leaves.append(leaf)
            differentiated.append(moves(path, leaf, in_model))
        else:
            static.append(leaf)
    target = _unwrapping(fn) if fixed or fixed_names else fn
    return Call(target, tree, tuple([array for array, _ in kinds]), tuple(static), tuple(leaves), tuple(differentiated))


def _no_refs(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"mutable arrays (jax.new_ref) cannot be planned, and {what}. Pass the value (ref[...]), return the new "
        "one, and store it in the caller."
    )


class _Static:
    """Marks a whole argument as not traced."""

    def __init__(self, value: Any):
        self.value = value


def _unwrapping(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {k: v.value if isinstance(v, _Static) else v for k, v in kwargs.items()}
        return fn(*(a.value if isinstance(a, _Static) else a for a in args), **named)

    return call


class NoLoss(TypeError):
    """A function returns something else than a loss."""


def check_loss(call: Call, shapes: Any, has_aux: bool) -> None:
    """Raise ``NoLoss`` unless a function that returns ``shapes`` returns a scalar loss, or a pair of it and anything.

    A pair is taken for one without ``has_aux`` too, unless a gradient (of ``jax.value_and_grad``) or new parameters may
    be what is beside the scalar.
    """
    is_pair = isinstance(shapes, (tuple, list)) and len(shapes) == 2
    if has_aux and not is_pair:
        raise NoLoss(f"has_aux=True: the function must return (loss, aux), but it returns {_tell(shapes)}.")
    if has_aux or (is_pair and _is_scalar(shapes[0]) and not _is_gradient(call, shapes[1])):
        shapes = shapes[0]
    leaves = jax.tree.leaves(shapes)
    if len(leaves) != 1 or leaves[0] is not shapes:
        hint = "" if has_aux else _NO_LOSS
        raise NoLoss(f"the function must return one scalar loss, but it returns {_tell(shapes)}.{hint}{_NO_GRADIENT}")
    if not _is_scalar(shapes):
        raise NoLoss(
            f"the function must return a real floating-point scalar, but it returns {_tell(shapes)}; take a sum or "
            "a mean (of a complex result, its real part), or use has_aux=True for more outputs." + _NO_GRADIENT
        )


def _is_scalar(shapes: Any) -> bool:
    """Tell whether this is one real scalar of floating point."""
    return getattr(shapes, "shape", None) == () and jax.numpy.issubdtype(shapes.dtype, jax.numpy.floating)


def _is_gradient(call: Call, shapes: Any) -> bool:
    """Tell whether values have the shapes of what is differentiated, as its gradient and its next value have."""
    moving = [leaf.shape for leaf, moves in zip(call.structs, call.differentiated, strict=True) if moves]
    return [getattr(leaf, "shape", None) for leaf in jax.tree.leaves(shapes)] == moving


def _tell(shapes: Any) -> str:
    leaves = jax.tree.leaves(shapes)
    texts = [f"{getattr(x, 'dtype', type(x).__name__)}{list(getattr(x, 'shape', ()))}" for x in leaves[:4]]
    more = f" and {len(leaves) - 4} more" if len(leaves) > 4 else ""
    kind = "" if len(leaves) == 1 and leaves[0] is shapes else f"a {type(shapes).__name__} of "
    return kind + (", ".join(texts) or "nothing") + more
