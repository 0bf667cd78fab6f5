"""The architectures are what their table says, and train."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.__main__ import main
from benchmarks.architectures import fresh, images, routed, sequences
from benchmarks.architectures.table import ARCHITECTURES, means

SMALL = {
    "lru": lambda: sequences.lru(False, 1, 2, 16, 8),
    "lru_complex": lambda: sequences.lru(True, 1, 2, 16, 8),
    "mamba": lambda: sequences.mamba(1, 2, 16, 8, 4),
    "llama": lambda: sequences.llama(1, 2, 16, 16, 2),
    "hyena": lambda: sequences.hyena(1, 2, 16, 8),
    "linear_attention": lambda: sequences.linear_attention(1, 2, 16, 16, 2, 4),
    "perceiver": lambda: sequences.perceiver(1, 2, 8, 16, 16),
    "gru": lambda: sequences.gru(1, 2, 16, 8),
    "wavenet": lambda: sequences.wavenet(2, 2, 16, 8),
    "swin": lambda: images.swin(1, 2, 14, 12, 7),
    "mixer": lambda: images.mixer(1, 2, 16, 8),
    "convnext": lambda: images.convnext(1, 2, 8, 8),
    "upscaled": lambda: images.upscaled(1, 2, 8, 4),
    "vqvae": lambda: images.vqvae(2, 8, 8, 16),
    "messages": lambda: routed.messages(1, 16, 64, 8),
    "graph_attention": lambda: routed.graph_attention(1, 16, 64, 2, 4),
    "experts": lambda: routed.experts(1, 64, 16),
    "t5": lambda: fresh.t5(1, 2, 16, 16, 2, 4),
    "sliding_window": lambda: fresh.sliding_window(1, 2, 16, 16, 4, 2, 4),
    "efficientnet": lambda: fresh.efficientnet(2, 16, (4, 8), 2),
    "fourier_operator": lambda: fresh.fourier_operator(1, 2, 8, 4, 2),
    "volumes": lambda: fresh.volumes(1, 8, 2, 2),
    "dit": lambda: fresh.dit(1, 2, 8, 2, 16, 4),
    "glow": lambda: fresh.glow(2, 2, 8, 8),
    "bilstm": lambda: fresh.bilstm(2, 2, 8, 8, 16, 16),
}
UNUSED = {"lru": "[0]['angle']", "wavenet": "[1]['residual']"}
"""Real states have no angle, and nothing reads what the last layer hands on."""


def random(struct, key):
    if struct.dtype == jnp.int32:
        return jax.random.randint(key, struct.shape, 0, 16)
    return 0.3 * jax.random.normal(key, struct.shape, struct.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_weight_has_a_gradient(name):
    model = SMALL[name]()
    leaves, tree = jax.tree.flatten((model.params, model.batch))
    keys = jax.random.split(jax.random.key(0), len(leaves))
    params, batch = jax.tree.unflatten(tree, [random(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])
    value, gradients = jax.jit(jax.value_and_grad(model.loss))(params, batch)
    assert jnp.isfinite(value)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert jnp.isfinite(gradient).all(), path
        moves = bool(gradient.any())
        assert moves == (jax.tree_util.keystr(path) != UNUSED.get(name)), path


def test_means_are_of_each_group():
    assert means({"cpu": {"lru plain": 1.1, "lru memory": 0.7}, "cpu, held out": {"dit plain": 0.95}}) == [
        "cpu: off by 20.0 % on average",
        "cpu, held out: off by 5.0 % on average",
    ]


@pytest.mark.slow
def test_the_table(tmp_path):
    main(["architectures", "--quick", "--targets", "cpu", "--results", str(tmp_path)])
    text = (tmp_path / "architectures.md").read_text()
    assert "| experts | float32 | cpu | plain |" in text
    assert "of 2 schedules" in text
