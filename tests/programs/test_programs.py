"""Programs nobody thought of: whatever is planned returns what it did, within its budget, and is planned so again.

A seed that fails is one line: ``check(SEED)`` of ``properties.py``.
"""

import pytest

from tests.programs.properties import check

pytestmark = [
    pytest.mark.filterwarnings("ignore:remat_plan. a while loop has no known trip count:UserWarning"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive .* is not known:UserWarning"),
]

CHUNK = 20
"""Seeds of one test: few enough for workers to share them evenly."""


def check_all(seeds, **sizes):
    """Every seed, so that one that fails does not hide the others."""
    failed = {}
    for seed in seeds:
        try:
            check(seed, **sizes)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"
    assert not failed, failed


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_small_programs(first):
    check_all(range(first, first + 4), longest=4, depth=1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_programs(first):
    check_all(range(first, first + CHUNK))
