"""The table of predicted over compiled peaks in the documentation is that of the results."""

from pathlib import Path

from benchmarks.common import RESULTS
from benchmarks.peaks import ranges

LIMITS = Path(__file__).parents[1] / "docs" / "limits.md"


def test_the_table_of_the_limits_is_that_of_the_results():
    assert ranges(RESULTS / "peaks.md") in LIMITS.read_text(encoding="utf-8")


def test_ranges_are_least_and_most_and_nothing_where_there_is_no_row(tmp_path):
    path = tmp_path / "peaks.md"
    head = "| model | dtype | target | schedule | predicted MB | compiled MB | predicted / compiled |"
    rows = [f"| vit | float32 | gpu:h100 | {name} | 1 | 1 | {ratio} |" for name, ratio in (("a", 0.9), ("b", 1.02))]
    path.write_text("\n".join([head, *rows]))
    table = ranges(path).splitlines()
    assert table[0] == "| | gpt2 | gpt2_scan | resnet50 | unet | vit | densenet | mlp |"
    assert table[2] == "| gpu:h100, float32 |  |  |  |  | 0.90 - 1.02 |  |  |"
