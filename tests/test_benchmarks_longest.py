"""The table of longest sequences: by hand and ours, kept; kernels of Pallas compile for a GPU that is not here."""

import json
import math
from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

from benchmarks import longest
from benchmarks.authors import llama
from benchmarks.common import Options
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.skipif(find_spec("jax_plugins.xla_cuda12") is None, reason="needs CUDA's plugin")
def test_flash_attention_keeps_no_scores():
    config = replace(llama.CONFIGS["tiny"], head_width=64, dtype=jnp.bfloat16)
    params, tokens = longest.parameters(config), jax.ShapeDtypeStruct((1, 4097), jnp.int32)
    peaks = {}
    for name, attend in longest.ATTENTIONS.items():
        step = longest.train_step(longest.loss_of(config, attend))
        with longest.device_of("gpu:h100"):
            peaks[name] = compile_memory(step, (params, tokens), resolve("gpu:h100")).total_bytes
    scores_bytes = 4 * config.heads * 4096**2
    assert peaks["scores"] - peaks["flash"] > scores_bytes / 2
