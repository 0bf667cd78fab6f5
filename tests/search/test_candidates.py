"""Schedules that are judged beside the planner's own."""

import jax
import jax.numpy as jnp

from remat_plan.graph.schedule import as_is
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import traced

AUTO = Request(lookup("auto"), False, (0,), False, (), "replan")


def candidates_of(loss, *args):
    judge = Judge(traced(loss, *args), resolve("cpu"), Progress("test", False))
    return judge, Candidates(judge.rules, Progress("test", False))


def test_the_body_of_a_scan_alone_is_checkpointed_as_a_person_does_it():
    """Of every rule for blocks there is one schedule that leaves what is before and behind the loop as it is."""

    def loss(w, x):
        x = jnp.sin(jnp.tanh(x) + 1)
        x = jax.lax.scan(lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w.T), None), x, w)[0]
        return jnp.sum(jnp.exp(jnp.sin(x)) ** 2)

    judge, candidates = candidates_of(loss, jnp.ones((6, 8, 8)), jnp.ones((4, 8)))
    place = next(i for i, op in enumerate(judge.program.graph.ops) if op.primitive == "scan")
    end = len(judge.program.graph.ops)
    found = candidates.uniform(AUTO)
    chosen = {segment.choices for schedule in found for segment in schedule if segment.choices}
    assert chosen
    for choices in chosen:
        assert any(
            s[0] == as_is(0, place) and s[1].choices == choices and s[2:] == (as_is(place + 1, end),) for s in found
        )
