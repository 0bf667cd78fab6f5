"""What a search for a whole step compiles, and which of it is taken."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

import pytest

from remat_plan.cost.hardware import hardware_for
from remat_plan.search.driver import CLOSE, MOST_COMPILES, Driver, most_compiles
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.targets import resolve


def memory(total_bytes, seconds):
    return CompiledMemory(total_bytes, 0, 0, 0, total_bytes, 0, 0.0, None, seconds)


class Indifferent:
    """A mark whose schedules are all predicted to be equal: the first would be taken."""

    def price(self, schedule):
        return 1.0

    def flops(self, schedule):
        return 2.0 if schedule == "more work" else 1.0

    def host_bytes(self, schedule):
        return 0


def best(seconds, budget_bytes):
    """The choice that is taken."""
    driver = Driver((Indifferent(),), lambda choice: None, 0)
    driver.tried = {(n,): memory(100 - n, s) for n, s in enumerate(seconds)}
    driver.sure = set(driver.tried)
    return driver.best(budget_bytes)


def test_the_compiler_has_the_last_word_on_what_fits():
    assert best([1.0, 0.9, 0.95], 100) == (1,)
    assert best([1.0, 0.995], 100) == (0,), "less than what is sure"
    assert best([1.0, 0.5], 99) == (1,)
    assert best([None, 0.5], 100) == (0,), "nothing to compare with"
    assert best([1.0, None], 100) == (0,)
    assert best([1.0, 0.5], 90) is None


def test_not_where_more_is_computed():
    driver = Driver((Indifferent(),), lambda choice: None, 0)
    driver.tried = {("less",): memory(100, 1.0), ("more work",): memory(90, 0.5)}
    driver.sure = set(driver.tried)
    assert driver.best(100) == ("less",)


class Stepped:
    """A mark that has a schedule for each of some levels: a schedule is its level, and the higher the faster."""

    def __init__(self, *schedules):
        self.schedules = schedules
        self.judge = SimpleNamespace(program=SimpleNamespace(plain=max(schedules)), plain_seconds=1.0)

    def fastest(self, level_bytes):
        return max((s for s in self.schedules if s <= level_bytes), default=min(self.schedules))

    def uniform(self):
        return min(self.schedules), min(self.schedules)

    def beside(self):
        return {}

    def towards(self, low, high, level_bytes):
        return max((s for s in self.schedules if low <= s <= max(min(high, level_bytes), low)), default=low)

    def above_arguments(self, schedule):
        return schedule

    def host_bytes(self, schedule):
        return 0

    def seconds(self, schedule):
        return 1 + 1 / schedule

    price = flops = seconds


def search(mark, budget_bytes, total, held_bytes=0, known=(), left=MOST_COMPILES - 1):
    """What a search comes to, and the schedules that were compiled for it, in order."""
    compiled = []

    def compile_step(choice):
        compiled.append(choice[0])
        return memory(total(choice[0]), None)

    mark.judge.hardware = hardware_for("cpu", "cpu")
    driver = Driver((mark,), compile_step, held_bytes, tried=dict(known), left=left)
    return driver.search(budget_bytes), compiled


@pytest.mark.parametrize(("moving", "taken"), [(0.9, 3), (0.995, 2), (1.2, 2)])
def test_what_moves_values_is_taken_if_the_compiler_too_finds_it_faster(moving, taken):
    class Moving(Stepped):
        def host_bytes(self, schedule):
            return 100 * (schedule == 3)

        def on_device(self):
            return Stepped(2, 9)

    def compile_step(choice):
        compiled.append(choice[0])
        seconds = {2: 1.0, 3: moving}[choice[0]]
        return dataclasses.replace(memory(choice[0], seconds), host_temp_bytes=mark.host_bytes(choice[0]))

    mark, compiled = Moving(2, 3, 9), []
    assert Driver((mark,), compile_step, 0).search(4).choice == (taken,)
    assert compiled == [3, 2]


@pytest.mark.parametrize(("there_bytes", "fits"), [(100, True), (98, True), (50, False), (0, False)])
def test_what_is_to_be_on_the_host_has_to_be_there(there_bytes, fits):
    class Moving(Stepped):
        def host_bytes(self, schedule):
            return 100

    driver = Driver((Moving(1, 2),), lambda choice: None, 0)
    driver.tried = {(1,): dataclasses.replace(memory(10, None), host_temp_bytes=there_bytes)}
    assert driver.fits((1,), 10) is fits
    assert not driver.fits((1,), 9)


def test_a_part_that_is_the_same_at_every_level_is_found_by_two_choices():
    """300 bytes come on top of what grows with the level: ratios of one choice alone come down too slowly."""
    found, compiled = search(Stepped(*range(10, 2000)), 500, lambda level: 300 + level)
    assert found.fits
    assert 170 <= found.choice[0] <= 200
    assert len(compiled) == 2


def test_where_predictions_are_true_one_compile_is_enough():
    found, compiled = search(Stepped(*range(10, 2000)), 500, lambda level: level)
    assert (1 - CLOSE) * 500 <= found.memory.total_bytes <= 500
    assert compiled == [found.choice[0]]


def asked(mark):
    """The levels that a mark is asked for, as they come."""
    levels, fastest = [], mark.fastest
    mark.fastest = lambda level_bytes: (levels.append(level_bytes), fastest(level_bytes))[1]
    return levels


def test_the_low_end_is_looked_for_where_it_is_wanted():
    """The least of a ResNet-50 takes minutes to find."""
    mark = Stepped(50, 80)
    levels = asked(mark)
    search(mark, 60, lambda s: s)
    assert levels
    assert 0 not in levels
    search(mark, 40, lambda s: s)
    assert 0 in levels


def test_what_needs_no_more_than_a_lower_level_is_its_fastest_too():
    mark = Stepped(20, 80)
    levels = asked(mark)
    driver = Driver((mark,), lambda choice: None, 0)
    assert [driver.choice(level) for level in (70, 30, 20, 10, 90)] == [(20,), (20,), (20,), (20,), (80,)]
    assert levels == [70, 10, 90]


def test_where_nothing_less_is_predicted_choices_near_the_low_end_follow():
    """The figures of a bfloat16 ResNet-50 on a v5e, in MB: what is predicted to need least needs more than its neighbour,
    since it runs again inside what runs again."""
    peaks = {518: 580, 540: 499, 565: 515, 616: 581, 1092: 1003}
    found, compiled = search(Stepped(*peaks), 1, peaks.get)
    assert not found.fits
    assert found.choice == (540,)
    assert compiled[0] == 518
    assert 616 not in compiled, "far above the least"


def assert_least(mark, peaks, least_bytes):
    """Whatever a budget below all choices is, the search ends with the least; as a budget that is met."""
    for budget in (1, int(0.8 * least_bytes), least_bytes - 1):
        found, _ = search(mark, budget, peaks.get)
        assert not found.fits
        assert found.memory.total_bytes == least_bytes
    assert search(mark, least_bytes, peaks.get)[0].memory.total_bytes == least_bytes


def test_a_budget_below_all_choices_ends_with_the_least_whatever_it_is():
    for peaks in (
        {518: 580, 540: 499, 565: 515, 616: 581, 1092: 1003},
        {1112: 1236, 1180: 1217, 1267: 1292, 1449: 1500, 3400: 3515},  # a float32 GPT-2
    ):
        assert_least(Stepped(*peaks), peaks, sorted(peaks.values())[0])
        for left in (3, 7):  # where compiling takes minutes
            found, compiled = search(Stepped(*peaks), min(peaks.values()), peaks.get, left=left)
            assert found.fits
            assert len(compiled) <= left


class Lenient(Stepped):
    """A mark that takes the fastest of schedules that need nearly as little as the least where none is within."""

    def fastest(self, level_bytes):
        within = [s for s in self.schedules if s <= level_bytes]
        return max(within or (s for s in self.schedules if s <= 1.001 * min(self.schedules)))


def test_the_least_of_all_is_compiled_too_where_one_that_is_nearly_as_small_is_preferred():
    peaks = {100_000: 300, 100_050: 320, 130_000: 340, 1_000_000: 2000}
    assert search(Lenient(*peaks), 1, peaks.get)[1][:2] == [100_050, 100_000]
    assert_least(Lenient(*peaks), peaks, 300)


class CutElsewhere(Stepped):
    """A mark whose fastest schedules are far apart; on the way from one to another there are more."""

    def fastest(self, level_bytes):
        return super().fastest(level_bytes - level_bytes % 50)


def test_between_what_fits_and_what_does_not_the_way_from_one_to_the_other_is_looked_at():
    found, compiled = search(CutElsewhere(*range(10, 800)), 400, lambda level: int(1.1 * level))
    assert found.fits
    assert found.memory.total_bytes >= (1 - CLOSE) * 400
    assert len(compiled) <= 3


def aimed(tried, goal_bytes, **more):
    """The level that is aimed at, by the peaks of levels."""
    driver = Driver((Stepped(*tried, 10_000),), lambda choice: None, **{"held_bytes": 0, **more})
    driver.tried = {(level,): memory(peak, None) for level, peak in tried.items()}
    return driver.aim(goal_bytes)


def test_levels_are_aimed_at_by_what_was_compiled_near_them():
    assert aimed({100: 300}, 700, rate=2.0) == 300, "from one, by the rate of the plain step"
    assert aimed({100: 900}, 700, rate=2.0) == 0
    assert aimed({100: 300, 200: 700}, 500) == 150, "on the line through two"
    assert aimed({150: 100, 160: 200, 200: 180}, 120) == 162, "the least above, not the next"


def test_before_anything_was_compiled_levels_are_aimed_at_by_what_is_held():
    for rate, level in ((0.5, 1200), (1.0, 600)):
        assert Driver((Stepped(1, 2000),), lambda choice: None, held_bytes=100, rate=rate).aim(700) == level


def test_copies_of_what_the_plain_step_keeps_are_in_proportion_to_the_level():
    driver = Driver((Stepped(1, 1000),), lambda choice: None, held_bytes=100, rate=1.2)
    assert driver.expected(1000) == 100 + 1.2 * 1000
    assert driver.expected(500) == 100 + 1.1 * 500
    assert abs(driver.aim(650) - 500) <= 1
    assert driver.aim(50) == 0


def test_another_choice_is_compiled_where_it_promises_enough():
    def is_worth(budget_bytes, price, flops=1.0):
        mark = Stepped(100, 200, 205)
        mark.price = {200: 1.5, 205: price}.__getitem__
        mark.flops = {200: 1.0, 205: flops}.__getitem__
        driver = Driver((mark,), lambda choice: None, 0)
        driver.tried = {(200,): memory(201, None)}
        return driver.is_worth(budget_bytes, (200,), (205,))

    assert not is_worth(202, 1.499), "close"
    assert is_worth(202, 1.4)
    assert is_worth(220, 1.499), "far"
    assert not is_worth(220, 1.5)
    assert is_worth(220, 1.5, flops=0.9)
    assert not is_worth(202, 1.5, flops=0.9)


def test_of_what_is_hardly_faster_the_one_that_is_expected_to_fit_is_compiled():
    """Beside what came out above the budget there is another one, and one that is within it on the line to there."""
    prices = {800: 3.0, 979: 2.0, 994: 1.5, 998: 1.499, 1000: 1.4, 5000: 1.0}
    mark = Stepped(*prices)
    mark.price = prices.__getitem__
    driver = Driver((mark,), lambda choice: None, 0)
    driver.tried = {(800,): memory(800, None), (1000,): memory(1005, None)}
    driver.sure = set(driver.tried)
    assert driver.expected_best(1000, (800,)) == (994,)
    prices[998] = 1.45
    assert driver.expected_best(1000, (800,)) == (998,), "much faster"


def test_no_search_compiles_more_than_it_may():
    """Peaks that follow no level: all compiles are spent, and the least of all that was seen is named.

    Where nothing fits, that of the least comes on top."""
    peaks = {level: 500 + (37 * level) % 101 for level in range(10, 1000, 7)}
    for budget in (100, 505, 540):
        for left in (MOST_COMPILES - 1, 3):
            found, compiled = search(Stepped(*peaks), budget, peaks.get, left=left)
            assert len(compiled) <= left + (compiled[-1] == min(peaks) and not found.fits)
            seen = min(peaks[level] for level in compiled)
            assert found.fits == (seen <= budget)
            assert found.fits or found.memory.total_bytes == seen


def test_where_compiling_takes_minutes_half_as_much_is_compiled():
    assert most_compiles(resolve("cpu")) == MOST_COMPILES
    assert most_compiles(SimpleNamespace(compiles_slowly=True)) == MOST_COMPILES // 2


def test_the_last_compile_is_of_what_is_as_good_as_sure_to_fit():
    """The first two figures of Llama 2 70B on a v5p, in MB: what is predicted to need less does not need much less."""

    def peaks(level):
        return 54_430 if level > 46_000 else 53_972 if level > 40_000 else int(1.1 * level)

    found, compiled = search(Stepped(*range(24_151, 90_000, 7)), 49_150, peaks, left=3)
    assert found.fits
    assert len(compiled) == 3
    assert 30_000 < compiled[-1] < 40_000, "24,151 is the least"
    found, compiled = search(
        Stepped(*range(24_151, 90_000, 7)), 49_150, lambda s: max(50_000 * (s > 24_160), s), left=3
    )
    assert found.choice == (24_151,), "the least is compiled before a budget is refused"
    assert len(compiled) == 4
    found, compiled = search(Stepped(*range(24_151, 90_000, 7)), 24_160, lambda s: int(1.2 * s), left=3)
    assert not found.fits
    assert found.choice == (24_151,)
    assert len(compiled) == 3, "above the least nothing would fit"


def test_what_another_search_compiled_is_a_candidate_and_compiled_again():
    """Nothing that is predicted to fit does; what is known to fit is taken once it is compiled for this search."""
    peaks = {100: 300, 200: 310, 300: 250, 400: 600}
    for told, least in ((250, 250), (200, 250)):  # the second was of another program after all
        found, compiled = search(Stepped(*peaks), 255, peaks.get, known={(300,): memory(told, None)})
        assert found.choice == (300,)
        assert found.memory.total_bytes == least
        assert 300 in compiled


class WithHands(Stepped):
    """A mark of which persons have schedules that are a little faster than the one that fills the budget."""

    def beside(self):
        return dict.fromkeys([10.1, 10.2, 10.3], False)


def test_a_hand_that_computes_a_little_less_is_tried_where_the_budget_is_used_up():
    """Expected above the budget, for which predictions may be off by ``DOUBT`` as long as no hand was compiled."""
    schedules = WithHands(5, 10, 20)
    found, compiled = search(schedules, 100, lambda s: 100 if s == 10.3 else 10 * s)
    assert found.choice == (10.3,)
    assert compiled[-1] == 10.3
    found, compiled = search(schedules, 100, lambda s: 10 * s)
    assert found.choice == (10,)
    assert len({10.1, 10.2, 10.3} & {*compiled}) == 2, "once two of them are known the others are as far off"
    assert (1 + CLOSE) * 100 >= 103


class Priced(Stepped):
    """A mark of which persons have schedules of some seconds and FLOPs."""

    hands: ClassVar = {10.5: (1.05, 1.05), 10.6: (1.05, 1.05), 10.2: (1.08, 1.08)}  # of level 10 and 5: 1.1, 1.2

    def beside(self):
        return dict.fromkeys(self.hands, False)

    def price(self, schedule):
        return self.hands.get(schedule, (1 + 1 / schedule,))[0]

    def flops(self, schedule):
        return self.hands.get(schedule, (0, 1 + 1 / schedule))[-1]


def test_after_a_hand_that_is_above_the_budget_what_is_next_is_expected_close_to_it():
    """By what is known since then, so that no other one is tried that is as far above."""
    found, compiled = search(Priced(5, 10, 20), 100, lambda s: 100 if s == 10.2 else 10 * s)
    assert found.choice == (10.2,)
    assert [s for s in compiled if s in Priced.hands][1:] == [10.2]


def test_or_else_one_that_is_predicted_like_it():
    """As a block that runs again at the end, or stays as it is: the compiler may need less for either."""

    class Alike(Priced):
        hands: ClassVar = {10.5: (1.05, 1.05), 10.51: (1.06, 1.06), 10.9: (1.06, 1.06)}

    found, compiled = search(Alike(5, 10, 20), 100, lambda s: {10.5: 115, 10.51: 100}.get(s, 10 * s))
    assert found.choice == (10.51,)
    assert [s for s in compiled if s in Alike.hands] == [10.5, 10.51]


def test_of_hands_that_take_as_long_the_one_with_the_fewest_flops_is_first():
    class Alike(Priced):
        hands: ClassVar = {10.5: (1.05, 1.06), 10.6: (1.051, 1.05), 10.7: (1.07, 1.01)}

    found, compiled = search(Alike(5, 10, 20), 100, lambda s: 100 if s in Alike.hands else 10 * s)
    assert next(s for s in compiled if s in Alike.hands) == 10.6


class Named(Priced):
    """A mark with policies by names: of fewer FLOPs than level 10, predicted to take 1, 2 and 4 per cent longer."""

    hands: ClassVar = {9.5: (1.111, 1.09), 9.6: (1.122, 1.08), 9.7: (1.144, 1.07)}
    seconds_of: ClassVar = {9.5: 0.9, 9.6: 0.8, 9.7: 0.7}

    def beside(self):
        return dict.fromkeys(self.hands, True)


@pytest.mark.parametrize(("tells", "wanted"), [(True, [9.5]), (False, [])])
def test_the_first_policy_by_names_may_be_predicted_a_little_slower_where_the_module_tells(tells, wanted):
    mark, compiled = Named(10, 20), []

    def compile_step(choice):
        compiled.append(choice[0])
        return memory(10 * choice[0], Named.seconds_of.get(choice[0], 1.0) if tells else None)

    found = Driver((mark,), compile_step, 0).search(100)
    assert [s for s in compiled if s in Named.hands] == wanted
    assert found.choice == (wanted[0] if wanted else 10,)


class Written(Stepped):
    """A mark whose plain schedule is one of those by rule, as it is where a policy saves everything."""

    def beside(self):
        return {self.judge.program.plain: False}


def test_what_was_tried_is_no_hand_to_try():
    """The plain step is a little above the budget: a search that proposed it again would not end."""
    mark = Written(10, 1800, 2000)
    found, compiled = search(mark, 1900, lambda level: level, known={(2000,): memory(1950, None)})
    assert found.choice == (1800,)
    assert compiled == [1800]
