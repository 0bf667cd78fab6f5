"""Which of the compiled choices of a search for a whole step is taken."""

from remat_plan.training.levels import Levels
from remat_plan.verify.compile import CompiledMemory


def memory(total_bytes, seconds):
    return CompiledMemory(total_bytes, 0, 0, 0, total_bytes, 0, 0.0, None, seconds)


class Indifferent:
    """A mark whose schedules are all predicted to be equal: the first would be taken."""

    def price(self, schedule):
        return 1.0

    def flops(self, schedule):
        return 2.0 if schedule == "more work" else 1.0


def best(seconds, budget_bytes):
    """The choice that is taken."""
    levels = Levels((Indifferent(),), lambda choice: None, 0)
    levels.tried = {(n,): memory(100 - n, s) for n, s in enumerate(seconds)}
    return levels.best(budget_bytes)


def test_the_compiler_has_the_last_word_on_what_fits():
    assert best([1.0, 0.9, 0.95], 100) == (1,)
    assert best([1.0, 0.995], 100) == (0,), "less than what is sure"
    assert best([1.0, 0.5], 99) == (1,)
    assert best([None, 0.5], 100) == (0,), "nothing to compare with"
    assert best([1.0, None], 100) == (0,)
    assert best([1.0, 0.5], 90) is None


def test_not_where_more_is_computed():
    levels = Levels((Indifferent(),), lambda choice: None, 0)
    levels.tried = {("less",): memory(100, 1.0), ("more work",): memory(90, 0.5)}
    assert levels.best(100) == ("less",)
