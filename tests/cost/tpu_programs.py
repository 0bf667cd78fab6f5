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


SMALL = {
    "filtered": (filtered, ((32, 64, 33), (8, 32, 64, 64))),
    "mixed": (mixed, ([(2, 12, 12, 32, 32), (2, 12, 12, 32, 32), (32, 32)], (8, 64, 64, 32))),
}
"""``test_accuracy_accelerators`` holds predicted peaks of these to compiled ones."""
