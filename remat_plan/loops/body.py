"""The body of a loop, traced once.

In: a function (carry, x) -> (carry, y) of pytrees, as ``jax.lax.scan`` takes it, and its first arguments.
Out: ``Prepared``: the body as a function of flat lists (``Body``), everything that it closes over as an argument of
its own, and what the loop starts from.

Three things are made plain here so that the schedules need not know them. Traced values that the body closes over
become arguments, integers and keys too, so that a loop with derivatives of its own can be put around it. Keys travel
as their bits, because slots are filled with zeros at first. And a carry that would change its type is refused.

Limits: constants that are not traced stay inside the body; they have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat

Leaves = list[Any]
"""The leaves of a pytree: arrays, keys as bits."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a pytree lies in flat lists: its structure, the types of its leaves (of a key, of its bits), and per leaf the
    name of the key's generator, None for other leaves."""

    tree: Any
    structs: tuple[jax.ShapeDtypeStruct, ...]
    keys: tuple[Any, ...]

    def pack(self, leaves: Sequence[Any]) -> Any:
        """Make the pytree of flat leaves, stacked or not."""
        wrapped = (
            x if key is None else jax.random.wrap_key_data(x, impl=key)
            for x, key in zip(leaves, self.keys, strict=True)
        )
        return jax.tree.unflatten(self.tree, list(wrapped))

    @property
    def floats(self) -> tuple[bool, ...]:
        """Which leaves have derivatives."""
        return tuple(_compat.is_float(s) for s in self.structs)

    @property
    def size_bytes(self) -> int:
        """Bytes of all leaves."""
        return sum(_compat.aval_bytes(s) for s in self.structs)


def unpack(tree: Any) -> Leaves:
    """Return the leaves of a pytree as flat lists hold them: arrays, keys as bits."""
    leaves = (x if isinstance(x, jax.Array) else jnp.asarray(x) for x in jax.tree.leaves(tree))
    return [jax.random.key_data(x) if _compat.is_key(jax.typeof(x)) else x for x in leaves]


def layout(tree: Any) -> Layout:
    """Describe a pytree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    keys = tuple(jax.random.key_impl(x) if _compat.is_key(jax.typeof(x)) else None for x in leaves)
    structs = (_compat.struct(jax.typeof(x)) for x in unpack(tree))
    return Layout(structure, tuple(structs), keys)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A traced function of flat lists; its constants are None where a traced value goes, which is then an argument."""

    jaxpr: Any
    constants: tuple[Any, ...]

    def __call__(self, closed: Sequence[Any], args: Sequence[Any]) -> Leaves:
        """Run it on the values that it closes over and on its arguments."""
        values = iter(closed)
        return _compat.evaluate(self.jaxpr, [next(values) if c is None else c for c in self.constants], args)


def opened(fn: Callable[..., list[Any]], *types: Sequence[Any]) -> tuple[Opened, Leaves]:
    """Trace a function of flat lists; return it with the traced values that it closes over."""
    jaxpr, constants = _compat.open_jaxpr(jax.make_jaxpr(fn)(*map(list, types)))
    left = tuple(None if _compat.is_tracer(c) else c for c in constants)
    return Opened(jaxpr, left), [c for c in constants if _compat.is_tracer(c)]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A loop body on flat lists: (carry, x) to (carry, y), and how these lie in them."""

    run: Opened
    carry: Layout
    x: Layout
    y: Layout

    def __call__(self, closed: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[Leaves, Leaves]:
        """Run one step and return carry and y."""
        outputs = self.run(closed, [*carry, *x])
        return outputs[: len(carry)], outputs[len(carry) :]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A loop that is ready to run: its body, the traced values that this closes over, the first carry, stacked inputs,
    trip count."""

    body: Body
    closed: Leaves
    init: Leaves
    xs: Leaves
    length: int


@dataclass(slots=True)
class _OnLists:
    """A body as a function of flat lists; running it leaves behind the types of its carry and how its y lies."""

    call: Callable[..., Any]
    carry: Layout
    x: Layout
    name: str
    after: Any = None
    y: Any = None

    def __call__(self, carry: Leaves, x: Leaves) -> list[Any]:
        result = self.call(self.carry.pack(carry), self.x.pack(x))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"{self.name}: the body must return a pair (carry, y), not {type(result).__name__}.")
        self.after, self.y = jax.tree.map(jax.typeof, result[0]), layout(result[1])
        return unpack(result)


