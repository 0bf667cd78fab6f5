"""The benchmark of loops runs: tiny sizes, both tables and the picture."""

import pytest

from benchmarks.__main__ import main

pytest.importorskip("equinox")


@pytest.mark.slow
def test_quick_writes_its_tables(tmp_path):
    main(["loops", "--quick", "--results", str(tmp_path)])
    text = (tmp_path / "loops.md").read_text()
    assert "Not finished" not in text
    assert "evaluations equal to the optimum: 2 of 2" in text
    assert "temporaries below Equinox's: 2 of 2" in text
    text = (tmp_path / "loops_length.md").read_text()
    assert "Not finished" not in text
    assert "| 200 | binomial | 15 |" in text
    assert (tmp_path / "loops.png").stat().st_size < 100_000
