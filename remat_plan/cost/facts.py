"""What is known of an equation whatever it is applied to.

In: equations, the ``Backend``, a function that tells what happens inside a region. Out: ``Facts``, each
equation's found once: planning lowers the same equations many times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.cost.backend import Backend
from remat_plan.cost.layout import SMALL_BYTES, splits_rows
from remat_plan.cost.lowered import lowered_jaxpr
from remat_plan.cost.rules import FILLS, FUSIBLE, MOVES, REGIONS, Kind, called, eqn_flops, kind_of
from remat_plan.cost.steps import NO_REGION, RegionCost
from remat_plan.cost.work import ELEMENTWISE, work_class

_SHAPED = MOVES | {"gather"}  # operands are not meant to have the shape of the result
_COMPILED_FOR = {"gpu": frozenset({"gpu", "cuda", "rocm"})}
"""What JAX calls a platform, where that is not the name of its ``Hardware``."""

_BY_NAME = frozenset("split gather select_and_scatter_add add add_any transpose random_bits threefry2x32".split())


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an equation whatever it is applied to.

    Attributes:
        eqn, name: the equation and its primitive's name.
        inner: the jaxpr of a call, which is inlined; None otherwise.
        kind: how it fuses.
        narrow: per operand of an element-wise equation, whether it is broadcast (None for literals).
        fills: per operand that is broadcast, the number of what tells such broadcasts apart (see ``FactBook.number``).
        out_bytes: of its results.
        flops, region: what it costs.
        library: whether a library call may take it in (1) or starts with it (2).
        key: the number of what tells equations on equal inputs apart; None where it equals no other one.
        work: the class of its FLOPs.
        by_name: whether lowering treats its primitive in a way of its own.
        splits_rows: of a transpose, whether neighbours in memory are none behind it.
        lower, operands: the backend's rules of these stages for its primitive.
        has_one: of a product, a broadcast or a conversion, whether it reads a literal that is one.
    """

    eqn: Any  # kept, so that its id stays its own
    name: str
    inner: Any
    kind: Kind
    narrow: tuple[bool | None, ...] = ()
    fills: tuple[int | None, ...] = ()
    out_bytes: tuple[int, ...] = ()
    flops: float = 0.0
    library: int = 0
    region: RegionCost = NO_REGION
    key: int | None = None
    work: str = ELEMENTWISE
    by_name: bool = False
    splits_rows: bool = False
    has_one: bool = False
    lower: tuple[Callable[..., Any], ...] = ()
    operands: tuple[Callable[..., Any], ...] = ()


class FactBook:
    """The facts of all equations met so far, for one backend; ``bytes`` are those of what a kernel writes.

    ``is_body``: whether they are of a loop's body or a branch, which XLA compiles as computations of their own.
    """

    def __init__(
        self, region_cost: Callable[[Any], RegionCost], backend: Backend, platform: str = "cpu", is_body: bool = False
    ):
        self.region_cost, self.backend, self.platform, self.is_body = region_cost, backend, platform, is_body
        self.bytes: Callable[..., int] = backend.only("bytes") or _plain_bytes
        self._library_role = backend.only("library")
        self._known: dict[int, Facts] = {}
        self._additions: dict[Any, Facts] = {}
        self._numbers: dict[Any, int] = {}

    def of(self, eqn: Any) -> Facts:
        """The facts of an equation."""
        found = self._known.get(id(eqn))
        if found is None:
            found = self._known[id(eqn)] = self._learn(eqn)
        return found

    def addition(self, aval: Any) -> Facts:
        """The facts of an equation that adds two cotangents of one type."""
        if aval not in self._additions:
            self._additions[aval] = self.of(_compat.addition(aval))
        return self._additions[aval]

    def number(self, key: Any) -> int | None:
        """A number for what tells steps on the same values apart, equal for equal keys.

        None if it cannot be hashed: such a step is taken as unlike any other.
        """
        try:
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:  # it cannot be hashed
            return None

    def _learn(self, eqn: Any) -> Facts:
        name = _name(eqn)
        if name == "cond" and (taken := only_branch(eqn, self.platform)) is not None:
            return Facts(eqn, name, taken, Kind.REGION)
        kind = kind_of(eqn)
        if kind in (Kind.OPAQUE, Kind.REGION) and (inner := self._inner(eqn)) is not None:
            return Facts(eqn, name, inner, Kind.REGION)
        if kind in (Kind.ALIAS, Kind.BARRIER):
            return Facts(eqn, name, None, kind)
        out = tuple([self.bytes(v.aval) for v in eqn.outvars])
        narrow: tuple[bool | None, ...] = ()
        if kind in FUSIBLE and name not in _SHAPED and out[0] >= SMALL_BYTES:
            count = eqn.outvars[0].aval.size
            narrow = tuple(
                [None if _compat.is_literal(a) else getattr(a.aval, "size", count) < count for a in eqn.invars]
            )
        library = self._library_role(eqn) if self._library_role else 0
        shape = getattr(eqn.invars[0].aval, "shape", ()) if eqn.invars else ()
        return Facts(
            eqn,
            name,
            None,
            self._kind(eqn, kind, narrow),
            narrow=narrow,
            fills=tuple([self._fill(eqn, atom, n, library) for atom, n in zip(eqn.invars, narrow, strict=False)]),
            out_bytes=out,
            flops=eqn_flops(eqn),
            work=work_class(eqn),
            library=library,
            region=self.region_cost(eqn) if kind == Kind.REGION else NO_REGION,
            key=None if kind == Kind.REGION or eqn.effects else self.number((name, *equal_key(eqn))),
            by_name=name in _BY_NAME,
            splits_rows=name == "transpose" and splits_rows(shape, range(len(shape)), eqn.params["permutation"]),
            has_one=(name == "mul" or name in FILLS) and any(_is_one(a) for a in eqn.invars),
            lower=self.backend.of("lower", name),
            operands=self.backend.of("operands", name),
        )

    def _inner(self, eqn: Any) -> Any | None:
        """The jaxpr that runs in place of an equation: what it calls, or what JAX makes of it on this platform."""
        name = eqn.primitive.name
        if name in REGIONS or name in _BY_NAME:
            return None
        inner = called(eqn)
        return lowered_jaxpr(eqn, self.platform) if inner is None else inner

    def _kind(self, eqn: Any, kind: Kind, narrow: tuple[bool | None, ...]) -> Kind:
        """How an equation fuses on this backend."""
        if eqn.primitive.name == "div" and narrow and narrow[1] is not False:
            kind = Kind.CHEAP  # a division by a broadcast becomes a multiplication with its reciprocal
        for rule in self.backend.of("kind", eqn.primitive.name):
            kind = rule(eqn, kind)
        return kind

    def _fill(self, eqn: Any, atom: Any, narrow: bool | None, library: int) -> int | None:
        """What tells the broadcast of an operand apart; a literal's matters to library calls only."""
        aval = eqn.outvars[0].aval
        size = _compat.aval_bytes(aval)
        if narrow:
            return self.number(("broadcast_in_dim", atom.aval.shape, aval.shape, size))
        if narrow is None and library:
            item = getattr(atom.val, "item", None)
            value = item() if item and getattr(atom.val, "size", 1) == 1 else atom.val
            return self.number(("broadcast_in_dim", repr(value), aval.shape, size))
        return None


