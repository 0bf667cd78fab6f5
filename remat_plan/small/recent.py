"""A dictionary of bounded size: what was not used for longest goes first.

In: what is made once per input shapes (plans, emitted functions, fitted steps). Out: ``Recent``, which several threads
may use; ``key_of``, its keys of values that are not traced.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """A dictionary of at most so many entries that ``keep`` fills and ``use`` reads; the order is that of use.

    >>> known = Recent(2)
    >>> known.keep("a", 1), known.keep("b", 2), known.use("a"), known.keep("c", 3)
    (None, None, 1, None)
    >>> known
    {'a': 1, 'c': 3}
    """

    def __init__(self, most: int):
        super().__init__()
        self.most, self._lock = most, threading.Lock()

    def use(self, key: K) -> V | None:
        """What is kept under a key, which is the one used last from now on; None for nothing."""
        with self._lock:
            if key not in self:
                return None
            self[key] = value = self.pop(key)
            return value

    def keep(self, key: K, value: V) -> None:
        """Keep a value; the one not used for longest goes where there are too many."""
        with self._lock:
            self.pop(key, None)
            self[key] = value
            while len(self) > self.most:
                del self[next(iter(self))]

    def find(self, key: K | None, make: Callable[[], V]) -> V:
        """What is kept under a key, made where nothing is; where there is no key it is made each time."""
        if key is None:
            return make()
        if (known := self.use(key)) is None:
            self.keep(key, known := make())
        return known

    def latest_first(self) -> list[tuple[K, V]]:
        """What is kept now, in the order of last use."""
        with self._lock:
            return list(self.items())[::-1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and store what is kept, but not the lock."""
        return Recent, (self.most,), None, None, iter(list(self.items()))


def key_of(value: Any) -> Any:
    """A value as a key: equal for equal values of equal types, whatever becomes of the value later.

    What cannot be hashed (a configuration that is a mutable dataclass, say) counts by what is in it.

    >>> key_of([1, 0.0]) == key_of([1, 0.0]), key_of(1) == key_of(True), key_of(0.0) == key_of(-0.0)
    (True, False, False)
    """
    kind = type(value)
    if isinstance(value, (float, complex)):
        return kind, repr(value)  # "nan" is equal to itself, "0.0" is not "-0.0"
    if not isinstance(value, (list, tuple)):
        try:
            hash(value)
            return kind, value
        except TypeError:  # by its parts
            pass
    return kind, tuple(map(key_of, _parts(value)))


def _parts(value: Any) -> Iterable[Any]:
    """What makes up a value that cannot be hashed."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, (set, frozenset)):
        return [frozenset(value)]
    if hasattr(value, "node_data"):  # a tree of JAX
        return [*(value.node_data() or ()), *value.children()]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [array.shape, array.dtype.str, array.tobytes()]
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__"):
        return [part for item in vars(value).items() for part in item]
    return [_Itself(value)]


@dataclasses.dataclass(frozen=True, eq=False)
class _Itself:
    """What nothing is known of but whether it is equal to another."""

    value: Any

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and bool(self.value == other.value)
