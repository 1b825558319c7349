"""Every dtype means what NumPy makes of it: conversions and functions of all its values, and programs of every kind of
op, which XLA's CPU compiler alone would refuse, get wrong or not survive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from samples import SAMPLES, Sample

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.core import dtypes
from meshwright.errors import DTypeError, MeshwrightError
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.lowering.narrow import BY_STEPS, computed_in
from meshwright.lowering.narrow_bits import BELOW_A_BYTE
from meshwright.ops.elementwise import table as E
from meshwright.ops.elementwise.chlo import mulhi
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.eager import single_op_jaxpr

ALL = list(dtypes._SHORT)
NARROW = [d for d in ALL if computed_in(d) != d]


def named(x: Any) -> str:
    return str(x)


def values_of(dtype: np.dtype) -> np.ndarray:
    """All values of a narrow dtype; of others some, the ends included."""
    if dtypes.is_bool(dtype):
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        low, high = (int(v) for v in (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max))
        return np.array([*range(low, high + 1)] if high < 256 else [low, 0, 3, 100, high]).astype(dtype)
    if dtype.itemsize == 1:
        return np.arange(2 ** dtypes.bit_width(dtype), dtype=np.uint8).view(dtype)
    return np.array([0.0, -0.0, 1, -1.5, 6, 3e4, np.inf, -np.inf, np.nan, 1e-3, 2.5, 3.5, 0.25]).astype(dtype)


def exactly(x: np.ndarray) -> np.ndarray:
    """Values in a type that holds them all: NumPy does not know all conversions of ml_dtypes."""
    if dtypes.is_inexact(x.dtype):
        return x.astype(np.complex128 if dtypes.is_complex(x.dtype) else np.float64)
    return np.array([int(v) for v in x.reshape(-1)], object).reshape(x.shape)


def converted(x: np.ndarray, to: np.dtype) -> tuple[np.ndarray, Any]:
    """What ``x`` is in another type, and where that says what it is."""
    wide = exactly(x)
    if dtypes.is_bool(to):
        return wide != 0, True
    wide = wide.real if dtypes.is_complex(x.dtype) and not dtypes.is_complex(to) else wide
    if not dtypes.is_integer(to):
        known = ~np.isnan(wide) if dtypes.is_inexact(x.dtype) and to == ml_dtypes.float4_e2m1fn else True
        if to == ml_dtypes.bfloat16 and not dtypes.has_zero(x.dtype):
            known = ~(wide < 2.0**-126)  # XLA takes others for 0
        return (wide if dtypes.is_inexact(x.dtype) else wide.astype(np.float64)).astype(to), known
    low, count = int(ml_dtypes.iinfo(to).min), 2 ** dtypes.bit_width(to)
    known = (wide >= low) & (wide < low + count) if dtypes.is_inexact(x.dtype) else np.full(x.shape, True)
    whole = [int(v) if k else 0 for v, k in zip(wide, known)]
    return np.array([(v - low) % count + low for v in whole], object), known


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Equal, zeros in sign, too; NaN beside NaN."""
    if not dtypes.is_inexact(got.dtype):
        return np.asarray(exactly(got) == (exactly(want) if want.dtype != object else want), bool)
    a, b = exactly(got), exactly(want)
    signs = (np.signbit(a.real) == np.signbit(b.real)) & (np.signbit(a.imag) == np.signbit(b.imag))
    return np.where(np.isnan(a) | np.isnan(b), np.isnan(a) & np.isnan(b), (a == b) & signs)


@pytest.mark.parametrize("source", ALL, ids=named)
def test_conversions(source: np.dtype) -> None:
    with mw.enable_x64(True), np.errstate(all="ignore"):
        x, targets = values_of(source), [d for d in ALL if d != source]
        results = mw.jit(lambda x: [x.astype(d) for d in targets])(mnp.asarray(x))
        for got, to in zip(results, targets):
            want, known = converted(x, to)
            right = same(np.asarray(got), want) | ~np.asarray(known)
            assert right.all(), f"{to}: of {x[~right]}: {np.asarray(got)[~right]}, not {want[~right]}"


