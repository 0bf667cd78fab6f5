"""remat_plan: gradient checkpointing for JAX, planned to fit a number of bytes.

>>> import jax, jax.numpy as jnp, remat_plan as rp
>>> def loss(w, x):
...     for _ in range(8):
...         x = jnp.tanh(x @ w)
...     return jnp.sum(x)
>>> loss2 = rp.remat(loss, budget="60%")  # same value and gradients, within 60 % of the plain peak
"""

from remat_plan.api import Planned, analyze, compiler_options, plan, remat, tradeoff
from remat_plan.plan import Plan
from remat_plan.units import BudgetError

__version__ = "0.1.0"
__all__ = [
    "BudgetError",
    "Plan",
    "Planned",
    "analyze",
    "compiler_options",
    "plan",
    "remat",
    "tradeoff",
]
