"""Models that no rule of the evaluator is ever read off: what is said of them is held out for good.

In: nothing. Out: ``Model``. They were written before anything was predicted or compiled of them. Whoever changes a rule
looks at their errors, not at their modules: a model whose module was read belongs to the other files of this folder.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.architectures.layers import Params, f32, layer_norm, mlp, mlp_params, rms_norm, stack
from benchmarks.models import Model


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _projections(width: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: f32(width, width) for name in names}


def t5(layers: int = 2, batch: int = 4, time: int = 384, width: int = 384, heads: int = 6, buckets: int = 32) -> Model:
    """An encoder and a decoder that reads it, attention biased by distances (Raffel et al. 2020, arXiv 1910.10683)."""

    def attend(p: Params, bias: jax.Array | None, x: jax.Array, source: jax.Array, mask: jax.Array | None) -> jax.Array:
        q, k, v = [(y @ p[n]).reshape(batch, time, heads, -1) for y, n in ((x, "q"), (source, "k"), (source, "v"))]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        if bias is not None:
            apart = jnp.arange(time)[:, None] - jnp.arange(time)
            scores = scores + bias[jnp.clip(jnp.abs(apart) // 8, 0, buckets - 1)].transpose(2, 0, 1)
        if mask is not None:
            scores = jnp.where(mask, scores, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ p["o"]

    def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        source, y = batch
        for p in params["encoder"]:
            h = rms_norm(source)
            source = source + attend(p["self"], params["bias"], h, h, None)
            source = source + jax.nn.relu(rms_norm(source) @ p["up"]) @ p["down"]
        source, causal = rms_norm(source), jnp.tril(jnp.ones((time, time), bool))
        for p in params["decoder"]:
            h = rms_norm(y)
            y = y + attend(p["self"], params["bias"], h, h, causal)
            y = y + attend(p["cross"], None, rms_norm(y), source, None)
            y = y + jax.nn.relu(rms_norm(y) @ p["up"]) @ p["down"]
        return (rms_norm(y) ** 2).mean()

    attention = _projections(width, "q", "k", "v", "o")
    encoder = {"self": attention} | mlp_params(width, 4 * width)
    params = {"encoder": [encoder] * layers, "decoder": [encoder | {"cross": attention}] * layers}
    params |= {"bias": f32(buckets, heads)}
    return Model("t5", loss, params, (f32(batch, time, width),) * 2, lambda wrap: loss, classes=1)


def sliding_window(
    layers: int = 3,
    batch: int = 2,
    time: int = 2048,
    width: int = 512,
    heads: int = 8,
    groups: int = 2,
    near: int = 256,
) -> Model:
    """Each position reads those in its chunk and the one before, keys shared (Jiang et al. 2023, arXiv 2310.06825)."""
    size, chunks = width // heads, time // near

    def rotate(x: jax.Array) -> jax.Array:
        angles = jnp.arange(time)[:, None, None] * 10000.0 ** (-jnp.arange(size // 2) * 2 / size)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = even * jnp.cos(angles) - odd * jnp.sin(angles), even * jnp.sin(angles) + odd * jnp.cos(angles)
        return jnp.stack(turned, -1).reshape(x.shape)

    def with_last(x: jax.Array) -> jax.Array:
        x = x.reshape(batch, chunks, near, groups, size)
        return jnp.concatenate([jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1], x], 2)

    def layer(p: Params, x: jax.Array) -> jax.Array:
        h = rms_norm(x)
        q = rotate((h @ p["q"]).reshape(batch, time, heads, size))
        k, v = [(h @ p[n]).reshape(batch, time, groups, size) for n in ("k", "v")]
        q = q.reshape(batch, chunks, near, groups, heads // groups, size)
        scores = jnp.einsum("bcqghd,bckgd->bcghqk", q, with_last(rotate(k))) / 8
        behind = jnp.arange(near)[:, None] + near - jnp.arange(2 * near)
        weights = jax.nn.softmax(jnp.where((behind >= 0) & (behind < near), scores, -1e9))
        mixed = jnp.einsum("bcghqk,bckgd->bcqghd", weights, with_last(v)).reshape(x.shape)
        x = x + mixed @ p["o"]
        h = rms_norm(x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    shapes = _projections(width, "q", "o") | {n: f32(width, groups * size) for n in ("k", "v")}
    shapes |= {"gate": f32(width, 2 * width)} | mlp_params(width, 2 * width)
    return stack("sliding_window", layer, [shapes] * layers, f32(batch, time, width))


def efficientnet(batch: int = 8, size: int = 96, widths: tuple[int, ...] = (16, 24, 40, 80), wider: int = 6) -> Model:
    """Inverted bottlenecks with depthwise convolutions and weighted channels (Tan and Le 2019, arXiv 1905.11946)."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    def norm(x: jax.Array, p: Params) -> jax.Array:
        centred = x - x.mean((0, 1, 2))
        return centred * lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5) * p["scale"] + p["shift"]

    def block(p: Params, x: jax.Array, stride: int) -> jax.Array:
        h = jax.nn.silu(norm(conv(x, p["widen"]), p["first"]))
        h = jax.nn.silu(norm(conv(h, p["depthwise"], stride, h.shape[-1]), p["second"]))
        weights = jax.nn.sigmoid(jax.nn.silu(h.mean((1, 2)) @ p["squeeze"]) @ p["excite"])
        h = norm(conv(h * weights[:, None, None, :], p["narrow"]), p["third"])
        return x + h if h.shape == x.shape else h

    def block_params(n_in: int, n_out: int) -> Params:
        inner = wider * n_in
        norms = {
            n: {"scale": f32(c), "shift": f32(c)} for n, c in (("first", inner), ("second", inner), ("third", n_out))
        }
        shapes = {"widen": f32(1, 1, n_in, inner), "depthwise": f32(5, 5, 1, inner), "narrow": f32(1, 1, inner, n_out)}
        return shapes | {"squeeze": f32(inner, n_in // 4), "excite": f32(n_in // 4, inner)} | norms

    def loss(params: Params, batch: tuple[jax.Array]) -> jax.Array:
        x = conv(batch[0], params["stem"], 2)
        for pair in params["stages"]:
            for p, stride in zip(pair, (2, 1), strict=True):
                x = block(p, x, stride)
        return ((x.mean((1, 2)) @ params["head"]) ** 2).mean()

    before = (widths[0], *widths)
    stages = [(block_params(a, b), block_params(b, b)) for a, b in zip(before, widths, strict=False)]
    params = {"stem": f32(3, 3, 3, widths[0]), "stages": stages, "head": f32(widths[-1], 100)}
    return Model("efficientnet", loss, params, (f32(batch, size, size, 3),), lambda wrap: loss, classes=1)


def fourier_operator(layers: int = 4, batch: int = 8, size: int = 96, width: int = 48, modes: int = 12) -> Model:
    """Products with a few frequencies in two dimensions (Li et al. 2021, arXiv 2010.08895)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfft2(x, axes=(1, 2))
        kept = jnp.zeros_like(spectrum)
        for name, rows in (("low", slice(None, modes)), ("high", slice(-modes, None))):
            weights = p[name][..., 0] + 1j * p[name][..., 1]
            mixed = jnp.einsum("bxyi,xyio->bxyo", spectrum[:, rows, :modes], weights)
            kept = kept.at[:, rows, :modes].set(mixed)
        return jax.nn.gelu(jnp.fft.irfft2(kept, s=(size, size), axes=(1, 2)) + x @ p["beside"])

    shapes = {name: f32(modes, modes, width, width, 2) for name in ("low", "high")} | {"beside": f32(width, width)}
    return stack("fourier_operator", layer, [shapes] * layers, f32(batch, size, size, width))


def volumes(batch: int = 1, size: int = 48, width: int = 16, levels: int = 3) -> Model:
    """A U-Net of three-dimensional convolutions (Çiçek et al. 2016, arXiv 1606.06650)."""
    numbers = ("NDHWC", "DHWIO", "NDHWC")

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1, 1, 1), "SAME", dimension_numbers=numbers)

    def twice(pair: Params, x: jax.Array) -> jax.Array:
        for kernel in pair:
            h = conv(x, kernel)
            centred = h - h.mean((1, 2, 3), keepdims=True)
            x = jax.nn.relu(centred * lax.rsqrt((centred**2).mean((1, 2, 3), keepdims=True) + 1e-5))
        return x

    def halved(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 2, 1), (1, 2, 2, 2, 1), "VALID")

    def doubled(x: jax.Array) -> jax.Array:
        for axis in (1, 2, 3):
            x = jnp.repeat(x, 2, axis)
        return x

    def loss(params: Params, batch: tuple[jax.Array]) -> jax.Array:
        x, skipped = batch[0], []
        for pair in params["down"][:-1]:
            skipped.append(twice(pair, x))
            x = halved(skipped[-1])
        x = twice(params["down"][-1], x)
        for pair, skip in zip(params["up"], reversed(skipped), strict=True):
            x = twice(pair, jnp.concatenate([doubled(x), skip], -1))
        return (conv(x, params["last"]) ** 2).mean()

    def pair(n_in: int, n_out: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        return f32(3, 3, 3, n_in, n_out), f32(3, 3, 3, n_out, n_out)

    wide = [width * 2**level for level in range(levels)]
    down = [pair(a, b) for a, b in zip((1, *wide), wide, strict=False)]
    up = [pair(a + b, b) for a, b in zip(wide[:0:-1], wide[-2::-1], strict=True)]
    params = {"down": down, "up": up, "last": f32(1, 1, 1, width, 4)}
    return Model("volumes", loss, params, (f32(batch, size, size, size, 1),), lambda wrap: loss, classes=1)


def dit(layers: int = 3, batch: int = 4, size: int = 32, patch: int = 2, width: int = 384, heads: int = 6) -> Model:
    """A diffusion transformer: layers shifted, scaled and gated by a condition (Peebles and Xie, arXiv 2212.09748)."""
    count, channels = (size // patch) ** 2, 4 * patch**2

    def changed(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        return layer_norm(x) * (1 + scale[:, None]) + shift[:, None]

    def layer(p: Params, x: jax.Array, condition: jax.Array) -> jax.Array:
        six = jnp.split(jax.nn.silu(condition) @ p["change"], 6, -1)
        h = changed(x, *six[:2])
        q, k, v = jnp.moveaxis((h @ p["qkv"]).reshape(batch, count, 3, heads, -1), 2, 0)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["o"]
        x = x + six[2][:, None] * mixed
        return x + six[5][:, None] * mlp(p, changed(x, *six[3:5]))

    def loss(params: Params, batch: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        image, noise, condition = batch
        parts = (image + noise).reshape(-1, size // patch, patch, size // patch, patch, 4)
        x = parts.transpose(0, 1, 3, 2, 4, 5).reshape(-1, count, channels) @ params["in"] + params["places"]
        for p in params["layers"]:
            x = layer(p, x, condition)
        made = (layer_norm(x) @ params["out"]).reshape(-1, size // patch, size // patch, patch, patch, 4)
        return ((made.transpose(0, 1, 3, 2, 4, 5).reshape(image.shape) - noise) ** 2).mean()

    shapes = {"change": f32(width, 6 * width), "qkv": f32(width, 3 * width), "o": f32(width, width)}
    params = {"layers": [shapes | mlp_params(width, 4 * width)] * layers, "places": f32(count, width)}
    params |= {"in": f32(channels, width), "out": f32(width, channels)}
    images = f32(batch, size, size, 4)
    return Model("dit", loss, params, (images, images, f32(batch, width)), lambda wrap: loss, classes=1)


def glow(steps: int = 4, batch: int = 8, size: int = 32, width: int = 96) -> Model:
    """An invertible model of images: mixed channels, then half of them move the others (arXiv 1807.03039)."""
    channels, small = 12, size // 2

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def step(p: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = (x + p["shift"]) * jnp.exp(p["scale"]) @ p["mix"]
        a, b = jnp.split(x, 2, -1)
        h = jax.nn.relu(conv(jax.nn.relu(conv(a, p["first"])), p["second"]))
        scale, shift = jnp.split(conv(h, p["third"]), 2, -1)
        scale = jax.nn.log_sigmoid(scale + 2)
        grown = scale.sum((1, 2, 3)) + small**2 * p["scale"].sum()
        return jnp.concatenate([a, b * jnp.exp(scale) + shift], -1), grown

    def loss(params: Params, batch: tuple[jax.Array]) -> jax.Array:
        x = batch[0].reshape(-1, small, 2, small, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, small, small, channels)
        grown = jnp.zeros(())
        for p in params:
            x, more = step(p, x)
            grown = grown + more
        return ((x**2).sum((1, 2, 3)) / 2 - grown).mean()

    half = channels // 2
    shapes = {"shift": f32(channels), "scale": f32(channels), "mix": f32(channels, channels)}
    shapes |= {"first": f32(3, 3, half, width), "second": f32(1, 1, width, width), "third": f32(3, 3, width, channels)}
    return Model("glow", loss, [shapes] * steps, (f32(batch, size, size, 3),), lambda wrap: loss, classes=1)


def bilstm(
    layers: int = 2, batch: int = 32, time: int = 128, width: int = 128, words: int = 4096, tags: int = 32
) -> Model:
    """A tagger of words by long short-term memories in both directions (Huang et al. 2015, arXiv 1508.01991)."""

    def run(p: Params, x: jax.Array, backward: bool) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = state
            i, f, g, o = jnp.split(row + h @ p["u"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((batch, width)), jnp.zeros((batch, width))
        return lax.scan(step, start, x @ p["w"] + p["b"], reverse=backward)[1]

    def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        read, labels = batch
        x = params["words"][read].swapaxes(0, 1)
        for p in params["layers"]:
            x = jnp.concatenate([run(p["forward"], x, False), run(p["backward"], x, True)], -1)
        scores = jax.nn.log_softmax(x @ params["tags"]).swapaxes(0, 1)
        return -jnp.take_along_axis(scores, labels[..., None], -1).mean()

    def direction(n_in: int) -> Params:
        return {"w": f32(n_in, 4 * width), "u": f32(width, 4 * width), "b": f32(4 * width)}

    found = [{"forward": direction(n), "backward": direction(n)} for n in (width, *[2 * width] * (layers - 1))]
    params = {"words": f32(words, width), "layers": found, "tags": f32(2 * width, tags)}
    return Model("bilstm", loss, params, (_i32(batch, time), _i32(batch, time)), lambda wrap: loss, classes=tags)


FRESH: dict[str, Callable[[], Model]] = {
    make.__name__: make for make in (t5, sliding_window, efficientnet, fourier_operator, volumes, dit, glow, bilstm)
}
"""The models by name."""
