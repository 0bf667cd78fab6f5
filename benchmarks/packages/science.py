"""Simulators that are differentiated through: Diffrax, Exponax, JAX-CFD, Dynamax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.packages.record import Problem, load, normal, problem


def _neural_ode(adjoint: str) -> Problem:
    """A vector field of 3 layers, 256 trajectories, 20 times to be met."""
    diffrax, eqx = load("diffrax"), load("equinox")
    field = eqx.nn.MLP(8, 8, 64, 2, activation=jnp.tanh, key=jax.random.key(0))
    params, static = eqx.partition(field, eqx.is_inexact_array)
    times = jnp.linspace(0.0, 1.0, 20)

    def run(params: Any, start: jax.Array) -> jax.Array:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: eqx.combine(args, static)(y)),
            *(diffrax.Tsit5(), 0.0, 1.0, 0.05, start),
            args=params, saveat=diffrax.SaveAt(ts=times), max_steps=32, adjoint=getattr(diffrax, adjoint)(),
        ).ys  # fmt: skip

    def loss(params: Any, batch: Any) -> jax.Array:
        start, goal = batch
        return jnp.mean((jax.vmap(lambda y: run(params, y))(start) - goal[:, None]) ** 2)

    return Problem(loss, params, (normal(256, 8), normal(256, 8, seed=1)))


@problem("diffrax", "neural ODE, its own checkpointed adjoint")
def diffrax_checkpointed() -> Problem:
    """The default adjoint."""
    return _neural_ode("RecursiveCheckpointAdjoint")


@problem("diffrax", "neural ODE, direct adjoint")
def diffrax_direct() -> Problem:
    """Through the operations of the solver."""
    return _neural_ode("DirectAdjoint")


@problem("exponax", "Kuramoto-Sivashinsky equation corrected by a network")
def exponax_corrected() -> Problem:
    """24 steps of a pseudo-spectral solver at 128 points, 32 trajectories."""
    exponax, eqx = load("exponax"), load("equinox")
    stepper = exponax.stepper.KuramotoSivashinsky(1, 60.0, 128, 0.1)
    keys = jax.random.split(jax.random.key(0))
    net = [eqx.nn.Conv1d(1, 16, 5, padding="SAME", key=keys[0]), eqx.nn.Conv1d(16, 1, 5, padding="SAME", key=keys[1])]
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def loss(params: Any, start: jax.Array) -> jax.Array:
        first, last = eqx.combine(params, static)

        def step(u: jax.Array) -> jax.Array:
            return stepper(u) + 0.01 * last(jax.nn.gelu(first(u)))

        path = jax.vmap(exponax.rollout(step, 24))(start)
        return jnp.mean(path**2)

    return Problem(loss, params, normal(32, 1, 128))


@problem("jax-cfd", "Navier-Stokes on a grid, the initial velocity")
def jax_cfd_flow() -> Problem:
    """16 steps of a finite-volume solver on 64 x 64 cells."""
    cfd = load("jax_cfd.base")
    grid = cfd.grids.Grid((64, 64), domain=((0, 2 * jnp.pi), (0, 2 * jnp.pi)))
    start = cfd.initial_conditions.filtered_velocity_field(jax.random.PRNGKey(0), grid, 3.0, 4)
    step = cfd.equations.semi_implicit_navier_stokes(density=1.0, viscosity=1e-2, dt=0.01, grid=grid)
    run = cfd.funcutils.repeated(step, 16)

    def loss(velocity: Any, goal: jax.Array) -> jax.Array:
        return sum((jnp.mean((u.data - goal) ** 2) for u in run(velocity)), jnp.zeros(()))

    return Problem(loss, start, normal(64, 64))


@problem("dynamax", "linear Gaussian state space model, Kalman filter")
def dynamax_kalman() -> Problem:
    """16 sequences of 128 observations, 12 hidden and 16 seen dimensions."""
    ssm = load("dynamax.linear_gaussian_ssm")
    model = ssm.LinearGaussianSSM(12, 16)
    params, props = model.initialize(jax.random.PRNGKey(0))
    del props

    def loss(params: Any, seen: jax.Array) -> jax.Array:
        return -jnp.mean(jax.vmap(lambda y: model.marginal_log_prob(params, y))(seen)) / seen[0].size

    return Problem(loss, params, normal(16, 128, 16))
