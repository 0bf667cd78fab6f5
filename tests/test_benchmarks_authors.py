"""The benchmarks of structured models run at size tiny, and the policies of the authors change memory alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import structures
from benchmarks.__main__ import main
from benchmarks.authors import AUTHORS, SIZES
from benchmarks.authors_remat import Row, Step, facts, interval
from benchmarks.common import Options, Report
from remat_plan.clock.turns import Ratio
from remat_plan.cost.rules import jaxpr_flops

# The evaluator may say that it has to assume a cost (of grouped products, of residuals of a branch not taken).
pytestmark = pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive:UserWarning")


def concrete(struct, rng):
    """An array of a shape; whole numbers are 0 or 1, which is valid for tokens, labels, positions and segments."""
    if jnp.issubdtype(struct.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 2, struct.shape), struct.dtype)
    return jnp.asarray(rng.normal(size=struct.shape) / 10, struct.dtype)


@pytest.mark.slow
def test_authors_writes_its_table(tmp_path):
    main([*"authors --size tiny --models stochastic_depth --policies cond --results".split(), str(tmp_path)])
    text = (tmp_path / "authors.md").read_text()
    assert "Not finished" not in text
    assert "| stochastic_depth | tiny | cond | plain |" in text
    assert "| stochastic_depth | tiny | cond | theirs |" in text
    assert "2 rows, " in text


def test_a_row_is_behind_for_bytes_and_for_flops_and_for_no_plan():
    def verdict(theirs, ours, least=0):
        return Row("m", "tiny", "p", "plain", theirs, ours, None, least).behind

    theirs = Step(1000, 100.0, 1.0)
    assert verdict(theirs, Step(1000, 100.05, 2.0)) == ""
    assert verdict(theirs, Step(900, 100.2, 0.5)) == "0.20 % more FLOPs"
    assert verdict(theirs, Step(1010, 90.0, 0.5)) == "1.00 % more bytes"
    assert verdict(theirs, None, 1250) == "needs 25.00 % more bytes"


def test_steps_with_more_flops_are_timed_and_those_that_take_longer_named():
    def row(policy, *measured):
        return Row("m", "tiny", policy, "plain", Step(9, 100.0, 1.0), Step(9, 102.0, 1.0), None, 0, Ratio(*measured))

    assert interval(Ratio(0.95, 0.9375, 1.0)) == "-5.0 (-6.2 to +0.0)"
    rows = [row("faster", 0.95, 0.93, 0.99), row("slower", 1.05, 1.01, 1.2), row("unsure", 1.05, 0.99, 1.2)]
    assert "measured to take more time: m slower from plain" in facts(rows)


QUICK = [pytest.param(name, marks=pytest.mark.slow if name == "unet" else ()) for name in AUTHORS]
FEW = ("gpt2_nested", "stochastic_depth")
"""A loop and branches: what is traced most quickly of each."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in AUTHORS])
def test_policies_recompute(name):
    made = AUTHORS[name]("tiny")
    kept = count_flops(made.plain, made.arguments)
    for policy, loss in made.policies.items():
        assert count_flops(loss, made.arguments) > kept or policy == "save_all", policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("gpt2_nested", "nested"),
        ("vit", "remat_scan"),
        ("early_exit", "branch"),
    ],
)
def test_policies_change_no_gradient(name, policy):
    """Of those that write the loop or the branches otherwise than the loss without them."""
    made = AUTHORS[name]("tiny")
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda struct: concrete(struct, rng), made.arguments)
    wanted, found = (jax.jit(jax.value_and_grad(loss))(*args) for loss in (made.plain, made.policies[policy]))
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * (1e-6 + float(jnp.max(jnp.abs(a)))))


def count_flops(loss, arguments):
    return jaxpr_flops(jax.make_jaxpr(jax.value_and_grad(loss))(*arguments))


@pytest.mark.parametrize("name", QUICK)
def test_sizes_grow(name):
    counts = [sum(x.size for x in jax.tree.leaves(AUTHORS[name](size).arguments[0])) for size in SIZES]
    assert counts == sorted(set(counts))


def test_an_unknown_size_is_named():
    with pytest.raises(ValueError, match="size='huge': say one of tiny, small, full"):
        AUTHORS["llama"]("huge")


@pytest.mark.slow
def test_structures_adds_every_strategy(tmp_path):
    report = Report("structures", "", structures._COLUMNS, tmp_path)
    structures.measure_structure(report, "mlp", "scanned", structures.TINY)
    names = [row[2] for row in report.rows]
    assert names[:3] == ["plain", "memory", "auto"]
    assert {"chain", "log", "binomial", "milp", "each_block", "everything"} <= set(names)
    assert report.rows[0][-1] == "100.0"
    assert (tmp_path / "structures.md").exists()


@pytest.mark.slow
def test_structures_compute_the_same():
    rng = np.random.default_rng(0)
    models = {name: structures.make("transformer", name, structures.TINY) for name in structures.STRUCTURES}
    first = models["unrolled"]
    params, x = jax.tree.map(lambda struct: concrete(struct, rng), (first.params, first.batch))
    values = {name: float(jax.jit(models[name].loss)(params, x)) for name in ("unrolled", "scanned", "nested scan")}
    assert all(v == pytest.approx(values["unrolled"], rel=1e-5) for v in values.values()), values


def test_options_choose_among_authors():
    assert Options(models=("vit", "mlp")).choose(tuple(AUTHORS)) == ("vit",)
