"""The arithmetic of a program, and how much of it the devices of a mesh repeat.

An operation is one point of an equation's loop nest; a multiply-add counts as two. Ops that only move elements count as
none. The body of a loop counts once per iteration, if their number is known, and a conditional as its largest branch.
"""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.core.printed import Printed
from meshwright.core.records import dataclass
from meshwright.core.weak import once_for_each
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, sub_jaxprs
from meshwright.ir.op import Op
from meshwright.ir.passes import inline_calls
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding import AbstractMesh
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.scalars import known_scalars

#: the factor by which the devices' total work may exceed the program's before there is a warning, ...
ALLOWED = 1.05
#: ... and the number of extra operations per device; fewer take less time than starting a collective
NOTICED = 1e6


@dataclass(frozen=True)
class Repeated:
    """Equations of one op and source line whose arithmetic is repeated on the mesh.

    ``times`` is how often it is done in total, ``share`` its share of the excess work of all products, or of all other
    equations, and ``excess`` the number of extra operations per device.
    """

    op: str
    source: str
    times: float
    share: float
    excess: float = 0.0
    is_product: bool = True

    def __str__(self) -> str:
        return f"{self.op} at {self.source} is done {self.times:.3g} times ({100 * self.share:.0f} % of the excess)"


@dataclass(frozen=True)
class Work(Printed):
    """The operations of one device, and of the whole program.

    ``products`` are those of matrix products, convolutions and similar ops, also of one device and of the program.
    """

    device: int
    whole: int
    products: tuple[int, int]
    num_devices: int
    #: the repeated products, largest excess first; if there are none, the other repeated equations, which are mostly
    #: shared where products are
    repeated: tuple[Repeated, ...] = ()

    @property
    def redundancy(self) -> float:
        """The total work of all devices divided by the program's; 1 if nothing is repeated."""
        return self.device * self.num_devices / self.whole if self.whole else 1.0

    @property
    def product_redundancy(self) -> float:
        """:attr:`redundancy` of the products alone."""
        device, whole = self.products
        return device * self.num_devices / whole if whole else 1.0

    def __repr__(self) -> str:
        return f"Work({self})"

    def _repr_html_(self) -> str:
        return "".join([super()._repr_html_(), *(f"<p>{html.escape(str(each))}</p>" for each in self.repeated)])

    def __str__(self) -> str:
        return (
            f"{self.device:.3g} operations a device, {self.redundancy:.2f} times its part of the program's "
            f"{self.whole:.3g}"
        )

    @property
    def warning(self) -> str | None:
        """A sentence about repeated products, if they exceed the allowed factor; else None."""
        device, whole = self.products
        if self.product_redundancy <= ALLOWED or device - whole / self.num_devices < NOTICED:
            return None
        most = "; ".join(str(r) for r in self.repeated[:3])
        return (
            f"each device does {self.product_redundancy:.2f} times its part of the arithmetic of matrix products and "
            f"convolutions: {most}; split their operands by an axis that is idle there"
        )


def work_of(device: Jaxpr, whole: Jaxpr, mesh: AbstractMesh) -> Work:
    """The work of a per-device program and of the program that it was partitioned from."""
    here, there = _by_place(device), _by_place(whole)
    repeated = tuple(_repeated(here, there, mesh.size, products=True))
    repeated = repeated or tuple(_repeated(here, there, mesh.size, products=False))
    return Work(sum(here.values()), sum(there.values()), (_products(here), _products(there)), mesh.size, repeated)


def operations_of(jaxpr: Jaxpr) -> int:
    """The number of operations of a program."""
    return sum(operations(eqn) * times for eqn, times in _with_times(jaxpr.eqns, 1))


def operations(eqn: JaxprEqn) -> int:
    """The number of operations of one equation. Inner jaxprs count only if they are functions of scalars."""
    op = eqn.op
    if (kernel := kernel_cost(op)) is not None:
        return kernel.products + kernel.others
    if op.moves_only or op.moved is not None or not op.computes or isinstance(op, Collective):
        return 0
    bodies = list(sub_jaxprs(op))
    if any(v.aval.shape for body in bodies for v in body.invars):
        return 0
    rule = eqn_rule(eqn)
    if rule.is_product:
        return 2 * rule.work
    points = max((rule.points or 0, *(a.aval.size for a in (*eqn.invars, *eqn.outvars))))
    return points * sum(len(body.eqns) for body in bodies) if bodies else points


class KernelCost(NamedTuple):
    """The operations of a kernel, those of products apart; and, if its author states them, the bytes that it moves."""

    products: int
    others: int
    nbytes: int | None = None


def kernel_cost(op: Op) -> KernelCost | None:
    """The cost of an op that calls a kernel: as stated, in which case all are products, or else counted; None for
    other ops."""
    if (stated := op.stated_cost) is not None:
        return KernelCost(stated.operations, 0, stated.nbytes)
    return None if op.computed is None else _counted(op.computed)


@once_for_each
def _counted(program: ClosedJaxpr) -> KernelCost:
    places = _by_place(known_scalars(inline_calls(program)).jaxpr)
    products = _products(places)
    return KernelCost(products, sum(places.values()) - products)


def precision_of(op: Op) -> str | None:
    """``"high"`` or ``"highest"`` if a float32 product asks for that precision; else None."""
    given = getattr(op, "precision", None)
    words = given if isinstance(given, tuple) else (given,)
    return next((word for word in ("highest", "high") if word in words), None)


#: numbers of operations, by op name, source line, and whether the op is a product
_Places = Counter[tuple[str, str, bool]]


def _by_place(jaxpr: Jaxpr) -> _Places:
    counts: _Places = Counter()
    for eqn, times in _with_times(jaxpr.eqns, 1):
        if (kernel := kernel_cost(eqn.op)) is None:
            parts = {eqn_rule(eqn).is_product: operations(eqn)}
        else:
            parts = {True: kernel.products, False: kernel.others}
        for is_product, count in parts.items():
            if count:
                counts[eqn.op.name, str(eqn.source), is_product] += count * times
    return counts


def _products(places: _Places) -> int:
    return sum(n for (_, _, product), n in places.items() if product)


def _with_times(eqns: Sequence[JaxprEqn], times: int) -> Iterator[tuple[JaxprEqn, int]]:
    """The equations, and how often each runs."""
    for eqn in eqns:
        op = eqn.op
        if isinstance(op, RegionOp):
            trips = op.trips(eqn.invars)
            runs = times * (1 if trips is None else trips) * op.devices
            inside = [list(_with_times(r.eqns, runs)) for r in op.regions()]
            yield from max(inside, key=_total) if op.chooses else itertools.chain.from_iterable(inside)
        else:
            yield eqn, times


def _total(runs: list[tuple[JaxprEqn, int]]) -> int:
    return sum(operations(eqn) * times for eqn, times in runs)


def _repeated(here: _Places, there: _Places, devices: int, products: bool) -> Iterator[Repeated]:
    excess = {key: here[key] * devices - there[key] for key in here if key[2] == products and there[key]}
    total = sum(e for e in excess.values() if e > 0)
    for key, more in sorted(excess.items(), key=lambda item: -item[1]):
        if more > (ALLOWED - 1) * there[key]:
            yield Repeated(key[0], key[1], here[key] * devices / there[key], more / total, more / devices, products)
