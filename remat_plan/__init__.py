"""remat_plan: gradient checkpointing for JAX, planned to fit a number of bytes.

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

from remat_plan.accumulate import accumulate
from remat_plan.api import analyze, compiler_options, plan, strategies, tradeoff
from remat_plan.batch import max_batch
from remat_plan.compare import compare
from remat_plan.fit import FittedStep, fit, mark
from remat_plan.functions import Planned, checkpoint, remat
from remat_plan.planning.strategies.values import Binomial, Collection, Mirror, register_strategy
from remat_plan.report import renderers as _renderers  # noqa: F401  they register themselves
from remat_plan.results.analysis import Analysis
from remat_plan.results.curves import Comparison, Tradeoff
from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.steps import BatchSizes, StepReport
from remat_plan.units import BudgetError

if TYPE_CHECKING:
    from remat_plan import linen as linen
    from remat_plan import nnx as nnx
    from remat_plan.loops.scan import scan
    from remat_plan.loops.while_loop import while_loop

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "BatchSizes",
    "Binomial",
    "BudgetError",
    "Collection",
    "Comparison",
    "FittedStep",
    "Measurement",
    "Mirror",
    "Plan",
    "Planned",
    "StepReport",
    "Tradeoff",
    "accumulate",
    "analyze",
    "checkpoint",
    "compare",
    "compiler_options",
    "fit",
    "mark",
    "max_batch",
    "plan",
    "register_strategy",
    "remat",
    "scan",
    "strategies",
    "tradeoff",
    "while_loop",
]


def __dir__() -> list[str]:
    """What users may want to complete: the public names, and the modules that are imported when asked for."""
    return sorted({*__all__, "__version__", "linen", "nnx"})


def __getattr__(name: str) -> Any:
    """Import ``rp.linen`` and ``rp.nnx`` (both need Flax) and the loops when they are first asked for."""
    if name in ("linen", "nnx"):
        return importlib.import_module(f"remat_plan.{name}")
    if name in ("scan", "while_loop"):
        return getattr(importlib.import_module(f"remat_plan.loops.{name}"), name)
    message = f"module 'remat_plan' has no attribute {name!r}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])  # with these Python asks "Did you mean"
