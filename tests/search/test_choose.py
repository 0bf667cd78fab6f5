"""Which schedules are compiled where no curve has one that fits."""

from remat_plan.search.choose import _smallest, least
from remat_plan.search.curves import Family, Searched
from remat_plan.search.measure import Outcome, Predicted


class Table:
    """A judge of schedules that are numbers: what they are predicted to need, and their price."""

    def __init__(self, rows):
        self.rows = rows

    def predicted_bytes(self, schedule):
        return self.rows[schedule][0]

    def price(self, schedule):
        return self.rows[schedule][1]


def test_what_is_predicted_to_be_as_small_as_the_least_may_be_smaller():
    rows = {"least": (1000, 9.0), "as small": (1014, 8.5), "nearly": (1200, 8.0), "slower": (1200, 8.2), "large": (1300, 1.0)}  # fmt: skip
    assert _smallest(Table(rows), list(rows)) == ["nearly", "as small", "least"]
    assert _smallest(Table(rows), []) == []


def test_of_many_that_are_as_small_a_few_are_compiled():
    rows = {n: (1000 + n, 9.0 - n / 100) for n in range(20)}
    assert len(_smallest(Table(rows), list(rows))) == 9


def test_where_one_instant_sets_the_peak_the_least_is_what_recomputes_least():
    """Of a plateau as long as that of a ResNet-50: its first schedule needs a millionth less, and recomputes most."""
    rows = {n: (1_000_000 + (n > 0), 9.0 - n / 10) for n in range(31)} | {31: (1_100_000, 1.0)}
    judge = Table(rows)
    family = Family(tuple(rows), tuple(peak for peak, _ in rows.values()))
    found = least(Predicted(judge), [(family, Searched(None, ((0, 1_000_000),), (0,)))])
    assert (found.schedule, found.peak_bytes) == (30, 1_000_001)


def test_a_measured_peak_that_is_higher_is_not_taken_for_fewer_seconds():
    judge = Table({0: (1000, 9.0), 1: (1000, 8.0)})
    family = Family((0, 1), (1000, 1000))

    class Compiled(Predicted):
        def ask(self, schedule, budget_bytes=None):
            return Outcome(schedule, (1000, 1130)[schedule])

    assert least(Compiled(judge), [(family, Searched(None, ((0, 1000),), (0,)))]).schedule == 0
