"""The benchmarks of the doors run: tracing decorated models, and the choice and counts of JAX's own tests."""

from pathlib import Path

import pytest

from benchmarks import jax_remat_tests
from benchmarks.__main__ import main

pytest.importorskip("flax")


@pytest.mark.slow
def test_quick_decorating(tmp_path: Path) -> None:
    main(["decorating", "--quick", "--results", str(tmp_path)])
    text = (tmp_path / "decorating.md").read_text()
    assert text.count("| plain |") == 3
    assert "Not finished" not in text


SOURCE = """
import jax
from jax._src.core import no_such_thing
class RematXTest(Base):
    def test_any(self):
        pass
class OtherTest(Base):
    def test_remat(self):
        jax.checkpoint(f)
    def test_else(self):
        pass
"""


def test_tests_are_chosen_by_what_they_speak_of(tmp_path: Path) -> None:
    path = tmp_path / "some_test.py"
    path.write_text(SOURCE)
    chosen = set(jax_remat_tests.chosen_tests(path))
    assert chosen == {("RematXTest", "*"), ("OtherTest", "test_remat")}
    assert jax_remat_tests.is_chosen("test_remat12", "OtherTest", chosen)
    assert not jax_remat_tests.is_chosen("test_else", "OtherTest", chosen)
    assert [name for _, name in jax_remat_tests.absent_names(path)] == ["no_such_thing"]


def test_counts_are_put_side_by_side(tmp_path: Path) -> None:
    stock = {
        "tests/a_test.py::A::test_1": "passed",
        "tests/a_test.py::A::test_2": "failed",
        "tests/b.py": "not imported",
    }
    ours = {**stock, "tests/a_test.py::A::test_1": "failed"}
    section = jax_remat_tests.report("tree", [], stock, ours, 1.0)
    assert "| a_test.py | 1 | 0 | 1 | 2 | 0 | 0 |" in section
    assert "and not with ours: 1" in section
    assert "cannot import, in both runs: tests/b.py" in section
    for _ in range(2):
        jax_remat_tests.write(tmp_path / "counts.md", section)
    assert (tmp_path / "counts.md").read_text().count("## jax ") == 1
