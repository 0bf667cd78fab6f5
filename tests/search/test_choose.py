"""Which schedules are compiled where no curve has one that fits."""

from remat_plan.search.choose import _smallest


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
