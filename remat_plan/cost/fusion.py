"""Which steps of a program become one kernel.

In: a ``Program`` (with the ``Backend`` it was lowered for).
Out: ``Kernel``s: the values each really reads and writes, and its FLOPs, recomputed producers included.

Two passes, as in XLA. Library clusters first (XLA:CPU only, ``LibraryRewriter``): from the last reduction to
the first, take in neighbours (products too) as long as no value inside is read outside, but for the one
result. Then instruction fusion (``InstructionFusion``): an element-wise step is computed inside its consumers
when they form one kernel, or when it is cheap and all of them can take it; if only some can, and computing it
again reads no more memory than reading its result, those do, and it is materialised for the others. Kernels that
would hold its code too often read its result as well (``backends.cpu_code``).

Limits: of XLA's other caps on the size of a fusion there is one, on how many kernels compute a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from remat_plan.cost.copies import Copies
from remat_plan.cost.rules import FUSIBLE, MOVES, Kind
from remat_plan.cost.steps import NOBODY, SCATTERS, Program, Step, can_write_in_place

_PARTIAL = frozenset({"slice", "dynamic_slice", "gather", "split", "unstack"})
"""Primitives that read of their first operand no more than they write."""

_MAX_COPIES = 64
"""A cheap producer is computed again in at most this many kernels."""


class Kernel(NamedTuple):
    """A materialised step with what is fused into it: the values it really reads, and all its FLOPs, by class of work.

    ``keeps`` are those of ``reads`` that its result may not be written over: some element of them is read
    after another element of the result is written. ``library`` tells a library call, ``alone`` a kernel of
    one step. ``unread`` are the bytes that it does not read of values that it takes parts of. ``common`` is what all
    kernels read that are made as one with it; empty if it is made alone.
    """

    step: Step
    reads: tuple[int, ...]
    keeps: frozenset[int]
    work: Mapping[str, float]
    library: bool = False
    alone: bool = False
    unread: Mapping[int, int] = {}
    common: tuple[int, ...] = ()


class _Links:
    """Who makes and who reads each value, by position of the step."""

    def __init__(self, program: Program):
        steps = program.steps
        self.maker = maker = [NOBODY] * len(program.sizes)
        self.readers: list[list[int]] = [[] for _ in program.sizes]
        for index, step in enumerate(steps):
            for value in step.writes:
                maker[value] = index
            for value in step.reads:
                found = self.readers[value]
                if not found or found[-1] != index:
                    found.append(index)
        readers = self.readers
        self.users = [
            readers[step.writes[0]] if len(step.writes) == 1 else [u for v in step.writes for u in readers[v]]
            for step in steps
        ]  # of each step, once for each value that they read
        for value in (*program.outputs, *program.pinned):
            if maker[value] >= 0:
                self.users[maker[value]] = [*self.users[maker[value]], NOBODY]


def _clusters(steps: list[Step], links: _Links) -> list[int]:
    """Return for each step the position of the result step of its library cluster, or -1."""
    owner = [NOBODY] * len(steps)
    members: dict[int, list[int]] = {}
    result: dict[int, int] = {}

    def take(cluster: int, index: int) -> list[int]:
        """Move a step, or the cluster it belongs to, into ``cluster``."""
        other = owner[index]
        moved = members.pop(other) if other >= 0 else [index]
        for i in moved:
            owner[i] = cluster
        members[cluster].extend(moved)
        return moved

    for seed in range(len(steps) - 1, -1, -1):
        if steps[seed].library != 2 or owner[seed] >= 0:
            continue
        cluster = seed
        owner[seed], members[cluster], result[cluster] = cluster, [seed], seed
        fresh = [seed]
        waiting: set[int] = set()
        while fresh or waiting:
            for index in fresh:
                makers = [links.maker[r] for r in steps[index].reads]
                waiting.update([m for m in makers if m >= 0 and owner[m] != cluster])
            fresh = []
            for index in sorted(waiting, reverse=True):
                whole = owner[index] < 0 or result[owner[index]] == index
                fits = steps[index].library and whole
                if fits and all(u >= 0 and owner[u] == cluster for u in links.users[index]):
                    waiting.discard(index)
                    fresh.extend(take(cluster, index))
            above = {owner[u] if u >= 0 and owner[u] >= 0 else u for u in links.users[result[cluster]]}
            if len(above) == 1:
                user = links.users[result[cluster]][0]
                if user >= 0 and (owner[user] >= 0 or steps[user].library):
                    result[cluster] = result[owner[user]] if owner[user] >= 0 else user
                    fresh.extend(take(cluster, user))
            waiting = {w for w in waiting if owner[w] != cluster}
            if not fresh:
                break
    return [result[o] if o >= 0 else NOBODY for o in owner]


def _epilogues(program: Program, links: _Links) -> dict[int, int]:
    """Return for each product that takes in what follows it the step whose result it writes.

    It takes in a chain of element-wise steps that are each other's only readers, and does not end with a conversion to
    a larger type, which is computed in the readers instead.
    """
    steps, sizes, rules = program.steps, program.sizes, program.backend.of("follows")
    found: dict[int, int] = {}
    taken: set[int] = set()
    for index in range(len(steps) - 1, -1, -1) if rules else ():
        place = index
        while len(links.users[place]) == 1 and (user := links.users[place][0]) >= 0:
            step, before = steps[user], sizes[steps[place].writes[0]]
            if user in taken or step.kind not in FUSIBLE or step.primitive in MOVES:
                break
            if not any(rule(steps[index].primitive, step.primitive) for rule in rules):
                break
            taken.add(user)
            place = user
            widened = sizes[step.writes[0]] > before
            if widened and step.primitive != "convert_element_type":
                break
            if not widened:
                found[index] = place
    return found


def _additions(program: Program, links: _Links) -> dict[int, int]:
    """Return for each product that adds its result to a value, in the memory of that, the step of the sum.

    The value is read by nothing else, and is no argument or output; the carry of a loop is none.
    """
    steps, rules = program.steps, program.backend.of("adds")
    given = (program.inputs - set(program.carried.values())).union(program.outputs)
    found: dict[int, int] = {}
    for index, step in enumerate(steps if rules else ()):
        users = links.users[index]
        if len(users) == 1 and users[0] >= 0 and any(rule(step, steps[users[0]]) for rule in rules):
            reads = steps[users[0]].reads
            if given.isdisjoint(reads) and all(len(links.readers[v]) == 1 for v in reads):
                found.setdefault(index, users[0])
    return found


class _Grouping:
    """Which kernels compute each step, decided from the last step to the first.

    ``groups`` are by step the positions of the kernels that compute it (its own, if it is materialised).
    """

    def __init__(self, program: Program, links: _Links):
        steps, backend = program.steps, program.backend
        cluster = _clusters(steps, links) if backend.of("library") else [NOBODY] * len(steps)
        self._steps, self._links, self._cluster = steps, links, cluster
        self._repeats, self._beside = backend.of("repeats"), backend.of("beside")
        taking = {step.primitive for step in steps if any(rule(step.primitive) for rule in backend.of("takes_in"))}
        self._consumes = [
            c < 0 and (step.kind in (*FUSIBLE, Kind.REDUCE) or step.primitive in taking)
            for c, step in zip(cluster, steps, strict=True)
        ]
        self._epilogues = _epilogues(program, links) | _additions(program, links)
        self._written = set(self._epilogues.values())
        self._written.update(*[rule(steps, links.users) for rule in backend.of("written")])
        self.groups = [frozenset((c if c >= 0 else index,)) for index, c in enumerate(cluster)]
        self._copies = Copies(program, links.maker, links.readers, self.groups)
        divided = backend.only("divided")
        self._divided: set[int] = divided(steps, links.users, self._takes) if divided else set()
        room = backend.only("room")
        self._emissions = room(steps, links.users) if room else None
        for index in range(len(steps) - 1, -1, -1):
            if index in self._epilogues:
                self.groups[index] = self.groups[self._epilogues[index]]
            elif cluster[index] < 0 and steps[index].kind in FUSIBLE and index not in self._written:
                self.groups[index] = self._kernels(index)
            if self._emissions:
                self._emissions.take(index, self.groups[index])

    def _kernels(self, index: int) -> frozenset[int]:
        """The kernels that compute a step which may be taken in; those of later steps are known."""
        step, users, own = self._steps[index], self._links.users[index], self.groups[index]
        takers = [u for u in users if self._takes(u, index)]
        if not takers:
            return own
        roots = self.groups[takers[0]]
        if len(takers) > 1:
            roots = roots.union(*[self.groups[u] for u in takers[1:]])
        if (index in self._divided and len(roots) > 1) or not self._may_be_in(step, roots):
            return own
        emissions = self._emissions
        full = frozenset([k for k in roots if emissions.are_too_many(index, k)]) if emissions else frozenset()
        if full:
            roots -= full
        if len(takers) == len(users):
            return roots | own if full else roots
        others = [u for u in users if u not in takers]
        return own | roots if step.kind == Kind.CHEAP and self._reads_no_more(step, others) else own

    def _takes(self, user: int, index: int) -> bool:
        """Tell whether a reader may compute a step that is in no library call."""
        step = self._steps[index]
        if user < 0 or self._cluster[index] >= 0 or not self._consumes[user] or _is_updated(step, self._steps[user]):
            return False
        # inside a broadcast it would be computed once for every copy
        return step.kind != Kind.EXPENSIVE or self._steps[user].primitive != "broadcast_in_dim"

    def _may_be_in(self, step: Step, kernels: frozenset[int]) -> bool:
        """Tell whether a step is computed in a kernel, or again in each of several."""
        if len(kernels) > 1 and (step.kind != Kind.CHEAP or (len(kernels) > _MAX_COPIES and step.reads)):
            return False
        return all(rule(step, kernels, self._copies) for rule in self._repeats)

    def _reads_no_more(self, step: Step, others: list[int]) -> bool:
        """Tell whether computing a step again beside its result, which ``others`` read, is as good as reading that.

        Of readers inside a library call nothing more is known: what they read it took in.
        """
        if step.unary:
            return True
        if any(u < 0 or self._cluster[u] >= 0 for u in others):
            return False
        return any(rule(step, [self._steps[u] for u in others]) for rule in self._beside)


def _is_updated(step: Step, user: Step) -> bool:
    """Tell whether a step makes what another one writes some elements of anew: that has to be an array."""
    return user.primitive in SCATTERS and user.reads[0] in step.writes


def _keeps(steps: list[Step], groups: list[frozenset[int]]) -> dict[int, set[int]]:
    """Return for each kernel what it reads otherwise than element by element, on the way to its result."""
    keeps: dict[int, set[int]] = {root: set() for group in groups for root in group}
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        straight = can_write_in_place(step)
        reads = step.reads[1:] if straight and step.kind == Kind.OPAQUE else step.reads  # an update: of its first
        whole = not straight or step.kind == Kind.OPAQUE
        for root in groups[index]:
            if whole or (index != root and not keeps[root].isdisjoint(step.writes)):
                keeps[root].update(reads)
    return keeps


def _unread_bytes(program: Program, groups: list[frozenset[int]]) -> Mapping[int, Mapping[int, int]]:
    """Return by kernel and value the bytes that it does not read; kernels that read all are left out.

    Each part of a split is a kernel that reads its share of the array, and rows of an embedding are read by number.
    """
    steps = program.steps
    partial = [index for index, step in enumerate(steps) if step.primitive in _PARTIAL and step.reads]
    members: dict[int, list[int]] = {root: [] for index in partial for root in groups[index]}
    if not members:
        return {}
    for index, roots in enumerate(groups):
        for root in roots:
            if root in members:
                members[root].append(index)
    return {root: _unread(steps, root, inside, program.sizes) for root, inside in members.items()}


def _unread(steps: list[Step], root: int, inside: list[int], sizes: list[int]) -> dict[int, int]:
    """Bytes that a kernel of the steps ``inside``, of which ``root`` makes the result, does not read, by value."""
    needed: dict[int, int] = {}
    made: set[int] = set()
    for index in reversed(inside):
        step = steps[index]
        made.update(step.writes)
        written = sum([sizes[value] for value in step.writes])
        wanted = written if index == root else sum([needed.get(value, 0) for value in step.writes])
        for value in step.reads:
            whole = sizes[value]
            part = whole * wanted // written if written else whole
            if step.primitive in _PARTIAL and value == step.reads[0]:
                part = wanted
            needed[value] = min(whole, needed.get(value, 0) + part)
    return {value: sizes[value] - part for value, part in needed.items() if value not in made and part < sizes[value]}


def fuse(program: Program) -> list[Kernel]:
    """Return the kernels of a program, in the order of the steps that they materialise."""
    steps = program.steps
    links = _Links(program)
    groups = _Grouping(program, links).groups
    keeps = _keeps(steps, groups)
    unread = _unread_bytes(program, groups)
    reads: dict[int, set[int]] = {root: set() for root in keeps}
    work: dict[int, dict[str, float]] = {root: {} for root in keeps}
    sizes = dict.fromkeys(keeps, 0)
    library: set[int] = set()
    maker = links.maker
    for step, here in zip(steps, groups, strict=True):
        flops, made = step.flops, [(value, groups[maker[value]] if maker[value] >= 0 else ()) for value in step.reads]
        for root in here:
            sizes[root] += 1
            if flops:
                done = work[root]
                done[step.work] = done.get(step.work, 0.0) + flops
            inside = reads[root]
            for value, makers in made:
                if root not in makers:
                    inside.add(value)
        if step.library == 2:
            library.update(here)
    return [
        Kernel(
            steps[i],
            tuple(sorted(reads[i])),
            frozenset(keeps[i]),
            work[i],
            i in library,
            sizes[i] == 1 and i not in library and steps[i].kind in FUSIBLE,
            unread.get(i, {}),
        )
        for i in sorted(reads)
    ]
