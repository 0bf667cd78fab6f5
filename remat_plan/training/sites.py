"""The marks of a training step: which programs they are, what the step differentiates in them, and what runs them.

In: a function that traces the step. Out: ``Site``s, one for each program that a mark turns out to be; with a schedule
for each, ``Trial``, a runner of marks.

Whether a gradient is taken of an input is not to be seen from inside a function. So the step is traced once with probes
around its marks: functions that return what they are given, with a ``jax.custom_vjp`` whose rules are told which inputs
carry tangents and which outputs are given cotangents. A step that differentiates forward through a mark cannot have
them: then all inputs and outputs of floating point count, as in a function that is planned by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat
from remat_plan.graph.equal import Source, same_program
from remat_plan.graph.schedule import WRITTEN, Schedule
from remat_plan.search.candidates import Request
from remat_plan.traced.marks import MarkRunner
from remat_plan.traced.programs import Program, Traced, make_program
from remat_plan.traced.reuse import Emissions

MARKED = "remat_plan: argument of a mark"
"""The name that inputs of marks have in the trace with probes."""


@dataclass(eq=False)
class Site:
    """One program that is marked, wherever it is called.

    Attributes:
        traced: its first call. The arguments are shapes; arrays of the step that it closes over are tracers of a trace
            that is over, of which only the types are read.
        source: its jaxpr, to be compared with others.
        request: what the mark says of its plan.
        moved: which flat arguments a gradient is taken of, somewhere.
        pulled: which flat outputs are given a cotangent, somewhere.
        calls: how often it is traced in the step.
        around: makes something inside the ``shard_map`` that its first call is in; None where it is in none.
    """

    traced: Traced
    source: Source
    request: Request
    moved: list[bool]
    pulled: list[bool]
    calls: int = 0
    around: Callable[[Callable[[], Any]], Any] | None = field(default_factory=_compat.maps_around)

    def described(self, traced: Traced) -> Traced:
        """A call of this program with what is known of its derivative.

        A program of which only the first output, a scalar, is given a cotangent is a loss.
        """
        call = replace(traced.call, differentiated=tuple(self.moved))
        outputs = _compat.open_jaxpr(traced.jaxpr)[0].outvars
        is_loss = self.pulled[0] and not any(self.pulled[1:]) and outputs[0].aval.shape == ()
        avals = [v.aval for v in outputs if _compat.is_float(v.aval)]
        cotangents = () if is_loss else tuple(map(_compat.struct, avals))
        return replace(traced, call=call, is_loss=is_loss, cotangents=cotangents)

    def program(self) -> Program:
        def make() -> Program:
            return make_program(self.described(self.traced), self.request.existing)

        if self.around is None:
            return make()
        program = self.around(make)
        return replace(program, graph=replace(program.graph, in_place=self.around))


@dataclass(eq=False)
class Discovery:
    """Runs marks as plain functions, perhaps with probes around them, and notes what they are."""

    probing: bool
    sites: list[Site] = field(default_factory=list)

    def run_mark(self, trace: Callable[[], Traced], request: Request) -> Any:
        traced = trace()
        site = find_site(self.sites, traced) or self._new_site(traced, request)
        site.calls += 1
        leaves = [checkpoint_name(x, MARKED) if _compat.is_float(jax.typeof(x)) else x for x in traced.call.leaves]
        if self.probing:
            leaves = _probe(leaves, site.moved, [False] * len(leaves))
        outputs = _compat.as_function(traced.jaxpr)(*leaves)
        if self.probing:
            outputs = _probe(outputs, [False] * len(outputs), site.pulled)
        return jax.tree.unflatten(traced.output_tree, outputs)

    def _new_site(self, traced: Traced, request: Request) -> Site:
        def noted(avals: Sequence[Any]) -> list[bool]:
            return [_compat.is_float(x) and not self.probing for x in avals]

        outputs = [v.aval for v in _compat.open_jaxpr(traced.jaxpr)[0].outvars]
        kept = replace(traced, call=replace(traced.call, leaves=traced.call.structs))
        self.sites.append(Site(kept, Source(traced.jaxpr), request, noted(kept.call.leaves), noted(outputs)))
        return self.sites[-1]


class Trial:
    """Marks under schedules, one for each site; a mark that is none (no gradient is taken of it) is left as it is."""

    def __init__(self, sites: Sequence[Site], schedules: Sequence[Schedule]):
        self.sites, self.schedules = tuple(sites), tuple(schedules)
        self._emissions: dict[tuple[int, str], Emissions] = {}

    def runs(self, sites: Sequence[Site]) -> bool:
        """Whether all of some marks are among the sites, and differentiated as these are."""
        pairs = ((find_site(self.sites, site.traced), site) for site in sites)
        return all(one and (one.moved, one.pulled) == (site.moved, site.pulled) for one, site in pairs)

    def run_mark(self, trace: Callable[[], Traced], request: Request) -> Any:
        traced, number, schedule = trace(), -1, WRITTEN
        if (site := find_site(self.sites, traced)) is not None:
            number, traced = self.sites.index(site), site.described(traced)
            schedule = self.schedules[number]
        key = number, request.existing  # one for all calls of a site, so that equal ones are emitted once
        if key not in self._emissions:
            self._emissions[key] = Emissions(lambda program: schedule, request.existing)
        return self._emissions[key](traced)


def is_mark(eqn: Any) -> bool:
    """Whether an equation of a trace with probes is an input of a mark."""
    return _compat.name_of(eqn) == MARKED


def holds_mark(jaxpr: Any, is_of_mark: Callable[[Any], bool] = is_mark) -> bool:
    """Whether a mark runs in a trace, at any depth; by default in one with probes."""
    inner = (sub for eqn in jaxpr.eqns for sub in _compat.sub_jaxprs(eqn.params))
    if any(map(is_of_mark, jaxpr.eqns)):
        return True
    return any(holds_mark(_compat.open_jaxpr(sub)[0], is_of_mark) for sub in inner)


def find_site(sites: Sequence[Site], traced: Traced) -> Site | None:
    """The site whose program a traced call is, if there is one."""
    source = Source(traced.jaxpr)
    same = (s for s in sites if len(s.moved) == len(traced.call.leaves) and same_program(s.source, source))
    return next(same, None)


def find_sites(trace: Callable[[MarkRunner], Any]) -> tuple[list[Site], Any]:
    """Return the marks of a step that a gradient is taken through, and its trace, which ``trace`` makes by a runner."""
    try:
        found = Discovery(probing=True)
        traced = trace(found)
    except TypeError as error:  # forward mode through a mark, which no probe has: trace again without probes
        if "custom_vjp" not in str(error):
            raise
        found = Discovery(probing=False)
        traced = trace(found)
    return [site for site in found.sites if any(site.moved) and any(site.pulled)], traced


def _probe(values: Sequence[Any], moved: list[bool], pulled: list[bool]) -> list[Any]:
    """Return values as they are; where a derivative is taken, note which carry tangents and are given cotangents."""
    places = [i for i, x in enumerate(values) if _compat.is_float(jax.typeof(x))]
    if not places:
        return list(values)

    @jax.custom_vjp
    def probe(*floats: Any) -> tuple[Any, ...]:
        return floats

    def forward(*floats: Any) -> tuple[tuple[Any, ...], None]:
        for place, x in zip(places, floats, strict=True):
            moved[place] |= x.perturbed
        return tuple(x.value for x in floats), None

    def backward(_: None, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        zeros = [isinstance(ct, SymbolicZero) for ct in cotangents]
        for place, is_zero in zip(places, zeros, strict=True):
            pulled[place] |= not is_zero
        return tuple(None if is_zero else ct for ct, is_zero in zip(cotangents, zeros, strict=True))

    probe.defvjp(forward, backward, symbolic_zeros=True)
    probed = dict(zip(places, probe(*[values[i] for i in places]), strict=True))
    return [probed.get(i, x) for i, x in enumerate(values)]