def _plain_bytes(aval: Any, _inner: Any = None) -> int:
    return _compat.aval_bytes(aval)


def _is_one(atom: Any) -> bool:
    """Tell whether an operand is the number one, of floating point."""
    is_number = _compat.is_literal(atom) and _compat.is_float(atom.aval) and getattr(atom.val, "size", 1) == 1
    return is_number and bool(atom.val == 1)


def _name(eqn: Any) -> str:
    """What XLA makes of an equation: its primitive, but that a pad which only takes away is a slice."""
    name = eqn.primitive.name
    if name == "pad" and all(low <= 0 and high <= 0 and not inner for low, high, inner in eqn.params["padding_config"]):
        return "slice"
    return name


def item_bytes(eqn: Any) -> int:
    """Bytes of one element of an equation's first result; 0 where there is none, or no equation."""
    aval = eqn.outvars[0].aval if eqn is not None and eqn.outvars else None
    return getattr(getattr(aval, "dtype", None), "itemsize", 0)


def only_branch(eqn: Any, platform: str) -> Any | None:
    """Return the branch of a ``cond`` that does all the work, the others returning constants; None if several work.

    The ``cond`` is there so that nothing in this branch is made before its operands (``rewrite.order``); its steps are
    those of the code around it. Of branches for platforms only one is compiled.
    """
    for branch, platforms in zip(eqn.params["branches"], eqn.params.get("branches_platforms") or (), strict=False):
        if platforms is None or not _COMPILED_FOR.get(platform, {platform}).isdisjoint(platforms):
            return branch
    working = [branch for branch in eqn.params["branches"] if _reads(branch)]
    return working[0] if len(working) == 1 else None


def _reads(branch: Any) -> bool:
    """Tell whether what a branch returns depends on its operands."""
    jaxpr, _ = _compat.open_jaxpr(branch)
    needed = _compat.needed_equations(jaxpr.eqns, jaxpr.outvars)
    used = {a for e in needed for a in e.invars if not _compat.is_literal(a)}
    used.update(a for a in jaxpr.outvars if not _compat.is_literal(a))
    return any(v in used for v in jaxpr.invars)


def equal_key(eqn: Any) -> tuple[Any, ...]:
    """Return what tells equations on equal inputs apart: literals, the shapes in which they read, parameters, results.

    The same value read in another shape is another input: which elements ``v[:2]`` takes depends on it.
    """
    operands = tuple([repr(a) if _compat.is_literal(a) else getattr(a.aval, "shape", None) for a in eqn.invars])
    aval = eqn.outvars[0].aval if eqn.outvars else None
    return (operands, getattr(aval, "shape", None), getattr(aval, "dtype", None), *eqn.params.values())
