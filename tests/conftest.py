"""Settings for all tests."""

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
