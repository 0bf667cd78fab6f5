"""remat_plan: gradient checkpointing for JAX, planned to fit a memory budget.

>>> import jax, jax.numpy as jnp, remat_plan as rp
>>> def loss(w, x):
...     for _ in range(8):
...         x = jnp.tanh(x @ w)
...     return jnp.sum(x)
>>> loss2 = rp.remat(loss, budget="60%")  # same value and gradients, within 60% of its peak
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Both make contexts, which are in the keys of JAX's caches: if they came later, all would be traced and compiled again.
import jax.extend as _extend  # noqa: F401

from remat_plan.traced import marks as _marks  # noqa: F401

if TYPE_CHECKING:
    from remat_plan import linen as linen
    from remat_plan import nnx as nnx
    from remat_plan.accumulating import accumulate
    from remat_plan.api import analyze, compiler_options, plan, strategies, tradeoff
    from remat_plan.comparing import compare
    from remat_plan.fitting import FittedStep, fit, mark
    from remat_plan.functions import Planned, checkpoint, remat
    from remat_plan.loops.scan import scan
    from remat_plan.loops.while_loop import while_loop
    from remat_plan.planning.strategies.values import Binomial, Collection, Mirror, register_strategy
    from remat_plan.results.analysis import Analysis
    from remat_plan.results.curves import Comparison, Tradeoff
    from remat_plan.results.measurement import Measurement
    from remat_plan.results.plan import Plan
    from remat_plan.results.steps import LargestSizes, StepReport
    from remat_plan.sizing import largest, max_batch
    from remat_plan.small.budget import BudgetError
    from remat_plan.splitting import split

__version__ = "0.1.0"
__all__ = [
    "Analysis", "Binomial", "BudgetError", "Collection", "Comparison", "FittedStep", "LargestSizes", "Measurement",
    "Mirror", "Plan", "Planned", "StepReport", "Tradeoff", "accumulate", "analyze", "checkpoint", "compare",
    "compiler_options", "fit", "largest", "mark", "max_batch", "plan", "register_strategy", "remat", "scan", "split",
    "strategies", "tradeoff", "while_loop",
]  # fmt: skip

_NAMES = {
    "accumulating": "accumulate",
    "api": "analyze compiler_options plan strategies tradeoff",
    "comparing": "compare",
    "fitting": "FittedStep fit mark",
    "functions": "Planned checkpoint remat",
    "loops.scan": "scan",
    "loops.while_loop": "while_loop",
    "planning.strategies.values": "Binomial Collection Mirror register_strategy",
    "results.analysis": "Analysis",
    "results.curves": "Comparison Tradeoff",
    "results.measurement": "Measurement",
    "results.plan": "Plan",
    "results.steps": "LargestSizes StepReport",
    "small.budget": "BudgetError",
    "sizing": "largest max_batch",
    "splitting": "split",
}
_MODULE_OF = {name: f"remat_plan.{module}" for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    """What users may want to complete: the public names, and the modules for Flax."""
    return sorted({*__all__, "__version__", "linen", "nnx"})


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first asked for; ``rp.linen`` and ``rp.nnx`` need Flax."""
    if name in ("linen", "nnx"):
        return importlib.import_module(f"remat_plan.{name}")
    if name in _MODULE_OF:
        wording = importlib.import_module("remat_plan.small.wording")
        found = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = wording.readable(found)
        return found
    # With name and obj Python asks "Did you mean".
    raise AttributeError(f"module 'remat_plan' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
