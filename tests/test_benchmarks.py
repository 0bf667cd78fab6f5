"""The benchmarks run: tiny models, two of the tables."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("name", ["budgets", "gradients"])
def test_quick_writes_its_table(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([name, "--quick", "--models", "mlp", "--results", str(tmp_path)])
    text = (tmp_path / f"{name}.md").read_text()
    assert "| mlp | " in text
    assert "Not finished" not in text
    assert ": none (" in text, "no plan is over its budget, no gradient is off"
    assert "none" in capsys.readouterr().out


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(
        name in said for name in ("budgets", "stock", "strategies", "planning_time", "gradients", "targets", "peaks")
    )


def test_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "no benchmark is called speed" in capsys.readouterr().err


@pytest.mark.slow
def test_quick_strategies(tmp_path: Path) -> None:
    main(["strategies", "--quick", "--models", "mlp", "--results", str(tmp_path)])
    text = (tmp_path / "strategies.md").read_text()
    assert "Not finished" not in text
    for name in ("auto", "memory", "log", "milp", "everything"):
        assert f"| mlp | {name} | " in text
    assert "chain 64, log: predicted" in text
    assert "peaks above the plain one:" in text
