"""Inference and optimisation: NumPyro, FlowJAX, OTT, JAXopt, GPJax."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.packages.record import Problem, load, normal, problem


@problem("numpyro", "variational auto-encoder, evidence bound")
def numpyro_vae() -> Problem:
    """256 rows of 64 numbers, networks of 3 layers."""
    numpyro, dist, infer = load("numpyro"), load("numpyro.distributions"), load("numpyro.infer")

    def net(p: Any, x: jax.Array) -> jax.Array:
        for w in p[:-1]:
            x = jax.nn.softplus(x @ w)
        return x @ p[-1]

    def weights(name: str, *sizes: int) -> Any:
        pairs = itertools.pairwise(sizes)
        return [
            numpyro.param(f"{name}{i}", lambda key, a=a, b=b: jax.random.normal(key, (a, b)) / a**0.5)
            for i, (a, b) in enumerate(pairs)
        ]

    def model(x: jax.Array) -> None:
        decoder = weights("decoder", 8, 128, 128, 64)
        with numpyro.plate("rows", len(x)):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
            numpyro.sample("x", dist.Normal(net(decoder, z), 0.5).to_event(1), obs=x)

    def guide(x: jax.Array) -> None:
        encoder = weights("encoder", 64, 128, 128, 16)
        with numpyro.plate("rows", len(x)):
            mean, scale = jnp.split(net(encoder, x), 2, -1)
            numpyro.sample("z", dist.Normal(mean, jax.nn.softplus(scale) + 1e-3).to_event(1))

    x, elbo = normal(256, 64), infer.Trace_ELBO(num_particles=4)
    svi = infer.SVI(model, guide, load("numpyro.optim").Adam(1e-3), elbo)
    params = svi.get_params(svi.init(jax.random.PRNGKey(0), x))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return elbo.loss(jax.random.PRNGKey(1), params, model, guide, x) / x.size

    return Problem(loss, params, x)


@problem("flowjax", "masked autoregressive flow, likelihood")
def flowjax_maf() -> Problem:
    """6 layers on 512 rows of 16 numbers; the layers are one scan."""
    eqx, flows, dists = load("equinox"), load("flowjax.flows"), load("flowjax.distributions")
    wrappers = load("paramax")
    flow = flows.masked_autoregressive_flow(
        jax.random.key(0), base_dist=dists.Normal(jnp.zeros(16)), flow_layers=6, nn_width=64, nn_depth=2
    )
    params, static = eqx.partition(flow, eqx.is_inexact_array, is_leaf=lambda x: isinstance(x, wrappers.NonTrainable))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return -jnp.mean(wrappers.unwrap(eqx.combine(params, static)).log_prob(x))

    return Problem(loss, params, normal(512, 16))


@problem("ott-jax", "entropic optimal transport, Sinkhorn unrolled")
def ott_sinkhorn() -> Problem:
    """256 points a network moves onto 256 others; 40 iterations."""
    geometry, linear = load("ott.geometry.pointcloud"), load("ott.solvers.linear")

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        moved = x + jnp.tanh(x @ params["in"]) @ params["out"]
        out = linear.solve(
            geometry.PointCloud(moved, y, epsilon=0.5),
            implicit_diff=None, min_iterations=40, max_iterations=40, inner_iterations=10,
        )  # fmt: skip
        return out.reg_ot_cost

    return Problem(
        loss,
        {"in": normal(8, 32, seed=2) / 3, "out": normal(32, 8, seed=3) / 6},
        (normal(256, 8), normal(256, 8, seed=1) + 1),
    )


@problem("jaxopt", "hyperparameters through unrolled gradient descent")
def jaxopt_unrolled() -> Problem:
    """The inner problem: 40 steps of ridge regression on features of a network."""
    jaxopt = load("jaxopt")

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        features = jnp.tanh(x @ params["features"])

        def inner(w: jax.Array) -> jax.Array:
            return jnp.mean((features @ w - y) ** 2) + jnp.sum(jnp.exp(params["ridge"]) * w**2)

        solver = jaxopt.GradientDescent(
            inner, stepsize=0.02, maxiter=40, acceleration=False, implicit_diff=False, unroll=True
        )
        return jnp.mean((features @ solver.run(jnp.zeros((64, 4))).params - y) ** 2)

    params = {"features": normal(16, 64, seed=2) / 4, "ridge": jnp.full((64, 1), -4.0)}
    return Problem(loss, params, (normal(512, 16), normal(512, 4, seed=1)))


@problem("gpjax", "Gaussian process, marginal likelihood")
def gpjax_regression() -> Problem:
    """256 points, a kernel that is a sum of two."""
    gpx, eqx = load("gpjax"), load("equinox")
    x = jnp.linspace(0.0, 6.0, 256)[:, None]
    data = gpx.Dataset(x, jnp.sin(3 * x) + 0.1 * normal(256, 1))
    kernel = gpx.kernels.RBF() + gpx.kernels.Matern52()
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=kernel)
    posterior = prior * gpx.likelihoods.Gaussian(256)
    params, static = eqx.partition(posterior, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        return -gpx.objectives.conjugate_mll(eqx.combine(params, static), gpx.Dataset(x, y))

    return Problem(loss, params, (data.X, data.y))
