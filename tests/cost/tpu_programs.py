"""Small programs, each for a habit of XLA:TPU, as functions and the shapes of their arguments."""

import jax
import jax.numpy as jnp
from jax import lax


def is_shape(tree):
    return isinstance(tree, tuple) and all(isinstance(n, int) for n in tree)


@jax.value_and_grad
def filtered(weights, images):
    """Frequencies of both dimensions of images, weighed."""
    spectrum = jnp.fft.rfft2(images) * weights
    return (jnp.tanh(jnp.fft.irfft2(spectrum)) ** 2).mean()


@jax.value_and_grad
def mixed(params, images):
    """The lowest frequencies of images, each multiplied with a matrix of its own."""
    real, imaginary, skip = params
    spectrum = jnp.fft.rfft2(images, axes=(1, 2))
    low = jnp.einsum("bxyi,xyio->bxyo", spectrum[:, :12, :12], lax.complex(real[0], imaginary[0]))
    high = jnp.einsum("bxyi,xyio->bxyo", spectrum[:, -12:, :12], lax.complex(real[1], imaginary[1]))
    kept = jnp.zeros_like(spectrum).at[:, :12, :12].set(low).at[:, -12:, :12].set(high)
    mixed = jnp.fft.irfft2(kept, s=images.shape[1:3], axes=(1, 2))
    return (jax.nn.gelu(mixed + images @ skip) ** 2).mean()


def _convolve(images, kernel):
    numbers = (None, None, None, ("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC"), ("NDHWC", "DHWIO", "NDHWC"))
    ones = (1,) * (images.ndim - 2)
    return lax.conv_general_dilated(images, kernel, ones, "SAME", dimension_numbers=numbers[images.ndim])


@jax.value_and_grad
def normalised(kernels, images):
    """Convolutions with a normalisation between them."""
    over = tuple(range(1, images.ndim - 1))
    for kernel in kernels:
        convolved = _convolve(images, kernel)
        centred = convolved - convolved.mean(over, keepdims=True)
        images = jax.nn.relu(centred * lax.rsqrt((centred**2).mean(over, keepdims=True) + 1e-5))
    return (images**2).mean()


@jax.value_and_grad
def residual(kernels, images):
    """Pairs of convolutions beside a stream."""
    for first, second in zip(kernels[::2], kernels[1::2], strict=True):
        images = images + _convolve(jax.nn.silu(_convolve(images, first)), second)
    return (images**2).mean()


SMALL = {
    "filtered": (filtered, ((32, 64, 33), (8, 32, 64, 64))),
    "mixed": (mixed, ([(2, 12, 12, 32, 32), (2, 12, 12, 32, 32), (32, 32)], (8, 64, 64, 32))),
    "normalised lines": (normalised, ([(3, 64, 64)] * 6, (4, 4096, 64))),
    "normalised images": (normalised, ([(3, 3, 64, 64)] * 6, (4, 64, 64, 64))),
    "normalised volumes": (normalised, ([(3, 3, 3, 16, 16)] * 6, (2, 32, 32, 32, 16))),
    "residual images": (residual, ([(3, 3, 64, 64)] * 6, (4, 64, 64, 64))),
    "residual volumes": (residual, ([(3, 3, 3, 32, 32)] * 6, (1, 32, 32, 32, 32))),
}
"""``test_accuracy_accelerators`` holds predicted peaks of these to compiled ones."""


def attention(divides_weights, q, k, v):
    """Products of bfloat16 around a softmax in float32, of which the weights are divided by their sums, or the mean."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 8
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    sums = weights.sum(-1, keepdims=True)
    if divides_weights:
        return jnp.einsum("bhqk,bkhd->bhqd", (weights / sums).astype(v.dtype), v)
    return jnp.einsum("bhqk,bkhd->bhqd", weights.astype(v.dtype), v) / sums.astype(v.dtype)