def prepare(call: Callable[..., Any], init: Any, xs: Any, length: int, name: str) -> Prepared:
    """Trace a loop's body, for ``length`` >= 1 steps; ``name`` is what the user called, for messages.

    ``TypeError`` if it returns no pair, or its carry has another structure or type than ``init``.
    """
    stacked, whole = unpack(xs), layout(xs)
    rows = jax.eval_shape(lambda xs: [jax.lax.index_in_dim(x, 0, keepdims=False) for x in xs], stacked)
    x = Layout(whole.tree, tuple(rows), whole.keys)
    init = _checked_carry(call, init, x, name)
    traced = _OnLists(call, layout(init), x, name)
    run, closed = opened(traced, traced.carry.structs, x.structs)
    return Prepared(Body(run, traced.carry, x, traced.y), closed, unpack(init), stacked, length)


@contextmanager
def forward_mode_explained(message: str) -> Iterator[None]:
    """Say what a user can do where JAX only says that there is a ``custom_vjp``.

    Under ``jax.jit`` JAX finds out later, and its own message remains.
    """
    try:
        yield
    except TypeError as error:  # JAX has no class of its own for it
        if "custom_vjp" not in str(error):
            raise
        raise TypeError(message) from error


def read_primals(inputs: Any) -> tuple[Any, Any]:
    """Return the values of what ``custom_vjp`` hands to a rule, and which of them are differentiated."""

    def of_each(read: Callable[[Any], Any]) -> Any:
        return jax.tree.map(read, inputs, is_leaf=lambda x: hasattr(x, "perturbed"))

    return of_each(lambda x: x.value), of_each(lambda x: x.perturbed and _compat.is_float(jax.typeof(x.value)))


def only_floats(cotangents: Sequence[Any], of: Layout) -> Leaves:
    """Return the cotangents of leaves of floating point; zeros where ``custom_vjp`` hands none to a rule."""
    given = [c for c, is_float in zip(cotangents, of.floats, strict=True) if is_float]
    return [_compat.zeros(c.aval) if isinstance(c, SymbolicZero) else c for c in given]


def spread(values: Leaves, places: Sequence[bool]) -> list[Any]:
    """Return values in their places, None in the others."""
    return _compat.merge_lists(places, [None] * (len(places) - len(values)), values)


def _checked_carry(call: Callable[..., Any], init: Any, x: Layout, name: str) -> Any:
    """Return the first carry with the type that the body gives it.

    A Python number has a weak type, which the body's first step may make firm, as in ``jax.lax.scan``.
    """
    after = _carry_after(call, init, x, name)
    if all(_may_become(jax.typeof(a), b) for _, a, b in _changed(init, after)):
        init = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype) if _differ(jax.typeof(a), b) else a, init, after)
        after = _carry_after(call, init, x, name)
    if changed := _changed(init, after):
        lines = "; ".join(
            f"carry{jax.tree_util.keystr(path)} goes in as {jax.typeof(a).str_short()} and comes out as {b.str_short()}"
            for path, a, b in changed
        )
        raise TypeError(
            f"{name}: the carry changes its type between iterations: {lines}. "
            "Convert init, or what the body returns, so that both agree."
        )
    return jax.tree.map(lambda x: jnp.asarray(x, jax.typeof(x).dtype) if jax.typeof(x).weak_type else x, init)


def _carry_after(call: Callable[..., Any], init: Any, x: Layout, name: str) -> Any:
    """Return the types of the carry after one step."""
    traced = _OnLists(call, layout(init), x, name)
    jax.eval_shape(traced, list(traced.carry.structs), list(x.structs))
    if jax.tree.structure(traced.after) != traced.carry.tree:
        raise TypeError(
            f"{name}: the carry changes its structure between iterations, from {traced.carry.tree} to "
            f"{jax.tree.structure(traced.after)}. Return a carry with the structure of init."
        )
    return traced.after


def _changed(init: Any, after: Any) -> list[tuple[Any, Any, Any]]:
    """Return (path, leaf before, type after) of the leaves whose type is another one."""
    before = jax.tree_util.tree_leaves_with_path(init)
    pairs = zip(before, jax.tree.leaves(after), strict=True)
    return [(path, a, b) for (path, a), b in pairs if _differ(jax.typeof(a), b)]


def _differ(before: Any, after: Any) -> bool:
    return before.shape != after.shape or before.dtype != after.dtype


def _may_become(before: Any, after: Any) -> bool:
    """Tell whether a number of weak type is promoted to the other type."""
    if not before.weak_type or before.shape != after.shape or _compat.is_key(after):
        return False
    kinds = ((jnp.complexfloating, complex), (jnp.floating, float), (jnp.integer, int))
    number = next((scalar for kind, scalar in kinds if jnp.issubdtype(before.dtype, kind)), bool)
    return jnp.result_type(number, after.dtype) == after.dtype
