"""Budgets and the error where one is too small."""

import pickle
import traceback

from remat_plan.small.budget import BudgetError


def test_tracebacks_name_the_error_as_users_import_it():
    error = BudgetError("too small", minimum_bytes=2, budget_bytes=1, where="", largest=())
    assert traceback.format_exception_only(error) == ["remat_plan.BudgetError: too small\n"]
    assert pickle.loads(pickle.dumps(error)).minimum_bytes == 2
