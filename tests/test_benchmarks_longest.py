"""The table of longest sequences: by hand and ours, kept; kernels of Pallas compile for a GPU that is not here."""

import json
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks import longest
from benchmarks.authors import llama
from benchmarks.common import Options


@pytest.mark.slow
def test_a_quick_table(tmp_path):
    options = Options((), True, 600.0, tmp_path, "small", ())
    longest.run(options)
    (row,) = json.loads((tmp_path / "longest.json").read_text())
    assert 0 < row["by_hand"] <= row["ours"]
    assert f"| {row['ours']} |" in (tmp_path / "longest.md").read_text()
    before = (tmp_path / "longest.json").read_text()
    longest.run(options)  # kept, so not made again
    assert (tmp_path / "longest.json").read_text() == before


def test_the_loss_is_that_of_the_next_token():
    config = llama.CONFIGS["tiny"]
    params = jax.tree.map(lambda p: jnp.full(p.shape, 0.02, p.dtype), longest.parameters(config))
    tokens = jnp.arange(17)[None] % config.vocab
    loss = longest.loss_of(config, longest.scores)(params, tokens)
    assert float(loss) == pytest.approx(math.log(config.vocab), rel=1e-3)  # all words are alike
