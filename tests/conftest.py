"""Settings for all tests."""

import os

# The figures that tests expect are those of the CPU; subprocesses inherit this. Other devices are targets, compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "default",
    deadline=None,  # JAX compiles on first use
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")
