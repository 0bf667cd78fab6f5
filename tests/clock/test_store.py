"""Measured rates: where they are kept, what they depend on, what is done with a file that is none."""

import json

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.clock import store
from remat_plan.clock.calibrate import calibrate, link_rate, probes
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.verify.targets import Target, resolve

pytestmark = pytest.mark.usefixtures("quick_search")

TABLE = hardware_for("cpu", "cpu")
MEASURED = Hardware(
    "cpu",
    matrix_flops=2e11,
    vector_flops=5e10,
    bytes_per_second=1e10,
    step_seconds=1e-6,
    rates={"product large float32": 2e11, "exp float32": 1e10},
    cache_bytes=1 << 20,
    cache_bytes_per_second=4e10,
    turned_bytes_per_second=5e9,
    turned_operand_bytes_per_second=1e9,
    fresh_seconds_per_byte=1e-9,
    fresh_least_bytes=1 << 25,
    loop_seconds=1e-6,
    measured=True,
)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A cache folder of its own, and a list of how often the device was measured."""
    monkeypatch.setenv("REMAT_PLAN_CACHE", str(tmp_path / "cache"))
    asked = []

    def counted(target, table, say):
        asked.append(target.name)
        return MEASURED

    monkeypatch.setattr(store, "calibrate", counted)
    return asked


def kept(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_rates_are_measured_once_and_read_back_as_they_were(measured, tmp_path):
    target = resolve("cpu")
    assert store.hardware_of(target) == TABLE
    assert not measured
    assert store.hardware_of(target, "measured") == MEASURED
    assert store.hardware_of(target, "measured") == MEASURED
    assert measured == ["cpu"]
    data = json.loads(kept(tmp_path).read_text())
    assert data["jax"] == jax.__version__
    assert data["host"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        '{"hardware": {}}',
        "\0",
        lambda data: data["hardware"].update(matrix_flops=-1),
        lambda data: data["hardware"].update(bytes_per_second=0),
        lambda data: data["hardware"].update(step_seconds=float("nan")),
        lambda data: data["hardware"].update(rates={}),
        lambda data: data["hardware"].update(rates={"exp float32": 0}),
        lambda data: data["hardware"].update(rates=[1]),
        lambda data: data["hardware"].update(more=1),
        lambda data: data["hardware"].pop("loop_seconds"),
    ],
)
def test_a_file_that_is_none_of_ours_is_measured_anew(measured, tmp_path, content):
    store.hardware_of(resolve("cpu"), "measured")
    path = kept(tmp_path)
    if callable(content):
        data = json.loads(path.read_text())
        content(data)
        content = json.dumps(data)
    path.write_text(content)
    assert store.hardware_of(resolve("cpu"), "measured") == MEASURED
    assert len(measured) == 2
    assert store.hardware_of(resolve("cpu"), "measured") == MEASURED  # and mended
    assert len(measured) == 2


def test_other_versions_and_devices_have_files_of_their_own(measured, tmp_path, monkeypatch):
    store.hardware_of(resolve("cpu"), "measured")
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    store.hardware_of(resolve("cpu"), "measured")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_no_error(measured, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REMAT_PLAN_CACHE", str(tmp_path / "file" / "cache"))
    assert store.hardware_of(resolve("cpu"), "measured") == MEASURED


def test_the_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("REMAT_PLAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert store.cache_folder() == tmp_path / "remat_plan"
    monkeypatch.setattr("sys.platform", "darwin")
    assert store.cache_folder().parts[-3:] == ("Library", "Caches", "remat_plan")


def test_what_cannot_be_measured_is_refused():
    absent = Target("gpu:h100", "gpu", False, None, None)
    with pytest.raises(ValueError, match="gpu:h100 is not attached"):
        store.hardware_of(absent, "measured")
    with pytest.raises(ValueError, match=r"cost='guess'.*'table', 'measured'"):
        rp.remat(lambda x: x.sum(), budget="50%", cost="guess")
    with pytest.raises(ValueError, match="cost='guess'"):
        rp.plan(lambda x: x.sum(), jnp.ones(3), budget="50%", cost="guess")


def loss(w, x):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


ARGS = jnp.ones((16, 16)) / 16, jnp.ones((512, 16))


@pytest.mark.slow
def test_every_door_takes_measured_rates_also_while_jax_traces(measured, monkeypatch):
    def eager(target, table, say):
        measured.append(float(jnp.sum(jnp.ones(3)) + jax.jit(lambda x: x + 1)(1.0)))  # a tracer would not do
        return MEASURED

    monkeypatch.setattr(store, "calibrate", eager)
    planned = rp.remat(loss, budget="70%", cost="measured")
    jax.jit(jax.grad(planned))(*ARGS)
    (first,) = planned.plans.values()
    plan = rp.plan(loss, *ARGS, budget="70%", cost="measured")
    assert plan.schedule == first.schedule
    assert rp.Plan.from_json(plan.to_json()) == plan
    assert rp.tradeoff(loss, *ARGS, cost="measured").points
    compared = rp.compare(loss, *ARGS, budgets=["70%"], cost="measured", verify=False)
    assert compared.rows[0].plan is not None
    assert measured == [5.0]


@pytest.mark.slow
def test_an_overhead_below_zero_is_shown_only_by_measured_rates(measured, monkeypatch):
    """Fresh memory that costs more than anything else makes less memory faster."""
    from dataclasses import replace

    dear = replace(MEASURED, fresh_seconds_per_byte=1e-6, fresh_least_bytes=0)
    monkeypatch.setattr(store, "calibrate", lambda target, table, say: dear)
    plan = rp.plan(loss, *ARGS, budget="70%", cost="measured")
    assert plan.overhead < 0
    assert rp.Plan.from_json(plan.to_json()) == plan
    assert "-" in str(plan)
    assert rp.plan(loss, *ARGS, budget="70%").overhead >= 0


def test_probes_are_of_different_classes_and_cover_products_convolutions_and_functions():
    found = [probe.rate_key() for probe in probes(1)]
    classes = [work for work, _ in found]
    assert len(set(classes)) == len(classes)
    assert all(flops > 0 for _, flops in found)
    for dtype in ("float32", "bfloat16"):
        assert {f"product {kind} {dtype}" for kind in ("large", "thin", "small", "shallow", "batched")} <= set(classes)
        assert {
            f"convolution {kind} {dtype}"
            for kind in ("window", "pointwise", "dilated", "kernel-gradient", "pointwise-kernel-gradient", "narrow")
        } <= set(classes)
    assert {"exp float32", "tanh float32", "element-wise float32", "reduce rows float32"} <= set(classes)


@pytest.mark.slow
def test_a_cpu_is_measured():
    said = []
    found = calibrate(resolve("cpu"), TABLE, said.append)
    assert found.measured
    assert len(said) > 20
    assert all(rate > 0 for rate in found.rates.values())
    assert found.rates["exp float32"] < found.rates["element-wise float32"] * 8
    assert found.bytes_per_second < 1e12


def test_what_goes_wrong_with_the_file_is_logged(measured, tmp_path, caplog):
    target = resolve("cpu")
    store.hardware_of(target, "measured")
    assert not caplog.records, "a first measurement is no fault"
    kept(tmp_path).write_text('{"hardware": []}')
    store.hardware_of(target, "measured")
    (record,) = caplog.records
    assert "cannot be read (AttributeError" in record.message or "cannot be read (TypeError" in record.message
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_logged(measured, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert store.hardware_of(resolve("cpu"), "measured") == MEASURED
    assert [r.levelname for r in caplog.records] == ["WARNING"] * len(caplog.records)
    assert any("cannot be stored" in r.message and "REMAT_PLAN_CACHE" in r.message for r in caplog.records)


def test_a_link_is_measured_by_moving_an_array_there_and_back():
    assert 1e7 < link_rate(resolve("cpu")) < 1e13
