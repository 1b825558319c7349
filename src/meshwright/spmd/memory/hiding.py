"""The order of kernels beside collectives on GPUs.

XLA starts a collective early and waits for it late, so that other kernels run in between. It orders the kernels of a
program, or of a body, that has collectives, from the last one to the first. Of the kernels whose users all have their
place, it takes

- the wait for a collective, if no other collective is under way;
- the kernel that would wait least for its users. A collective lasts long, a kernel at least as long as a launch;
- the kernel with most collectives in a row before it;
- the kernel whose time is most like the time that is left until the next one need not wait;
- a kernel that reads a collective's result, then the one that leaves most others without users that have no place;
- the one that was the last without collectives.

So kernels that only write results run at the end, whatever they hold in memory until then. Source: XLA's
``LatencyHidingScheduler`` and its speed-of-light times of kernels.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.spmd.memory.graph import COLLECTIVES, Graph, post_order
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.priority import is_product, profile

#: the least time between a kernel and its user, and what a collective, a product of a library, and what is not a fusion
#: are taken to last; in bytes that memory could move. The last three fit the orders of programs that XLA compiled
_LAUNCH, _COLLECTIVE, _PRODUCT, _OPERATION = 3.35e6, 3.35e8, 1e8, 3.35e4
#: what takes no time
_NOTHING = ("parameter", "constant", "replica_id", "partition_id", "optimization_barrier")


_Unit = tuple[Kernel, ...]


@dataclass(eq=False, slots=True)
class _Step:
    """Kernels that run as one, or one of the two halves of a collective: its start, and the wait for its result."""

    kernels: Sequence[Kernel] = ()
    time: float = 0.0
    nothing: bool = False
    starts: bool = False
    waits: bool = False
    #: whether collectives run inside
    holds: bool = False
    place: int = 0
    before: list[_Step] = field(default_factory=list)
    after: list[_Step] = field(default_factory=list)
    #: the collectives in a row before it
    depth: int = 0
    #: the number of users that have no place yet
    left: int = 0
    #: the time, from the end, from which its users need not wait for it, and the one at which it has its place
    ready: float = 0.0
    taken: float = 0.0


def hide(order: Sequence[Kernel], together: Sequence[Sequence[Kernel]]) -> tuple[list[Kernel], list[int]]:
    """The order in which kernels run, each collective where it starts; and the step until which each reads.

    ``order`` is the order without collectives. Kernels that are ``together`` run as one. A collective reads until it is
    waited for.
    """
    inputs = _units(order, together)
    units = post_order(list(inputs), inputs.__getitem__)
    found, until = list[Kernel](), dict[Kernel, int]()
    if not any(unit[0].root.op in COLLECTIVES for unit in units):
        steps = [_Step(unit) for unit in units]
    else:
        steps = _Schedule(_steps(units, inputs)).run()[::-1]
    for step in steps:
        if step.waits:
            until[step.kernels[0]] = len(found) - 1
        else:
            found += step.kernels
            until.update(dict.fromkeys(step.kernels, len(found) - 1))
    return found, [at if "in_place" in kernel.root.attributes else until[kernel] for at, kernel in enumerate(found)]


def as_units(order: Sequence[Kernel], together: Sequence[Sequence[Kernel]]) -> tuple[list[Kernel], list[int]]:
    """The same order, but kernels that are ``together`` follow each other; and the step until which each reads."""
    inputs = _units(order, together)
    found, until = list[Kernel](), list[int]()
    for unit in post_order(list(inputs), inputs.__getitem__):
        found += unit
        until += [len(found) - 1] * len(unit)
    return found, until


def has_collectives(region: Graph) -> bool:
    """Whether a collective runs in a body or branch, or inside it."""
    nodes = region.post_order()
    return any(node.op in COLLECTIVES or any(map(has_collectives, node.regions)) for node in nodes)


def _units(order: Sequence[Kernel], together: Sequence[Sequence[Kernel]]) -> dict[_Unit, dict[_Unit, None]]:
    """What runs as one, and what each of it reads."""
    groups = {kernel: group for group in map(tuple, together) for kernel in group}
    units = {kernel: groups.get(kernel, (kernel,)) for kernel in order}
    return {
        unit: dict.fromkeys(units[x] for k in unit for x in (*k.inputs, *k.after) if units[x] is not unit)
        for unit in units.values()
    }


def _steps(units: Sequence[_Unit], inputs: Mapping[_Unit, Iterable[_Unit]]) -> list[_Step]:
    """The steps that units take, in an order in which they can run."""
    last: dict[_Unit, _Step] = {}
    steps: list[_Step] = []

    def add(step: _Step, before: Sequence[_Step]) -> _Step:
        step.place, step.before = len(steps), list(dict.fromkeys(before))
        step.depth = max((one.depth for one in before), default=0) + step.waits
        for one in step.before:
            one.after.append(step)
        steps.append(step)
        return step

    for unit in units:
        before = [last[source] for source in inputs[unit]]
        kernel = unit[0]
        if kernel.root.op in COLLECTIVES:
            start = add(_Step(unit, _OPERATION, starts=True), before)
            last[unit] = add(_Step(unit, _OPERATION, waits=True), [start])
            continue
        nothing = kernel.view or kernel.root.op in _NOTHING
        holds = any(map(has_collectives, kernel.root.regions))
        time = 0.0 if nothing else max(_time(kernel) for kernel in unit)
        last[unit] = add(_Step(unit, time, nothing, holds=holds), before)
        if is_product(kernel) or len(unit) > 1:  # its result is taken from a tuple
            last[unit] = add(_Step(nothing=True), [last[unit]])
    return steps


def _time(kernel: Kernel) -> float:
    if is_product(kernel):
        return _PRODUCT
    if kernel.loop or kernel.root.op in ("reduce", "reduce_window", "scatter"):
        return profile(kernel).reads.alone
    return _OPERATION


class _Schedule:
    """Finds the order of steps, the last one first."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps, self._now = steps, 0.0
        self._free: list[_Step] = []
        self._nothing: list[_Step] = []
        #: the times at which steps are ready that are not yet
        self._later: list[float] = []
        self._under_way = False
        #: the waits that are free, and whether there are any while a collective is under way
        self._waiting, self._backed = 0, False

    def run(self) -> list[_Step]:
        found = []
        for step in self._steps:
            step.left = len(step.after)
        for step in [step for step in self._steps if not step.left]:
            self._release(step)
        while self._free or self._nothing:
            found.append(step := self._nothing.pop() if self._nothing else self._best())
            self._take(step)
        return found

    def _release(self, step: _Step) -> None:
        step.ready = self._arrival(step)
        self._waiting += step.waits
        if step.nothing:
            self._nothing.append(step)
            return
        self._free.append(step)
        if step.ready > self._now:
            insort(self._later, step.ready)

    def _arrival(self, step: _Step) -> float:
        latency = _COLLECTIVE if step.starts else _LAUNCH
        return max([self._now, *(user.taken + latency for user in step.after)])

    def _take(self, step: _Step) -> None:
        step.taken = self._arrival(step)
        self._now = step.taken + step.time
        if step.waits:
            self._under_way, self._waiting = True, self._waiting - 1
        elif step.starts:
            self._under_way = False
        gone = next((i for i, ready in enumerate(self._later) if ready >= self._now), len(self._later))
        del self._later[:gone]
        for one in step.before:
            one.left -= 1
            if not one.left:
                self._release(one)

    def _best(self) -> _Step:
        best, at = None, 0
        self._backed = self._under_way and self._waiting > 0
        key: tuple[float, ...] = ()
        for i, step in enumerate(self._free):
            if self._under_way and (step.waits or step.holds):
                continue
            this = self._key(step)
            if best is None or this > key or (this == key and self._better(step, best)):
                best, at, key = step, i, this
        assert best is not None, "a collective that is under way has a start"
        self._free[at] = self._free[-1]
        self._free.pop()
        return best

    def _key(self, step: _Step) -> tuple[float, ...]:
        wait = max(step.ready - self._now, 0.0)
        early = step.starts and not step.depth and not self._backed
        return step.waits, -wait, not early, step.starts and self._backed, step.depth

    def _better(self, step: _Step, other: _Step) -> bool:
        """Whether a step comes before another one that waits as long."""
        if self._later:
            open_ = self._later[0] - self._now
            mine, theirs = abs(open_ - step.time), abs(open_ - other.time)
            if mine != theirs and not (step if mine < theirs else other).starts:
                return mine < theirs
        return self._rest(step) > self._rest(other)

    def _rest(self, step: _Step) -> tuple[bool, int, int]:
        return any(one.waits for one in step.before), sum(one.left == 1 for one in step.before), step.place
