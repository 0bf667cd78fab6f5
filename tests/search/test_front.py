"""What is judged of paths of schedules, and what is taken of them; the doubles are schedules that are numbers."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.schedule import Segment
from remat_plan.graph.ways import Around
from remat_plan.planning.blend import paths
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.records import Found
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import SAME_PEAK, SAME_PRICE, _faster_neighbours, family, fastest_first, find
from remat_plan.search.front import _segments as count_segments
from remat_plan.search.judge import Judge
from remat_plan.small.budget import BudgetError
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import CPU, traced

AUTO = Request(lookup("auto"), False, (0,), False, (), "replan")
WHOLE = dataclasses.replace(AUTO, constraints=make_constraints((), (), (), True))
"""Nothing runs in slices."""


class Table:
    """A judge of schedules that are numbers: what they are predicted to need, and their price."""

    def __init__(self, rows):
        self.rows, self.asked = rows, set()
        self.identity, self.progress, self.owned_bytes = None, Progress("test", False), 0
        self.program = SimpleNamespace(graph=SimpleNamespace(ops=[SimpleNamespace(eqn=None)]), plain=None)

    def predicted_bytes(self, schedule):
        self.asked.add(schedule)
        return self.rows[schedule][0]

    def fits(self, schedule, budget_bytes):
        return self.predicted_bytes(schedule) <= budget_bytes

    def fits_host(self, schedule):
        return True

    def price(self, schedule):
        return self.rows[schedule][1]

    def cost(self, schedule):
        return self.rows[schedule]

    def timeline(self, schedule):
        seconds = self.price(schedule) if schedule in self.rows else 1.0
        return SimpleNamespace(
            live_bytes=[], host_bytes=0, flops=1.0, seconds=seconds, argument_bytes=0, output_bytes=0
        )

    def figures(self, schedule):
        return self.timeline(schedule)


class Chain:
    """Proposes the next of its schedules whenever it is asked, whatever the budget is."""

    def __init__(self, schedules):
        self.schedules, self.rooms = list(schedules), []

    def teach(self, timeline, room_bytes, best, doubt_seconds, same_seconds):
        self.rooms.append(room_bytes)
        if not self.schedules:
            return None
        timeline(self.schedules[0])
        return self.schedules.pop(0)


class Rooms(Chain):
    """Proposes schedules for some budgets."""

    def __init__(self, schedules):
        super().__init__(())
        self.of = schedules

    def teach(self, timeline, room_bytes, *doubts):
        self.schedules = self.of.get(room_bytes, [])
        return super().teach(timeline, room_bytes, *doubts)


class Offers:
    """Schedules by their sources."""

    def __init__(self, *chains, beside=(), named=None, low=()):
        self.proposing, self._beside, self._named = [Chain(c) for c in chains], beside, named
        self._low = low

    def chains(self, request):
        return self.proposing

    def low(self, request):
        return self._low

    def sliced(self, request):
        return None

    def beside(self, request, judged, identity):
        return self._beside

    def named(self, request):
        return self._named

    def allows(self, request, schedule):
        return False

    def may_stay_plain(self, request):
        return False


@pytest.fixture(autouse=True)
def numbers_for_schedules(monkeypatch):
    monkeypatch.setattr("remat_plan.search.front.paths", lambda graph, low, high: ())
    monkeypatch.setattr("remat_plan.search.front.emptied", lambda s: s)
    monkeypatch.setattr("remat_plan.search.front._segments", lambda s: 1 if isinstance(s, int) else len(s))


def test_each_chain_proposes_while_it_has_something_new():
    rows = {n: (1000 + n, 2000.0 - n) for n in range(100)}
    offers = Offers(range(6), range(50, 90))
    assert find(Table(rows), offers, 1057, AUTO) == 57
    first, second = (len(chain.rooms) for chain in offers.proposing)
    assert first == 7, "six schedules, and then none"
    assert second == 16, "no more of one"


def test_three_quarters_of_the_bytes_are_tried_as_long_as_that_finds_a_faster_one():
    judge, offers = Table({0: (900, 0.9), 1: (440, 0.6), 2: (200, 0.7), 3: (90, 0.1)}), Offers(())
    offers.proposing = [Rooms({1000: [0], 675: [1], 330: [2], 165: [3]})]
    assert find(judge, offers, 1000, AUTO) == 1
    assert set(offers.proposing[0].rooms) == {1000, 675, 330}


def test_that_slices_fit_does_not_end_the_search_for_what_else_does():
    """They may take far longer than what may need least of all."""
    offers = Offers([0], low=(1,))
    offers.sliced = lambda request: SimpleNamespace(counts=(2,), schedules=lambda slices: [2])
    judge = Table({0: (140, 1.0), 1: (80, 2.0), 2: (60, 9.0)})
    plain = judge.timeline(None)
    judge.timeline = lambda s: (
        SimpleNamespace(**{**vars(plain), "peak_bytes": 200}) if s is None else Table.timeline(judge, s)
    )
    assert find(judge, offers, 100, AUTO) == 1


def test_where_nothing_fits_chains_are_asked_for_less_until_there_is_none():
    """Of a plateau the first schedule needs a millionth less, and recomputes most."""
    rows = {0: (1_000_001, 5.0), 1: (1_000_000, 9.0), 2: (1_100_000, 1.0)}
    offers = Offers([2, 0, 1])
    assert find(Table(rows), offers, 0, AUTO) == 0
    assert 999_000 in offers.proposing[0].rooms


@pytest.mark.parametrize(("owned_bytes", "rooms"), [(0, {1000, 90}), (89, {911, 1}), (90, {910})])
def test_faster_ones_are_looked_for_in_fewer_bytes_but_not_below_what_the_caller_owns(owned_bytes, rooms):
    judge, offers = Table({0: (900, 0.9), 1: (120, 0.6)}), Offers([0, 1])
    judge.owned_bytes = owned_bytes
    assert find(judge, offers, 1000, AUTO) == 1
    assert set(offers.proposing[0].rooms) == rooms


def test_what_is_beside_the_chains_counts_for_the_least():
    judge = Table({0: (1000, 9.0), 1: (900, 9.5), 2: (900, 8.0)})
    assert find(judge, Offers([0], beside=[1, 2]), 0, AUTO) == 2


def test_what_may_need_least_is_judged_only_where_nothing_fits():
    judge = Table({0: (1000, 9.0), 1: (900, 9.5), 2: (950, 8.0)})
    assert find(judge, Offers([0], low=[1, 2]), 1000, AUTO) == 0
    assert judge.asked.isdisjoint({1, 2})
    assert find(judge, Offers([0], low=[1, 2]), 920, AUTO) == 1


def test_within_a_thousandth_of_the_least_the_fastest_is_taken():
    judge = Table({0: (1000, 9.0), 1: (int(1000 * (1 + SAME_PEAK)), 8.0), 2: (1010, 7.0)})
    assert find(judge, Offers([0, 1, 2]), 0, AUTO) == 1


def test_of_a_way_the_last_schedule_that_fits_is_found_by_halves(monkeypatch):
    rows = {n: (1000 + n, 2000.0 - n) for n in range(1000)}
    judge = Table(rows)
    monkeypatch.setattr("remat_plan.search.front.paths", lambda graph, low, high: [range(low + 1, high)])
    assert find(judge, Offers([0, 999]), 1637, AUTO) == 637
    assert len(judge.asked) < 15


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
    monkeypatch.setattr("remat_plan.search.front.paths", paths)
    monkeypatch.setattr("remat_plan.search.judge.hardware_of", lambda *_: CPU)
    program = traced(
        steps, jax.ShapeDtypeStruct((24, 128, 128), "float32"), jax.ShapeDtypeStruct((4096, 128), "float32")
    )
    judge = Judge(program, resolve("cpu"), Progress("test", False))
    candidates = Candidates(judge.rules, judge.progress)
    curve = candidates.planner(WHOLE.constraints).curve
    low, high = judge.predicted_bytes(curve[0]), judge.predicted_bytes(program.plain)
    found = [find(judge, candidates, low + (high - low) * share // 8, WHOLE) for share in range(1, 8)]
    peaks, prices = [judge.predicted_bytes(s) for s in found], [judge.price(s) for s in found]
    filled = [peak >= 0.9 * (low + (high - low) * n // 8) for n, peak in enumerate(peaks, 1)]
    assert all(full or price == prices[-1] for full, price in zip(filled, prices, strict=True)), "or nothing is gained"
    assert prices == sorted(prices, reverse=True)


def test_of_one_price_the_schedule_with_the_fewest_segments_is_taken():
    one, three = (Segment(0, 9),), (Segment(0, 3), Segment(3, 6), Segment(6, 9))
    judge = Table({three: (1000, 9.0), one: (1000, 9.0 * (1 + SAME_PRICE / 2)), (Segment(1, 9),): (1000, 9.1)})
    assert find(judge, Offers(list(judge.rows)), 1000, AUTO) == one


def test_segments_inside_others_count_too():
    inner = (Segment(0, 4), Segment(4, 9))
    assert count_segments((Segment(0, 9, Around(inner)), Segment(9, 10))) == 4


def test_ways_lead_to_the_least_faster_schedule_to_the_fastest_and_to_what_gains_most_for_its_bytes():
    rows = {0: (1000, 9.0), 1: (1100, 8.9), 2: (1400, 5.0), 3: (1500, 4.9), 4: (1900, 4.8)}
    assert _faster_neighbours(Table(rows), 0, list(rows), 1000) == [1, 4, 2]
    assert _faster_neighbours(Table(rows), 2, list(rows), 1400) == [3, 4], "the first gains most"
    assert _faster_neighbours(Table(rows), 4, list(rows), 1900) == [], "nothing is above the budget"


def found_on_ways(monkeypatch, rows, ways):
    """What is found within 1000 bytes by the ways between schedules, of which the chains propose those below 10."""
    monkeypatch.setattr("remat_plan.search.front.paths", lambda graph, low, high: [ways.get((low, high), [])])
    return find(Table(rows), Offers([n for n in rows if n < 10]), 1000, AUTO)


def test_what_a_way_turns_up_is_gone_towards(monkeypatch):
    """From the fastest that fits a way leads to a neighbour of another one, and to that one the chains proposed none."""
    rows = {0: (1000, 9.0), 1: (900, 9.2), 2: (1400, 8.0), 10: (1100, 8.2), 11: (990, 8.5)}
    assert found_on_ways(monkeypatch, rows, {(0, 2): [10]}) == 0
    assert found_on_ways(monkeypatch, rows, {(0, 2): [10], (1, 10): [11]}) == 11


def test_ways_begin_at_schedules_that_need_less_than_those_that_are_faster(monkeypatch):
    same = {n: (1000 - n // 8, 9.0 + n / 10) for n in range(8)}
    rows = {**same, 8: (900, 9.9), 9: (1400, 8.0), 10: (990, 8.5)}
    assert found_on_ways(monkeypatch, rows, {(8, 9): [10]}) == 10


def test_a_row_of_budgets_has_the_best_that_is_known_of_each():
    judge = Table({0: (1000, 9.0), 1: (1400, 8.5), 2: (1800, 8.0), None: (2000, 1.0)})
    assert family(judge, Offers([0, 1, 2], beside=[None]), AUTO, 9) == [0, 1, 2, None]


def test_a_row_of_budgets_is_as_good_as_plans_for_them():
    program = traced(
        steps, jax.ShapeDtypeStruct((24, 128, 128), "float32"), jax.ShapeDtypeStruct((4096, 128), "float32")
    )
    judge = Judge(program, resolve("cpu"), Progress("test", False))
    candidates = Candidates(judge.rules, judge.progress)
    for schedule in family(judge, candidates, AUTO, 6):
        peak, price = judge.cost(schedule)
        best = judge.price(find(judge, candidates, peak, AUTO))
        assert best <= price <= 1.03 * best


def layers(params, x):
    for up, down in params:
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.sum(x**2)


def test_where_untouched_memory_saves_time_slices_are_judged_beside_what_recomputes(monkeypatch):
    """Recomputing is faster than the plain step there, and still slower than slices, which compute nothing twice."""
    shapes = [(jax.ShapeDtypeStruct((64, 256), "float32"), jax.ShapeDtypeStruct((256, 64), "float32"))] * 6
    program = traced(layers, shapes, jax.ShapeDtypeStruct((2048, 64), "float32"))

    def judged(fresh_seconds_per_byte):
        hardware = dataclasses.replace(CPU, fresh_seconds_per_byte=fresh_seconds_per_byte)
        monkeypatch.setattr("remat_plan.search.judge.hardware_of", lambda *_: hardware)
        return Judge(program, resolve("cpu"), Progress("test", False))

    judge, other = judged(3e-10), judged(0.0)
    budgets = [judge.predicted_bytes(program.plain) * share // 8 for share in (3, 5, 7)]
    prices = [judge.price(find(judge, Candidates(judge.rules, judge.progress), b, AUTO)) for b in budgets]
    others = [judge.price(find(other, Candidates(other.rules, other.progress), b, AUTO)) for b in budgets]
    assert all(price <= beside for price, beside in zip(prices, others, strict=True))
    assert all(price <= 1.01 * min(prices) for price in prices), "more memory is no slower, but for a hundredth"
    assert prices[-1] < judge.price(program.plain)