def rounded(y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return converted(y.reshape(-1), dtype)[0].reshape(y.shape) if y.dtype == computed_in(dtype) else y


def is_open(wide: np.ndarray, dtype: np.dtype) -> Any:
    """Which values of the wide type XLA may round to either of two."""
    if wide.dtype != computed_in(dtype):
        return False
    if not dtypes.has_zero(dtype):
        return np.abs(wide) < 2.0**-126  # numbers below float32's it takes for 0
    return dtype == ml_dtypes.float4_e2m1fn and np.isnan(wide)  # as which there is no code


#: tested below, or of other types
ELSEWHERE = {*BELOW_A_BYTE, "nextafter", "zeta", "polygamma", "complex"}


def rows(dtype: np.dtype) -> Iterator[Any]:
    kind = "f" if dtypes.is_float(dtype) else "i" if dtypes.is_signed(dtype) else "u"
    for op in vars(E).values():
        if isinstance(op, E.Elementwise) and op.accepts and all(kind in a for a in op.accepts) and len(op.accepts) < 3:
            if op.name not in ELSEWHERE:
                yield op


@pytest.mark.parametrize("dtype", NARROW, ids=named)
def test_functions_of_all_values(dtype: np.dtype) -> None:
    """Those of the wide type, rounded."""
    x = values_of(dtype)
    few = x[:: max(1, len(x) // 16)]
    ones, pairs = (x,), [v.reshape(-1) for v in np.meshgrid(few, few)]
    ops = list(dict.fromkeys(rows(dtype)))

    def program(*xs: Any) -> list[Any]:
        return [op(*xs[: len(op.accepts)]) if len(op.accepts) == 1 else op(*xs[1:]) for op in ops]

    args = [*ones, *pairs]
    wide = [exactly(v).astype(computed_in(dtype)) for v in args]
    with np.errstate(all="ignore"), mw.enable_x64(True):
        for op, got, want in zip(ops, mw.jit(program)(*args), mw.jit(program)(*wide), strict=True):
            got, want = np.asarray(got), np.asarray(want)
            unknown = is_open(want, dtype)
            want = rounded(want, dtype)
            right = same(got, want) | unknown
            if dtypes.is_float(dtype) and got.dtype == dtype:  # rounding may go either way next to the middle
                right |= np.abs(got.view(np.int8).astype(int) - want.view(np.int8)) <= 1
            assert right.all(), f"{op.name}: {got[~right]}, not {want[~right]}"


def test_bits() -> None:
    """Functions that count or move bits do it in as many as there are."""
    for name, width in (("int2", 2), ("uint2", 2), ("int4", 4), ("uint4", 4)):
        x = values_of(dtypes.as_dtype(name))
        a, b = (v.reshape(-1) for v in np.meshgrid(x, x[exactly(x) >= 0]))
        ones = mw.jit(lambda x: [E.population_count(x), E.clz(x), E.shift_right_logical(x, x.dtype.type(1))])(x)
        bits = [int(v) % 2**width for v in x]
        want = [[v.bit_count() for v in bits], [width - v.bit_length() for v in bits], [v >> 1 for v in bits]]
        assert [[int(v) % 2**width for v in np.asarray(y)] for y in ones] == want
        pairs = [(int(v), int(s)) for v, s in zip(a, b)]
        signs = [v - 2**width if v >= 2 ** (width - 1) else v for v, _ in pairs]
        two = mw.jit(lambda a, b: [E.shift_left(a, b), E.shift_right_arithmetic(a, b), mulhi(a, b)])(a, b)
        want = [
            [v << s for v, s in pairs],
            [v >> s for v, (_, s) in zip(signs, pairs)],
            [v * s >> width for v, s in pairs],
        ]
        for y, expected in zip(two, want, strict=True):
            assert [int(v) % 2**width for v in np.asarray(y)] == [v % 2**width for v in expected]
    for dtype in (d for d in NARROW if dtypes.is_float(d) and dtypes.has_zero(d)):
        a, b = (v.reshape(-1) for v in np.meshgrid(values_of(dtype), values_of(dtype)[::9]))
        with np.errstate(all="ignore"):
            want = np.nextafter(a, b)
        right = same(np.asarray(E.nextafter(a, b)), want)
        assert right.all(), f"{dtype}: after {a[~right]} to {b[~right]}: {np.asarray(E.nextafter(a, b))[~right]}"


#: run where XLA optimizes, which tests do not ask for; each of these ended XLA's compiler, or was refused by it
PROGRAM = """
import sys
import ml_dtypes, numpy as np
import meshwright as mw, meshwright.numpy as mnp
from meshwright import lax
dtype, wide = np.dtype(getattr(ml_dtypes, sys.argv[1])), np.dtype(sys.argv[2])
low = 0 if sys.argv[1].startswith("uint") else -1
x = (np.arange(21) * 5 % 3 + low).reshape(7, 3).astype(dtype)
at = np.array(1, np.uint8 if sys.argv[1].startswith("float") else dtype)
def program(x, at):
    one, two = mnp.sort(x, 0), mnp.concatenate([x[2:], x[:2]])
    body = lambda a, b: lax.max(a, b)
    return {
        "concatenate": [two, mnp.roll(x, 3, 0), mnp.stack([x, x], 1), mnp.pad(x, 1)],
        "sort": [one, mnp.argsort(x, 0), lax.sort((x, two), num_keys=2), lax.top_k(x.T, 3)],
        "products": [mnp.einsum("ij,ik->jk", x[:3], x[:3]) - x[:3], lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "VALID")],
        "reduce": [x.max(0), x.argmin(1), lax.reduce(x, np.array(low, x.dtype), body, (1,)), lax.cummax(x, 0)],
        "windows": lax.reduce_window(x, np.array(low, x.dtype), body, (2, 2), (1, 1), "SAME"),
        "loops": [lax.scan(lambda c, r: (lax.min(c, r), mnp.concatenate([c, r])), x[0], x),
                  lax.fori_loop(0, 3, lambda i, v: mnp.roll(v, 1, 0), x), lax.cond(x[0, 0] == x[1, 1], mnp.sort, mnp.flip, x)],
        "places": [x.at[mnp.array([1, 3])].set(x[:2]), x.at[2].max(x[3]), x[mnp.array([4, 0])], mnp.where(x > 0, x, one)],
        "index": [lax.dynamic_slice(mnp.arange(300.0), (at,), (2,)), lax.dynamic_update_slice(mnp.zeros(300), mnp.ones(2), (at,)),
                  mnp.arange(300.0)[at]],
    }
got, want = (mw.jit(program)(v, i) for v, i in ((x, at), (x.astype(np.int8).astype(wide), at.astype(np.int8).astype(np.int32))))
for name in want:
    for a, b in zip(mw.tree.leaves(got[name]), mw.tree.leaves(want[name]), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        kept = a.dtype == (dtype if b.dtype == wide else b.dtype) or name == "index"
        b = b.astype(np.int64) if sys.argv[1] == "float4_e2m1fn" or b.dtype != wide else ((b.astype(int) - 2 * low) % 4 + 2 * low)
        assert kept and np.array_equal(a.astype(np.int64), b), f"{name}: {a.tolist()}, not {b.tolist()}"
print("as wide")
"""  # noqa: E501


@pytest.mark.parametrize(
    "names",
    [("uint2", "uint8"), pytest.param(("int2", "int8"), marks=pytest.mark.slow),
     pytest.param(("float4_e2m1fn", "float32"), marks=pytest.mark.slow)],
)  # fmt: skip
def test_programs_of_narrow_types(names: tuple[str, str]) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    run = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, env=clean)
    assert run.stdout == "as wide\n", run.stderr[-2000:]


PLACES = {
    "row": lambda x: x[1], "last": lambda x: x[-1], "take": lambda x: mnp.take(x, np.array([0, 5, 9]), 0),
    "dynamic": lambda x: lax.dynamic_slice(x, (3, 0), (1, 3)), "join": lambda x: mnp.concatenate([x, x[:2]]),
    "roll": lambda x: mnp.roll(x, 3, 0), "pad": lambda x: lax.pad(x, x[0, 0], ((1, 2, 0), (0, 0, 0))),
}  # fmt: skip
MESH = mw.make_mesh((4, 2), ("x", "y"))


@pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")
@pytest.mark.parametrize("spec", [P("x"), P(("x", "y")), P("y", "x")], ids=["x", "xy", "y,x"])
@pytest.mark.parametrize("dtype", ALL, ids=named)
def test_what_moves_on_a_mesh(dtype: np.dtype, spec: P) -> None:
    """Elements are on a mesh what they are on one device, to the bit; or the dtype, which has no 0, is named."""
    values = np.array([0.0, -0.0, 1, 2, 3, 4, 1, 0, 2, 1] * 3).reshape(10, 3)
    with mw.enable_x64(True), np.errstate(all="ignore"):
        x = mnp.asarray((values if dtypes.is_inexact(dtype) else np.abs(values) % 2).astype(dtype))
        program = mw.jit(lambda x: [f(x) for f in PLACES.values()])
        split = mw.jit(lambda x: [f(x) for f in PLACES.values()], in_shardings=NamedSharding(MESH, spec))
        if not dtypes.has_zero(dtype):
            with pytest.raises(DTypeError, match="float8_e8m0fnu has no 0"):
                split(x)
            return
        for name, got, want in zip(PLACES, split(x), program(x), strict=True):
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), f"{name}: {got}, not {want}"


def small(x: np.ndarray, least: int) -> np.ndarray:
    """Four values from ``least`` on."""
    return (np.round(np.abs(x.real.astype(np.float64)) * 7) % 4 + least).astype(np.int8)


def compiled(op: Op, args: list[np.ndarray]) -> list[np.ndarray]:
    jaxpr = single_op_jaxpr(op, [typeof(x) for x in args])
    return [np.asarray(y) for y in compile_jaxpr(jaxpr, op.name, [default_sharding()] * len(jaxpr.out_avals))(args)]


def with_type(sample: Sample, dtype: np.dtype) -> list[list[np.ndarray]]:
    """Operands of which those like the first are of a narrow type, and of its wide one; none where it is refused."""
    old, low = sample.args[0].dtype, 0 if dtypes.is_unsigned(dtype) else 1 if not dtypes.has_zero(dtype) else -2
    both = [
        [small(x, low).astype(dtype).astype(d) if x.dtype == old else x for x in sample.args]
        for d in (dtype, computed_in(dtype))
    ]
    try:
        for args in both:
            single_op_jaxpr(sample.op, [typeof(x) for x in args])
    except MeshwrightError:
        return []
    return both


#: what the least and the greatest integers of a type stand for, and ops of other types
OTHERWISE = {"gather", "select_and_scatter", "map", "mulhi", "nextafter", *BELOW_A_BYTE}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW, ids=named)
def test_every_op(dtype: np.dtype) -> None:
    """That of the wide type, rounded; moves to the bit."""
    found = []
    for sample in SAMPLES:
        typed = any(isinstance(v, np.dtype) for v in sample.op.params.values()) or sample.op.holds_jaxprs
        steps = dtypes.is_float(dtype) and sample.op.name in BY_STEPS  # see test_each_step_is_rounded
        if typed or steps or not sample.args or sample.op.name in OTHERWISE or not (both := with_type(sample, dtype)):
            continue
        with np.errstate(all="ignore"), mw.enable_x64(True):
            for got, want in zip(*(compiled(sample.op, args) for args in both), strict=True):
                unknown = is_open(want, dtype)
                want = rounded(want, dtype) if got.dtype == dtype else want
                right = same(got, want) | unknown
                if dtypes.is_float(dtype) and got.dtype == dtype:
                    right |= np.abs(got.view(np.int8).astype(int) - want.view(np.int8)) <= 1
                if not right.all():
                    found.append(f"{sample.id}: {got[~right]}, not {want[~right]}")
    mw.clear_caches()
    assert not found, "\n".join(found)


