"""What the least predicted peak is where no curve has one that fits."""

from remat_plan.search.choose import least
from remat_plan.search.curves import Family, Searched


class Table:
    """A judge of schedules that are numbers: what they are predicted to need, and their price."""

    def __init__(self, rows):
        self.rows = rows

    def predicted_bytes(self, schedule):
        return self.rows[schedule][0]

    def price(self, schedule):
        return self.rows[schedule][1]


def test_where_one_instant_sets_the_peak_the_least_is_what_recomputes_least():
    """Of a plateau as long as that of a ResNet-50: its first schedule needs a millionth less, and recomputes most."""
    rows = {n: (1_000_000 + (n > 0), 9.0 - n / 10) for n in range(31)} | {31: (1_100_000, 1.0)}
    judge = Table(rows)
    family = Family(tuple(rows), tuple(peak for peak, _ in rows.values()))
    found = least(judge, [(family, Searched(None, ((0, 1_000_000),), (0,)))])
    assert found == 30


def test_what_is_beside_the_curves_counts_for_the_least():
    judge = Table({0: (1000, 9.0), 1: (900, 9.5), 2: (900, 8.0)})
    family = Family((0,), (1000,))
    assert least(judge, [(family, Searched(None, ((0, 1000),), (0,)))], [1, 2]) == 2
