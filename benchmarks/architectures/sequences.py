"""Models of sequences, ``[batch, time, width]``. In: nothing. Out: ``Model``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.architectures.layers import Params, f32, layer_norm, mlp, mlp_params, rms_norm, stack
from benchmarks.models import Model


def _recurrence(decay: jax.Array, inputs: jax.Array) -> jax.Array:
    """All states of ``h[t] = decay[t] h[t-1] + inputs[t]``, over the second axis."""

    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (decay, inputs), axis=1)[1]


def lru(is_complex: bool, layers: int = 3, batch: int = 8, time: int = 1024, width: int = 256) -> Model:
    """Linear recurrent units (Orvieto et al. 2023, arXiv 2303.06349), with real or complex states."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        inputs, decay = x @ p["in"], jax.nn.sigmoid(p["decay"])
        if is_complex:
            decay, inputs = decay * jnp.exp(1j * p["angle"]), inputs.astype(jnp.complex64)
        states = _recurrence(jnp.broadcast_to(decay, inputs.shape), inputs)
        x = x + states.real @ p["out"]
        return x + mlp(p, x)

    shapes = {"in": f32(width, width), "out": f32(width, width), "decay": f32(width), "angle": f32(width)}
    params = [shapes | mlp_params(width, 2 * width)] * layers
    return stack("lru_complex" if is_complex else "lru", layer, params, f32(batch, time, width))


def mamba(layers: int = 2, batch: int = 2, time: int = 256, width: int = 128, states: int = 16) -> Model:
    """Selective state spaces (Gu and Dao 2023, arXiv 2312.00752), by an associative scan."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        u, gate = jnp.split(rms_norm(x) @ p["in"], 2, -1)
        numbers = ("NWC", "WIO", "NWC")
        u = lax.conv_general_dilated(u, p["conv"], (1,), [(3, 0)], dimension_numbers=numbers, feature_group_count=width)
        u = jax.nn.silu(u)
        step = jax.nn.softplus(u @ p["step"])
        decay = jnp.exp(-jnp.exp(p["decay"]) * step[..., None])
        h = _recurrence(decay, (step * u)[..., None] * (u @ p["write"])[:, :, None, :])
        return x + (jnp.einsum("btdn,btn->btd", h, u @ p["read"]) * jax.nn.silu(gate)) @ p["out"]

    shapes = {
        "in": f32(width, 2 * width),
        "conv": f32(4, 1, width),
        "step": f32(width, width),
        "out": f32(width, width),
    }
    shapes |= {name: f32(width, states) for name in ("decay", "write", "read")}
    return stack("mamba", layer, [shapes] * layers, f32(batch, time, width))


def llama(layers: int = 3, batch: int = 4, time: int = 512, width: int = 512, heads: int = 8) -> Model:
    """Attention with rotary positions and gated perceptrons (Touvron et al. 2023, arXiv 2302.13971)."""

    def rotate(x: jax.Array) -> jax.Array:
        half = x.shape[-1] // 2
        angles = jnp.arange(time)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        a, b, cos, sin = x[..., :half], x[..., half:], jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def layer(p: Params, x: jax.Array) -> jax.Array:
        h = rms_norm(x)
        q, k, v = [(h @ p[n]).reshape(batch, time, heads, -1).transpose(0, 2, 1, 3) for n in ("q", "k", "v")]
        scores = jnp.einsum("bhqd,bhkd->bhqk", rotate(q), rotate(k)) / 8
        weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9))
        mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ p["o"]
        h = rms_norm(x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    shapes = {name: f32(width, width) for name in ("q", "k", "v", "o")} | {"gate": f32(width, 2 * width)}
    return stack("llama", layer, [shapes | mlp_params(width, 2 * width)] * layers, f32(batch, time, width))


def hyena(layers: int = 3, batch: int = 4, time: int = 1024, width: int = 256) -> Model:
    """Long convolutions by Fourier transforms (Poli et al. 2023, arXiv 2302.10866)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        a, b, c = jnp.split(layer_norm(x) @ p["in"], 3, -1)
        spectrum = jnp.fft.rfft(a * b, n=2 * time, axis=1) * jnp.fft.rfft(p["filter"], n=2 * time, axis=0)
        x = x + (jnp.fft.irfft(spectrum, n=2 * time, axis=1)[:, :time] * c) @ p["out"]
        return x + mlp(p, layer_norm(x))

    shapes = {"in": f32(width, 3 * width), "filter": f32(time, width), "out": f32(width, width)}
    return stack("hyena", layer, [shapes | mlp_params(width, 2 * width)] * layers, f32(batch, time, width))


