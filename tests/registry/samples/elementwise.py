"""Samples of elementwise ops: every row of the table on every kind of operand that it accepts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from meshwright.ir.op import REGISTRY
from meshwright.ops.elementwise import table as E
from meshwright.ops.elementwise.clamp import Clamp
from meshwright.ops.elementwise.library import SincDerivative, floor_remainder, logaddexp, sinc, straight_through
from meshwright.ops.random.bits import Threefry2x32
from meshwright.ops.random.gamma import RandomGamma
from meshwright.ops.special.bessel import BesselI, BesselIe, bessel_i0e, bessel_i1e
from meshwright.ops.special.incomplete_beta import betainc
from meshwright.ops.special.incomplete_gamma import gamma_density, igamma, igamma_grad_a, igammac, random_gamma_grad
from samples.sample import Sample, bools, complexes, floats, ints, sample

#: where a float op is defined and smooth
DOMAINS: dict[str, tuple[float, float]] = {
    "log": (0.2, 4), "log1p": (-0.8, 3), "sqrt": (0.1, 4), "rsqrt": (0.1, 4), "cbrt": (0.1, 4), "asin": (-0.9, 0.9),
    "acos": (-0.9, 0.9), "acosh": (1.1, 4), "atanh": (-0.9, 0.9), "tan": (-1.2, 1.2), "erf_inv": (-0.9, 0.9),
    "lgamma": (0.3, 4), "digamma": (0.3, 4), "pow": (0.2, 2.5), "div": (0.3, 3), "rem": (0.3, 3), "atan2": (0.2, 3),
}  # fmt: skip
#: rows with operands of a special kind; below they have samples of their own
SPECIAL = {"polygamma", "zeta", "shift_left", "shift_right_logical", "shift_right_arithmetic"}
#: rows whose derivative is not that of their values
NOT_SMOOTH = {"stop_gradient", "nextafter"}


def rows() -> Iterator[E.Elementwise]:
    """The rows of the table, which have no parameters."""
    for cls in REGISTRY.values():
        if issubclass(cls, E.Elementwise) and cls.accepts and not dataclasses.fields(cls):
            if cls.__module__ == E.__name__ and cls is not E.SelectN:
                yield cls()


def _operands(op: E.Elementwise, kind: str, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    low, high = DOMAINS.get(op.name, (-1.93, 2.11))
    first_int = 1 if op.name in ("div", "rem", "pow") else -7
    made = []
    for i, shape in enumerate(shapes):
        match kind:
            case "b":
                made.append(bools(*shape, seed=i))
            case "i":
                made.append(ints(*shape, low=min(first_int, 1), seed=i))
            case "u":
                made.append(ints(*shape, low=1, seed=i, dtype=np.uint32))
            case "f":
                made.append(floats(*shape, low=low, high=high - 0.037 * i, seed=i))
            case _:
                made.append(complexes(*shape, low=0.2 if low > 0 else -0.8, high=0.9 - 0.037 * i, seed=i))
    return made


def _row_samples(op: E.Elementwise) -> Iterator[Sample]:
    kinds = [k for k in "fiubc" if all(k in accepted for accepted in op.accepts)]
    for number, kind in enumerate(kinds):
        shape = (5, 3) if number % 2 == 0 else (6, 4)
        smooth = op.name not in NOT_SMOOTH
        yield sample(op, *_operands(op, kind, [shape] * op.arity), smooth=smooth)
    for shapes in [[()]] if op.arity == 1 else [[(6,), ()], [(), (2, 5)]]:
        yield sample(op, *_operands(op, kinds[0], shapes), smooth=op.name not in NOT_SMOOTH)


def _selects() -> Iterator[Sample]:
    select = E.SelectN()
    yield sample(select, bools(5, 3), floats(5, 3, seed=1), floats(5, 3, seed=2))
    yield sample(select, bools(), floats(5, 3, seed=1), floats(5, 3, seed=2))
    yield sample(select, bools(4, 6), floats(seed=1), floats(4, 6, seed=2))
    yield sample(select, bools(4, 6), ints(4, 6, seed=1), ints(seed=2))
    yield sample(select, bools(), floats(seed=1), floats(seed=2))
    yield sample(select, ints(5, 3, low=0) % 3, *(floats(5, 3, seed=i) for i in range(3)), label="three")
    yield sample(Clamp(), floats(5, 3, seed=1) / 5 - 1.2, floats(5, 3), floats(5, 3, seed=2) / 5 + 1.2)
    yield sample(Clamp(), np.float32(-0.5), floats(6, 4), np.float32(0.8))
    yield sample(Clamp(), np.int32(-2), ints(6, 4), ints(6, 4, low=0))


def _with_parameters() -> Iterator[Sample]:
    for power in (-2, 0, 2, 3, 7):
        yield sample(E.IntegerPow(power), floats(5, 3, low=0.4), label=str(power))
    yield sample(E.IntegerPow(3), ints(6, 4))
    for source, target in (
        (floats(5, 3, dtype=np.float16), np.float32), (floats(5, 3), np.float16),
        (floats(6, 4, low=-9, high=9), np.int32),
        (ints(5, 3), np.float32), (bools(5, 3), np.int32), (ints(5, 3), np.bool_), (floats(5, 3), np.complex64),
        (complexes(5, 3), np.float32), (ints(6, 4, low=0), np.uint8), (floats(), np.float16),
    ):  # fmt: skip
        exact = target == np.complex64
        yield sample(E.ConvertElementType(np.dtype(target)), source, label=np.dtype(target).name, smooth=exact)
    yield sample(E.ReducePrecision(8, 7), floats(5, 3), smooth=False)
    yield sample(E.BitcastConvert(np.dtype(np.uint32)), floats(5, 3), smooth=False)
    yield sample(E.BitcastConvert(np.dtype(np.float32)), ints(6, 4, low=2**30), smooth=False)


def _special() -> Iterator[Sample]:
    yield sample(E.polygamma, (ints(5, 3, low=0) % 3).astype(np.float32), floats(5, 3, low=0.4), fixed=(0,))
    yield sample(E.zeta, floats(5, 3, low=1.6, high=4), floats(5, 3, low=0.4, seed=1), fixed=(0,))
    for shift in (E.shift_left, E.shift_right_logical, E.shift_right_arithmetic):
        yield sample(shift, ints(5, 3), ints(5, 3, low=0, seed=1) % 7)
        yield sample(shift, ints(6, 4, low=9, dtype=np.uint32), np.uint32(3))
    words = [ints(5, 3, low=3, seed=i, dtype=np.uint32) for i in range(4)]
    yield sample(Threefry2x32(), *words)
    yield sample(Threefry2x32(), np.uint32(7), np.uint32(9), *words[2:])
    yield sample(RandomGamma(), *words[:2], floats(5, 3, low=0.3, high=9), smooth=False)  # tests/random: JAX's slopes
    yield sample(RandomGamma(True), np.uint32(7), np.uint32(9), floats(5, 3, low=0.3, high=9), smooth=False)
    for op in (bessel_i0e, bessel_i1e, BesselIe(3), BesselI(0), BesselI(3), SincDerivative(0), SincDerivative(3)):
        yield sample(op, floats(5, 3, low=0.1, high=9))
    yield sample(sinc, complexes(5, 3))
    yield sample(straight_through, floats(5, 3), floats(5, 3, seed=1), smooth=False)
    yield sample(floor_remainder, floats(5, 3, low=0.2, high=1.2), floats(5, 3, low=-3, high=-1.3, seed=1))
    yield sample(logaddexp, floats(5, 3, low=-4, high=4), floats(5, 3, low=-4, high=4, seed=1))
    yield sample(logaddexp, complexes(5, 3), complexes(5, 3, seed=1))
    two = floats(5, 3, low=0.3, high=9), floats(5, 3, low=0.1, high=8, seed=1)
    for op in (igamma, igammac, gamma_density):
        yield sample(op, *two, fixed=(0,))  # the second derivative by the parameter is not known
    yield sample(igamma_grad_a, *two, fixed=(0,))
    yield sample(random_gamma_grad, *two, smooth=False)
    yield sample(betainc, *two, floats(5, 3, low=0.05, high=0.95, seed=2), fixed=(0, 1))


def _edges() -> Iterator[Sample]:
    """Sizes 0 and 1, rank 3 and no dimensions at all, for one unary and one binary op."""
    yield sample(E.sin, floats(0, 3))
    yield sample(E.sin, floats(1, 4))
    yield sample(E.sin, floats(3, 2, 5))
    yield sample(E.mul, floats(), floats(seed=1))
    yield sample(E.mul, floats(3, 0), floats(3, 0))
    yield sample(E.add, floats(2, 1, 4), floats(2, 1, 4, seed=1))


def elementwise_samples() -> list[Sample]:
    """All of them."""
    found = [s for op in rows() if op.name not in SPECIAL for s in _row_samples(op)]
    return [*found, *_selects(), *_with_parameters(), *_special(), *_edges()]
