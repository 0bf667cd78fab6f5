"""How often XLA compiled something: for tests of what is compiled anew."""

import contextlib

import jax

_count = [0]


def _heard(name, *_, **__):
    _count[0] += "backend_compile" in name


jax.monitoring.register_event_duration_secs_listener(_heard)


@contextlib.contextmanager
def counting_compiles():
    """Within it, what it gives tells how many programs were compiled since it began."""
    begun = _count[0]
    yield lambda: _count[0] - begun