def linear_attention(
    layers: int = 3, batch: int = 4, time: int = 1024, width: int = 512, heads: int = 8, chunk: int = 64
) -> Model:
    """Causal linear attention in chunks (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        h = layer_norm(x)
        q, k, v = [(h @ p[n]).reshape(batch, time // chunk, chunk, heads, -1) for n in ("q", "k", "v")]
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        inside = jnp.einsum("bnchd,bnehd->bnhce", q, k) * jnp.tril(jnp.ones((chunk, chunk)))
        sums = jnp.einsum("bnchd,bnche->bnhde", k, v)
        before = jnp.einsum("bnchd,bnhde->bnche", q, jnp.cumsum(sums, 1) - sums)
        return x + (before + jnp.einsum("bnhce,bnehd->bnchd", inside, v)).reshape(x.shape) @ p["o"]

    shapes = {name: f32(width, width) for name in ("q", "k", "v", "o")}
    return stack("linear_attention", layer, [shapes] * layers, f32(batch, time, width))


def perceiver(layers: int = 3, batch: int = 4, latents: int = 256, inputs: int = 4096, width: int = 256) -> Model:
    """Latents that attend to a long input (Jaegle et al. 2021, arXiv 2103.03206)."""

    def layer(p: Params, x: jax.Array, data: jax.Array) -> jax.Array:
        scores = jnp.einsum("bnd,bmd->bnm", layer_norm(x) @ p["q"], data @ p["k"]) / 16
        x = x + (jax.nn.softmax(scores) @ (data @ p["v"])) @ p["o"]
        return x + mlp(p, layer_norm(x))

    shapes = {"q": f32(width, width), "k": f32(64, width), "v": f32(64, width), "o": f32(width, width)}
    params = [shapes | mlp_params(width, 4 * width)] * layers
    return stack("perceiver", layer, params, f32(batch, latents, width), f32(batch, inputs, 64))


def gru(layers: int = 2, batch: int = 64, time: int = 256, width: int = 256) -> Model:
    """Gated recurrent units, each layer one scan (Cho et al. 2014, arXiv 1406.1078)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            (za, ra, na), (zb, rb, nb) = [jnp.split(y, 3, -1) for y in (row @ p["w"], h @ p["u"])]
            update, reset = jax.nn.sigmoid(za + zb), jax.nn.sigmoid(ra + rb)
            h = (1 - update) * jnp.tanh(na + reset * nb) + update * h
            return h, h

        return lax.scan(step, jnp.zeros((batch, width)), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return stack("gru", layer, [{"w": f32(width, 3 * width), "u": f32(width, 3 * width)}] * layers,
                 f32(batch, time, width))  # fmt: skip


def wavenet(layers: int = 8, batch: int = 4, time: int = 4096, width: int = 64) -> Model:
    """Gated convolutions, each dilated twice as much (van den Oord et al. 2016, arXiv 1609.03499)."""
    numbers = ("NWC", "WIO", "NWC")

    def loss(params: list[Params], batch: tuple[jax.Array]) -> jax.Array:
        x, skipped = batch[0], jnp.zeros(())
        for depth, p in enumerate(params):
            apart = 2**depth
            h = lax.conv_general_dilated(
                x, p["gated"], (1,), [(apart, 0)], rhs_dilation=(apart,), dimension_numbers=numbers
            )
            a, b = jnp.split(h, 2, -1)
            h = jnp.tanh(a) * jax.nn.sigmoid(b)
            x = x + lax.conv_general_dilated(h, p["residual"], (1,), "SAME", dimension_numbers=numbers)
            skipped = skipped + lax.conv_general_dilated(h, p["skip"], (1,), "SAME", dimension_numbers=numbers)
        return (jax.nn.relu(skipped) ** 2).mean()

    shapes = {"gated": f32(2, width, 2 * width), "residual": f32(1, width, width), "skip": f32(1, width, width)}
    return Model("wavenet", loss, [shapes] * layers, (f32(batch, time, width),), lambda wrap: loss, classes=1)
