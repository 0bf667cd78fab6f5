"""Configurations that MaxText ships: decoders and policies are of one kind, and the table says what is behind."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from benchmarks.common import Options
from benchmarks.shipped import table
from benchmarks.shipped.attention import attention
from benchmarks.shipped.configs import QUICK, SHIPPED
from benchmarks.shipped.decoders import build
from benchmarks.shipped.table import OURS, THEIRS, Row, facts_of
from tests.helpers import assert_trees_close


def values(model, scale=0.1):
    keys = iter(jax.random.split(jax.random.key(0), 100))
    params = {n: scale * jax.random.normal(next(keys), s.shape, s.dtype) for n, s in model.params.items()}
    tokens = jax.random.randint(next(keys), model.batch["tokens"].shape, 0, model.classes)
    made = params, {"tokens": tokens, "targets": tokens[:, ::-1]}
    return jax.device_put(made, jax.tree.map(lambda s: s.sharding, (model.params, model.batch)))


@pytest.mark.parametrize("name", QUICK)
def test_a_policy_computes_what_the_model_does(name):
    model, theirs = build(QUICK[name])
    params, batch = values(model)
    found, wanted = (jax.jit(jax.value_and_grad(loss))(params, batch) for loss in (theirs, model.loss))
    assert np.isfinite(wanted[0])
    assert all(g.any() for g in wanted[1].values())
    assert_trees_close(found, wanted, rtol=0.05, atol=2e-3)  # it computes in bfloat16


def test_names_of_a_policy_are_in_its_model():
    for c in (*SHIPPED.values(), *QUICK.values()):
        c = replace(c, target="cpu", tensor=1, kernels=False, sequence=64, batch=1)
        small = replace(c.sizes, layers=len(c.sizes.windows), width=64, heads=4, kv_heads=2, head_width=8, mlp=64)
        small = replace(small, vocab=64, kv_heads=4 if small.family == "gpt3" else 2)
        model, _ = build(replace(c, sizes=small))
        text = str(jax.make_jaxpr(model.loss)(model.params, model.batch))
        fused = {"gpt3": {"mlpwi_0", "mlpwi_1"}}.get(small.family, {"qkv_proj", "mlpwi"})
        for name in {*c.kept, *c.moved} - fused:
            assert f"name={name}" in text, (c, name)


def test_attention_sees_a_window():
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 16, 2, 4)) for i in range(3))
    near = attention(q, k, v, 4, False)
    changed = attention(q, k.at[:, :4].set(0.0), v.at[:, :4].set(0.0), 4, False)
    assert_trees_close(near[:, 8:], changed[:, 8:])
    assert not np.allclose(near[:, 3], changed[:, 3])


def facts(**ours):
    theirs = Row("a", THEIRS, 100, 50, 10, 1000.0, 1.0)
    return facts_of([theirs, replace(theirs, step=OURS, **ours)])


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ({}, "0 of 1: none"),
        ({"flops": 1005.0}, "0 of 1: none"),
        ({"flops": 1100.0}, "1 of 1: a (FLOPs 10.0 % more)"),
        ({"peak_bytes": 101, "seconds": 1.2}, "1 of 1: a (device bytes 1.0 % more, time 20.0 % more)"),
        ({"host_bytes": 11}, "1 of 1: a (host bytes 10.0 % more)"),
        ({"problem": "least 7"}, "0 of 0: none"),
    ],
)
def test_what_is_behind_is_told(ours, told):
    assert facts(**ours)[0] == f"behind the policy of the authors: {told}"


@pytest.mark.slow
def test_the_table_is_made_and_goes_on_where_it_stopped(tmp_path, capsys):
    options = Options(quick=True, results=tmp_path, models=("llama",))
    made = table.run(options)
    assert made.facts[:2] == ["behind the policy of the authors: 0 of 1: none", "without a figure: none"]
    assert made.facts[2] == "not made yet: gpt3 theirs, gpt3 ours, gemma3 theirs, gemma3 ours"
    capsys.readouterr()
    assert table.run(options).rows == made.rows
