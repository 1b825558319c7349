"""Operators, methods and properties of arrays and tracers."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy_oracle import assert_same, check_functions, sample, traced

import meshwright.numpy as mnp
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentTypeError, ShapeError, TracerArrayConversionError, TracerBoolConversionError
from meshwright.ir.tracing import JaxprTracer, Tracer, trace_to_jaxpr
from meshwright.transforms.autodiff import grad
from meshwright.transforms.batching import BatchTracer
from meshwright.transforms.jvp import JVPTracer
from meshwright.transforms.tape import TapeTracer

X = sample((3, 4))
WHOLE = np.arange(1, 13).reshape(3, 4)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS], ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", [2.5, 3, X[0] + 3, np.float32(1.5), np.arange(1, 5)], ids=lambda v: type(v).__name__)
def test_operators_both_ways(op: Any, other: Any) -> None:
    """Also with NumPy arrays and scalars on the left, which must leave the operation to us."""
    for f, g in ((lambda x: op(x, other), lambda x: op(x, other)), (lambda x: op(other, x), lambda x: op(other, x))):
        check_functions(lambda x, f=f: f(mnp.asarray(x)), lambda x, g=g: g(jnp.asarray(x)), X)


@pytest.mark.parametrize("op", BITS, ids=lambda op: op.__name__)
def test_bit_operators(op: Any) -> None:
    check_functions(lambda x: op(mnp.asarray(x), 3), lambda x: op(jnp.asarray(x), 3), WHOLE)
    row = np.array([1, 2, 3, 4], np.int32)
    check_functions(lambda x: op(row, mnp.asarray(x)), lambda x: op(row, jnp.asarray(x)), WHOLE)


def test_other_operators() -> None:
    for f in (
        lambda x: -x, lambda x: +x, lambda x: abs(x), lambda x: x**2, lambda x: x**-1, lambda x: 2.0**x,
        lambda x: x**0.5,
        lambda x: x @ x.T, lambda x: np.ones((2, 3), np.float32) @ x, lambda x: divmod(x, 0.5), lambda x: round(x, 1),
        lambda x: divmod(3.0, x),
    ):  # fmt: skip
        y = np.abs(X) + np.float32(0.5)
        check_functions(lambda x, f=f: f(mnp.asarray(x)), lambda x, f=f: f(jnp.asarray(x)), y)
    check_functions(lambda x: ~mnp.asarray(x), lambda x: ~jnp.asarray(x), WHOLE)


def test_numpy_on_the_left_of_a_tracer_is_differentiable() -> None:
    got = grad(lambda x: (np.arange(4, dtype=np.float32) * x).sum() + (np.float32(2) * x).sum())(mnp.ones(4))
    assert got.tolist() == [2, 3, 4, 5]


METHODS: list[tuple[str, tuple[Any, ...]]] = [
    ("reshape", (4, 3)), ("reshape", ((2, -1),)), ("reshape", (-1,)), ("transpose", ()), ("transpose", (1, 0)),
    ("ravel", ()),
    ("flatten", ()), ("astype", ("int32",)), ("sum", ()), ("sum", (0,)), ("mean", (1,)), ("max", (0,)),
    ("min", ()), ("prod", (1,)),
    ("var", ()), ("std", (0,)), ("any", ()), ("all", (1,)), ("argmax", (1,)), ("argmin", (0,)), ("dot", (X.T,)),
    ("clip", (-1, 1)),
    ("round", (1,)), ("conj", ()), ("swapaxes", (0, 1)), ("repeat", (2,)), ("take", (np.array([1, 0]),)),
    ("trace", ()),
    ("diagonal", ()), ("cumsum", (0,)), ("cumprod", (1,)), ("sort", ()), ("argsort", (0,)), ("ptp", ()), ("copy", ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), METHODS, ids=lambda v: v if isinstance(v, str) else "")
def test_methods(name: str, args: Any) -> None:
    check_functions(
        lambda x: getattr(mnp.asarray(x), name)(*args), lambda x: getattr(jnp.asarray(x), name)(*args), X
    )  # fmt: skip


def test_no_attribute_of_a_tracer_hides_a_method() -> None:
    for kind in (JaxprTracer, JVPTracer, BatchTracer, TapeTracer):
        assert not {*kind.__slots__, *Tracer.__slots__} & {name for name, _ in METHODS}


def test_properties() -> None:
    z = (X + 1j * X[::-1]).astype(np.complex64)
    for name in ("T", "mT", "real", "imag"):
        check_functions(lambda x, n=name: getattr(mnp.asarray(x), n), lambda x, n=name: getattr(jnp.asarray(x), n), z)
    x = mnp.asarray(X)
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, x.dtype) == ((3, 4), 2, 12, 4, 48, np.float32)
    assert x.__array_namespace__() is mnp
    assert x.view("int32").tolist() == X.view("int32").tolist()
    with pytest.raises(ShapeError, match="two dimensions"):
        _ = x[0].mT


def test_sequences() -> None:
    x = mnp.asarray(X)
    assert len(x) == 3
    assert [row.tolist() for row in x] == X.tolist()
    assert X[1, 2].item() in x and 99.0 not in x
    first, *rest = x
    assert first.tolist() == X[0].tolist() and len(rest) == 2
    assert_same(traced(lambda x: [a + b for a, b in zip(x, x)], X), list(X + X))
    assert_same(traced(lambda x: len(x) * x, X), 3 * X)
    for f in (len, list):
        with pytest.raises(ArgumentTypeError, match="0-d"):
            f(mnp.asarray(1.0))
        with pytest.raises(ArgumentTypeError, match="0-d"):
            traced(lambda x, f=f: f(x[0, 0]), X)


def test_operands_that_are_no_arrays_are_refused() -> None:
    for bad in ([1, 2, 3], "a", None, object(), {}):
        for op in (operator.add, operator.mul, operator.matmul, operator.lt):
            with pytest.raises(TypeError):
                op(mnp.ones(3), bad)
            with pytest.raises(TypeError):
                traced(lambda x, op=op, bad=bad: op(x, bad), X)
    assert (mnp.ones(3) == None) is False  # noqa: E711


def test_other_types_get_their_turn() -> None:
    class Meters:
        def __radd__(self, other: Any) -> str:
            return "added"

        def __mul__(self, other: Any) -> str:
            return "multiplied"

    assert mnp.ones(3) + Meters() == "added"
    assert Meters() * mnp.ones(3) == "multiplied"


def test_python_conversions() -> None:
    assert float(mnp.asarray(2.5)) == 2.5 and int(mnp.asarray(3)) == 3 and bool(mnp.asarray([True]))
    assert [10, 20, 30][mnp.asarray(1)] == 20
    with pytest.raises(ShapeError, match="one element"):
        bool(mnp.ones(3))
    with pytest.raises(TracerBoolConversionError, match="where"):
        traced(lambda x: 1 if x.sum() > 0 else 2, X)
    with pytest.raises(TracerArrayConversionError, match=r"meshwright\.numpy"):
        traced(lambda x: np.sin(np.asarray(x)), X)


def test_the_classic_program() -> None:
    """No op is recorded for the scalars: the same program at every shape."""
    for shape in ((), (3,)):
        text = "[" + ",".join(map(str, shape)) + "]"
        jaxpr = trace_to_jaxpr(lambda x: [1 / (1 + mnp.exp(-x))], [ShapedArray(shape, np.dtype("float32"))])
        assert str(jaxpr) == "\n".join(
            [
                f"{{ lambda ; a:f32{text}. let",
                f"    b:f32{text} = neg a",
                f"    c:f32{text} = exp b",
                f"    d:f32{text} = add 1.0:f32[] c",
                f"    e:f32{text} = div 1.0:f32[] d",
                "  in (e,) }",
            ]
        )
