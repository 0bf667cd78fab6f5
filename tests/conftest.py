"""Settings for all tests."""

import contextlib
import gc
import os

# The figures that tests expect are those of the CPU; subprocesses inherit this. Other devices are targets, compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # arrays are small: compiling is the time
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "1")  # in debug information; pytest's frames are many

import pytest
from hypothesis import HealthCheck, Phase, settings

from remat_plan.cost import platforms
from remat_plan.graph import action, structure
from remat_plan.planning.strategies import registry
from remat_plan.search import known
from remat_plan.small import remembered
from tests.helpers import searching_quickly

gc.set_threshold(200_000, 50, 100)  # what JAX keeps is looked through at each collection, which finds next to nothing

settings.register_profile(
    "default",
    deadline=None,  # JAX compiles on first use
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def own_registries():
    """What a test or an example makes known is gone after it: nothing in the library takes it out again."""
    names = (registry, "_BY_NAME"), (structure, "_REGISTRY"), (action, "_ACTIONS"), (platforms, "_BACKENDS")
    with pytest.MonkeyPatch.context() as patch:
        for module, name in names:
            patch.setattr(module, name, dict(getattr(module, name)))
        yield


@pytest.fixture(autouse=True)
def nothing_known(request):
    """No test finds what another one compiled, nor what another one planned by rules that it changed."""
    known.forget()
    if "monkeypatch" not in request.fixturenames:
        yield
        return
    remembered.forget()
    yield
    remembered.forget()


@pytest.fixture
def quick_search(request):
    """``searching_quickly`` around a test that is not marked ``full_search``."""
    with searching_quickly() if request.node.get_closest_marker("full_search") is None else contextlib.nullcontext():
        yield
