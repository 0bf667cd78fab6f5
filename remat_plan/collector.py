"""Python's garbage collector, paused while a plan is made.

In and out: nothing. Planning makes millions of small tuples and no cycles of its own; beside the many objects that
JAX keeps, the collector would look through them all again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector inside ``with``; it goes on afterwards if it ran before."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
