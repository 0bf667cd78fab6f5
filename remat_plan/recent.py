"""A dictionary of bounded size: what was not used for longest goes first.

In: what is made once per input shapes (plans, emitted functions, fitted steps). Out: ``Recent``. Several threads may
use one.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """A dictionary that ``keep`` fills and ``use`` reads; the order is that of use.

    Args:
        most: how many entries are kept.

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

    def latest_first(self) -> list[tuple[K, V]]:
        """What is kept now, in the order of last use."""
        with self._lock:
            return list(self.items())[::-1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and store what is kept, but not the lock."""
        return _recent, (self.most, list(self.items()))


def _recent(most: int, items: list[tuple[Any, Any]]) -> Recent[Any, Any]:
    made: Recent[Any, Any] = Recent(most)
    for key, value in items:
        made.keep(key, value)
    return made
