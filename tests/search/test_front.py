"""What is judged of paths of schedules, and what is taken of them; the doubles are schedules that are numbers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.schedule import Segment
from remat_plan.graph.ways import Around
from remat_plan.planning.limits import NO_CONSTRAINTS
from remat_plan.planning.strategies.records import Found
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import SAME_PEAK, SAME_PRICE, _faster_neighbours, fastest_first, find
from remat_plan.search.front import _segments as count_segments
from remat_plan.search.judge import Judge
from remat_plan.small.budget import BudgetError
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import traced

AUTO = Request(lookup("auto"), False, (0,), False, (), "replan")
LONG = SimpleNamespace(live_bytes=range(10**6), flops=1.0)
"""Of a program so long that nothing between two schedules is looked for."""


class Table:
    """A judge of schedules that are numbers: what they are predicted to need, and their price."""

    def __init__(self, rows):
        self.rows, self.asked = rows, set()
        self.identity = None
        self.program = SimpleNamespace(graph=SimpleNamespace(ops=[SimpleNamespace(eqn=None)]), plain=None)

    def predicted_bytes(self, schedule):
        self.asked.add(schedule)
        return self.rows[schedule][0]

    def price(self, schedule):
        return self.rows[schedule][1]

    def cost(self, schedule):
        return self.rows[schedule]

    def timeline(self, schedule):
        return LONG


class Offers:
    """Schedules by their sources."""

    def __init__(self, *curves, uniform=(), lean=(), named=None):
        self.curves, self._uniform, self._lean, self._named = curves, uniform, lean, named

    def planner(self, constraints):
        return self

    def uniform(self, request):
        return self._uniform

    def lean(self, request):
        return self._lean

    def improved(self, request, judged, identity):
        return ()

    def named(self, request):
        return self._named

    def may_stay_plain(self, request):
        return False


@pytest.fixture(autouse=True)
def numbers_for_schedules(monkeypatch):
    monkeypatch.setattr("remat_plan.search.front.is_loop", lambda op: False)
    monkeypatch.setattr("remat_plan.search.front._segments", lambda s: 1 if isinstance(s, int) else len(s))


def test_of_a_path_the_schedule_at_the_border_is_found_with_few_predictions():
    judge = Table({n: (1000 + n, 2000.0 - n) for n in range(1000)})
    assert find(judge, Offers(range(1000)), 1637, AUTO) == 637
    assert len(judge.asked) < 25


@pytest.mark.parametrize("further", [1, 2, 4, 8, 12])
def test_peaks_that_do_not_quite_rise_hide_nothing_near_the_border(further):
    first = 51  # the first that does not fit
    rows = {n: (1000 + n, 2000.0 - n) for n in range(100)}
    rows[first + further] = (1040, rows[first + further][1])
    assert find(Table(rows), Offers(range(100)), 1050, AUTO) == first + further


def test_where_one_instant_sets_the_peak_the_least_is_what_recomputes_least():
    """Of a plateau as long as that of a ResNet-50: its first schedule needs a millionth less, and recomputes most."""
    rows = {n: (1_000_000 + (n > 0), 9.0 - n / 10) for n in range(31)} | {31: (1_100_000, 1.0)}
    assert find(Table(rows), Offers(range(32)), 0, AUTO) == 30


def test_what_is_beside_the_curves_counts_for_the_least():
    judge = Table({0: (1000, 9.0), 1: (900, 9.5), 2: (900, 8.0), 3: (800, 9.9)})
    assert find(judge, Offers([0], uniform=[1, 2]), 0, AUTO) == 2
    assert find(judge, Offers([0], uniform=[1, 2], lean=[3]), 0, AUTO) == 3
    assert find(judge, Offers([0], uniform=[1, 2], lean=[3]), 950, AUTO) == 2, "only where nothing else fits"


def test_within_a_thousandth_of_the_least_the_fastest_is_taken():
    judge = Table({0: (1000, 9.0), 1: (int(1000 * (1 + SAME_PEAK)), 8.0), 2: (1010, 7.0)})
    assert find(judge, Offers([0, 1, 2]), 0, AUTO) == 1


def test_of_a_strategy_the_fastest_that_fits_is_taken_or_its_least():
    judge = Table({0: (1000, 9.0), 1: (1200, 8.0), 2: (1400, 7.0)})
    offers = Offers(named=Found((0, 1, 2)))
    assert [find(judge, offers, budget, AUTO) for budget in (1500, 1300, 900)] == [2, 1, 0]
    assert find(judge, Offers(named=Found((2,))), 900, AUTO) == 2, "the only one is checked"


def test_of_one_price_the_schedule_with_the_least_peak_comes_first():
    judge = Table({0: (1000, 9.0), 1: (900, 9.0), 2: (1100, 8.0)})
    assert fastest_first(judge, [0, 1, 2], 1050) == [1, 0]


def test_nothing_to_do_is_said():
    judge = Table({None: (1000, 1.0)})
    judge.program.graph = SimpleNamespace(ops=[], values=[], inputs=(), outputs=())
    with pytest.raises(BudgetError):
        find(judge, Offers(), 10, AUTO)


def steps(weights, x):
    return jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0])


def test_of_a_loop_part_of_the_steps_is_run_one_way_the_rest_another(monkeypatch):
    """Neighbours on a curve are far apart there; with no way gone between them much of a budget is left."""
    program = traced(
        steps, jax.ShapeDtypeStruct((24, 128, 128), "float32"), jax.ShapeDtypeStruct((4096, 128), "float32")
    )
    judge = Judge(program, resolve("cpu"), Progress("test", False))
    candidates = Candidates(judge.rules, judge.progress)
    curve = candidates.planner(NO_CONSTRAINTS).curve
    low, high = judge.predicted_bytes(curve[0]), judge.predicted_bytes(program.plain)
    found = [find(judge, candidates, low + (high - low) * share // 8, AUTO) for share in range(1, 8)]
    peaks, prices = [judge.predicted_bytes(s) for s in found], [judge.price(s) for s in found]
    assert all(peak >= 0.9 * (low + (high - low) * n // 8) for n, peak in enumerate(peaks, 1))
    assert prices == sorted(prices, reverse=True)


def test_of_one_price_the_schedule_with_the_fewest_segments_is_taken():
    one, three = (Segment(0, 9),), (Segment(0, 3), Segment(3, 6), Segment(6, 9))
    judge = Table({three: (1000, 9.0), one: (1000, 9.0 * (1 + SAME_PRICE / 2)), (Segment(1, 9),): (1000, 9.1)})
    assert find(judge, Offers(list(judge.rows)), 1000, AUTO) == one


def test_segments_inside_others_count_too():
    inner = (Segment(0, 4), Segment(4, 9))
    assert count_segments((Segment(0, 9, Around(inner)), Segment(9, 10))) == 4


def test_ways_lead_to_the_least_faster_schedule_and_to_what_gains_most_for_its_bytes():
    rows = {0: (1000, 9.0), 1: (1100, 8.9), 2: (1400, 5.0), 3: (1500, 4.9), 4: (1900, 4.8)}
    assert _faster_neighbours(Table(rows), 0, list(rows), 1000) == [1, 2]
    assert _faster_neighbours(Table(rows), 2, list(rows), 1400) == [3], "both are the same"
    assert _faster_neighbours(Table(rows), 4, list(rows), 1900) == [], "nothing is above the budget"