def test_exponents_without_64_bit_types():
    """``float8_e8m0fnu`` is computed in float64, whatever ``enable_x64`` says."""
    x = np.array([1, 2, 0.5], np.float32)
    narrow = mw.numpy.asarray(x).astype("float8_e8m0fnu")
    assert (narrow + narrow).astype("float32").tolist() == [2, 4, 1]
    assert mw.jit(mw.numpy.maximum)(narrow, narrow[::-1]).astype("float32").tolist() == [1, 2, 1]


STEPS = {
    "cumsum": lambda lib, x: lib.cumsum(x, 0), "cumsum from the end": lambda lib, x: lib.cumsum(x, 1, reverse=True),
    "cumprod": lambda lib, x: lib.cumprod(x, 0), "cummax": lambda lib, x: lib.cummax(x, 0),
    "sum": lambda lib, x: lib.reduce(x, np.zeros((), x.dtype), lib.add, (0,)),
    "product": lambda lib, x: lib.reduce(x, np.ones((), x.dtype), lib.mul, (1,)),
    "windows": lambda lib, x: lib.reduce_window(x, np.zeros((), x.dtype), lib.add, (3, 1), (1, 1), "SAME"),
    "scan": lambda lib, x: lib.associative_scan(lib.add, x),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_rounded(name: str) -> None:
    """Sums of floats that hold no sum of their own numbers, as JAX has XLA make them."""
    kinds = [ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2]
    numbers = np.random.default_rng(0).normal(size=(40, 5)) * 0.7
    xs = [numbers.astype(np.float32).astype(d) for d in kinds]
    got = mw.jit(lambda xs: [STEPS[name](lax, x) for x in xs])(xs)
    want = jax.jit(lambda xs: [STEPS[name](jax.lax, x) for x in xs])(xs)
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        if name == "scan":  # JAX joins parts by adding zeros to them, which makes 0 of -0
            a = a + np.zeros((), a.dtype)
        assert same(a, b).all(), (a, b)


def test_sorts_of_exponents_without_64_bit_types():
    x = np.array([4, 0.5, 2, np.nan, 1, 64, 2.0**-127], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    for f in (mnp.sort, lambda v: lax.sort(v, is_stable=False), lambda v: mnp.maximum(mnp.sort(v), mnp.sort(v))):
        got = np.asarray(f(mnp.asarray(x))).astype(np.float32)
        np.testing.assert_array_equal(got, np.sort(x.astype(np.float32)))
