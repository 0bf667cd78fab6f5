"""What the tests of strategies share: chains, who judges them, and counting what is run.

Imported as ``from tests.strategies import ...``.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from remat_plan.cost.backend import GENERIC
from remat_plan.cost.facts import FactBook
from remat_plan.cost.program import lower
from remat_plan.cost.steps import NO_REGION
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import Settings
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import traced

S = jax.ShapeDtypeStruct
ROWS, WIDTH, HIDDEN = 16384, 4, 16
LAYER = (S((WIDTH, HIDDEN), "float32"), S((HIDDEN, WIDTH), "float32"))
CARRY_BYTES = 4 * ROWS * WIDTH


def chain(n):
    """n equal layers that the planner cuts into n equal blocks."""

    def loss(w, x):
        a, b = w
        for _ in range(n):
            x = x + jnp.tanh(x @ a) @ b
        return jnp.sum(x**2)

    return loss


def named_chain(n, every=2):
    """The same with names: what enters a layer is ``"state"``, at every fourth ``"pillar"``; inside it ``"hidden"``."""

    def loss(w, x):
        a, b = w
        for i in range(n):
            x = checkpoint_name(x, "pillar" if i % (2 * every) == 0 else "state" if i % every == 0 else "step")
            x = x + checkpoint_name(jnp.tanh(x @ a), "hidden") @ b
        return jnp.sum(x**2)

    return loss


def chain_judge(fn, *args):
    program = traced(fn, *(args or (LAYER, S((ROWS, WIDTH), "float32"))))
    return Judge(program, resolve("cpu"), Progress("test", False))


def found(judge, name, constraints=NO_CONSTRAINTS, **settings):
    """All schedules of a strategy."""
    task = make_task(judge.program.graph, judge.hardware, constraints, Settings(**settings))
    return find_schedules(lookup(name), task)


def least(judge, name, **settings):
    """The schedule with the least predicted peak, as without a budget."""
    return min(found(judge, name, **settings).schedules, key=judge.predicted_bytes)


def carries(judge, schedule):
    """Predicted temporaries in units of what enters a layer."""
    return (judge.predicted_bytes(schedule) - judge.owned_bytes) / CARRY_BYTES


def runs(judge, schedule, primitive="tanh"):
    """How often a primitive is run in the gradient step of a schedule, dead code left out."""
    program = lower(jax.make_jaxpr(judge.step(schedule))(*judge.structs), FactBook(lambda eqn: NO_REGION, GENERIC))
    return sum(step.equations for step in program.steps if step.primitive == primitive)
