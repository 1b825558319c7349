"""Creation, reductions, shapes, products, sorting and statistics against jax.numpy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_oracle import assert_same, check, check_functions, sample, traced

import meshwright.numpy as mnp
from meshwright.core.config import config
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationTypeError,
    DTypeError,
    DTypeWarning,
    ShapeError,
)
from meshwright.ir.tracing import typeof
from meshwright.transforms.autodiff import grad

X = sample((3, 4, 5))


# --- creation -----------------------------------------------------------------------------------------------
CREATION: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("zeros", ((2, 3),), {}), ("ones", (4,), {"dtype": "int32"}), ("full", ((2, 2), 7), {}), ("full", (3, 2.5), {}),
    ("full", ((2, 3), np.arange(3)), {}), ("zeros_like", (np.arange(3),), {}), ("ones_like", (X,), {"dtype": "uint8"}),
    ("full_like", (np.arange(3), 2.9), {}), ("arange", (5,), {}), ("arange", (2, 9, 3), {}), ("arange", (5, 0, -2), {}),
    ("arange", (0.0, 1.0, 0.25), {}), ("arange", (3,), {"dtype": "float32"}), ("linspace", (0, 1, 7), {}),
    ("linspace", (2.0, -3.0, 5), {"endpoint": False}), ("linspace", (np.zeros(2), np.arange(2.0), 3), {"axis": 1}),
    ("linspace", (0, 10, 4), {"dtype": "int32"}), ("logspace", (0, 2, 4), {}), ("geomspace", (1.0, 100.0, 5), {}),
    ("eye", (3,), {}), ("eye", (2, 4), {"k": 1, "dtype": "int32"}), ("identity", (3,), {}), ("tri", (3, 4, -1), {}),
    ("meshgrid", (np.arange(2), np.arange(3)), {}), ("meshgrid", (np.arange(2), np.arange(3)), {"indexing": "ij"}),
    ("meshgrid", (np.arange(2), np.arange(3)), {"sparse": True}), ("diag", (np.arange(3),), {"k": -1}),
    ("diag", (X[0],), {"k": 1}), ("diagflat", (np.arange(4).reshape(2, 2),), {}), ("tril", (X,), {"k": 1}),
    ("triu", (X,), {"k": -1}), ("vander", (np.arange(3),), {}), ("vander", (np.arange(3.0), 4), {"increasing": True}),
    ("indices", ((2, 3),), {}), ("diagonal", (X,), {"offset": -1, "axis1": 2, "axis2": 0}), ("asarray", (1.5,), {}),
    ("asarray", ([[1, 2], [3, 4]],), {}), ("asarray", (True,), {}), ("array", ([1.0, 2],), {"ndmin": 3}),
    ("array", ([[True], [False]],), {"dtype": "float32"}), ("asarray", (np.arange(3, dtype=np.int64),), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), CREATION, ids=lambda v: str(v)[:30])
def test_creation(name: str, args: Any, kwargs: Any) -> None:
    check(name, *args, **kwargs)


def test_array_and_asarray_copy_unless_told_to_share() -> None:
    spare = np.zeros(32, np.float32)
    start = -spare.ctypes.data % 64 // 4  # memory is shared if it is aligned to 64 bytes
    source = spare[start : start + 4]
    source[:] = np.arange(4)
    copied, shared = (mnp.array(source), mnp.asarray(source)), mnp.asarray(source, copy=False)
    source[0] = 9
    assert [c.tolist() for c in copied] == [[0, 1, 2, 3]] * 2
    assert np.shares_memory(np.asarray(shared), source)
    assert mnp.asarray(shared) is shared
    assert mnp.array(shared) is not shared


def test_array_of_arrays_and_tracers() -> None:
    a = mnp.asarray([1, 2])
    assert_same(mnp.array([a, [3.0, 4.0]]), jnp.array([jnp.asarray([1, 2]), [3.0, 4.0]]))
    assert_same(
        traced(lambda x: mnp.array([[x[0], 1.0], [2.0, x[1]]]), X[0, 0]),
        np.array([[X[0, 0, 0], 1], [2, X[0, 0, 1]]], "f"),
    )


def test_creation_errors() -> None:
    with pytest.raises(ArgumentError, match="does not fit in int32"):
        mnp.array([2**40])
    with pytest.raises(ArgumentError, match="cannot make an array of this sequence"):
        mnp.array([[1, 2], [3]])
    with pytest.raises(ArgumentTypeError, match="expected numbers or bools"):
        mnp.array(["a", "b"])
    with pytest.raises(DTypeError, match="dtype"):
        mnp.zeros(3, "no such type")
    with pytest.raises(ArgumentError, match="must not be negative"):
        mnp.zeros((2, -1))
    with pytest.raises(ConcretizationTypeError, match="arange: stop decides the shape"):
        traced(lambda n: mnp.arange(0, n), np.array(3))
    with pytest.warns(DTypeWarning, match="enable_x64"):
        assert mnp.zeros(2, "float64").dtype == np.float32
    with config.override("enable_x64", True):
        assert mnp.zeros(2).dtype == np.float64
        assert (mnp.arange(2) + 1.5).dtype == np.float64


def test_from_elsewhere() -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_same(mnp.from_dlpack(source), source)
    assert_same(mnp.frombuffer(source.tobytes(), "float32"), source.ravel())
    assert np.from_dlpack(mnp.asarray(source)).tolist() == source.tolist()
    assert mnp.asarray(memoryview(b"abc")).tolist() == [97, 98, 99]


# --- reductions ---------------------------------------------------------------------------------------------
REDUCTIONS = "sum prod max min mean var std any all nansum nanprod nanmax nanmin nanmean nanvar nanstd ptp".split()


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_reductions(name: str, dtype: str) -> None:
    x = sample((3, 4, 2), dtype)
    if name.startswith("nan") and dtype == "float32":
        x[1, 2, 0] = np.nan
    check(name, x)
    check(name, x, axis=1)
    check(name, x, axis=(0, -1), keepdims=True)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "max"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
def test_narrow_reductions(name: str, dtype: Any) -> None:
    check(name, sample((4, 6), dtype), axis=0)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std"])
def test_reductions_where(name: str) -> None:
    flags = sample((3, 4, 5), "bool")
    check(name, X, axis=1, where=flags)
    check(name, X, axis=(0, 2), where=flags[:, :, :1])


def test_more_reductions() -> None:
    check("max", X, axis=1, initial=0.5)
    check("min", X, initial=9, where=X > 0)
    check("sum", X, dtype="int32")
    check("sum", X, axis=(), keepdims=True)
    check("sum", np.zeros((0, 3), "f"), axis=0)
    check("count_nonzero", np.arange(6).reshape(2, 3) % 2, axis=0)
    check("var", X, ddof=1, axis=0)
    check("var", X.astype(complex), axis=1)
    check("average", X, axis=1, weights=np.arange(4.0))
    for name in ("argmax", "argmin", "nanargmax", "nanargmin"):
        check(name, X, axis=1)
        check(name, X)
        check(name, X, axis=0, keepdims=True)
    check("all", np.array([[1, 0], [2, 3]]), axis=1)


def test_reduction_errors() -> None:
    with pytest.raises(ArgumentError, match="sum: axis 3 is out of range for an array of 3 dimensions"):
        mnp.sum(X, 3)
    with pytest.raises(ArgumentError, match="names a dimension twice"):
        mnp.sum(X, (0, -3))
    with pytest.raises(ArgumentError, match="no max of zero elements"):
        mnp.max(np.zeros((0, 2)))
    with pytest.raises(ArgumentError, match="zero elements"):
        mnp.argmax(np.zeros(0))
    with pytest.raises(ArgumentError, match="immutable"):
        mnp.sum(X, out=np.zeros(1))


# --- shapes -------------------------------------------------------------------------------------------------
SHAPES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("reshape", (X, (4, -1)), {}), ("reshape", (X, (5, 12)), {"order": "F"}), ("reshape", (X, -1), {}),
    ("ravel", (X,), {}),
    ("ravel", (X,), {"order": "F"}), ("transpose", (X,), {}), ("transpose", (X, (1, 2, 0)), {}),
    ("swapaxes", (X, 0, -1), {}),
    ("moveaxis", (X, 0, -1), {}), ("moveaxis", (X, (0, 1), (2, 0)), {}),
    ("moveaxis", (X, range(2), range(1, 3)), {}), ("rollaxis", (X, 2), {}),
    ("expand_dims", (X, (0, -1)), {}),
    ("squeeze", (X[:1, :, :1],), {}), ("squeeze", (X[:1], 0), {}), ("broadcast_to", (X, (2, 3, 4, 5)), {}),
    ("broadcast_arrays", (X, X[0, :, :1]), {}), ("atleast_1d", (1.0,), {}), ("atleast_2d", (X[0, 0],), {}),
    ("atleast_3d", (X[0, 0],), {}), ("atleast_3d", (X[0],), {}), ("concatenate", ([X, X[:, :2]],), {"axis": 1}),
    ("concatenate", ([X, np.arange(3)],), {"axis": None}), ("stack", ([X, X + 1],), {"axis": -1}),
    ("vstack", ([X[0, 0], X[0, 1]],), {}),
    ("hstack", ([X[0], X[1]],), {}), ("dstack", ([X[0], X[1]],), {}), ("column_stack", ([X[0, 0], X[0].T],), {}),
    ("append", (X, 3.0), {}), ("split", (X, 2, 1), {}), ("split", (X, [1, 3, 3], 1), {}),
    ("array_split", (X, 3, 2), {}),
    ("vsplit", (X, 3), {}), ("hsplit", (X, 2), {}), ("dsplit", (X, [2]), {}), ("unstack", (X,), {"axis": 1}),
    ("tile", (X[0], (2, 1, 3)), {}),
    ("tile", (X, 2), {}), ("flip", (X,), {}), ("flip", (X, 1), {}), ("flipud", (X,), {}), ("fliplr", (X,), {}),
    ("rot90", (X,), {}),
    ("rot90", (X, 3, (2, 0)), {}), ("rot90", (X, 2), {}), ("roll", (X, 2), {}), ("roll", (X, -1, 1), {}),
    ("roll", (X, (1, 2), (0, 2)), {}),
    ("roll", (X, 1, (0, 1)), {}), ("repeat", (X, 3), {}), ("repeat", (X, 2, 1), {}), ("repeat", (X, 3, 2), {}),
    ("matrix_transpose", (X,), {}), ("trim_zeros", (np.array([0, 3, 0]),), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), SHAPES, ids=lambda v: str(v)[:20] if isinstance(v, str) else "")
def test_shapes(name: str, args: Any, kwargs: Any) -> None:
    if name in ("trim_zeros",):
        assert_same(getattr(mnp, name)(*args), getattr(jnp, name)(*args))
    else:
        check(name, *args, **kwargs)


def test_repeat_with_counts() -> None:
    for counts, options in (
        ([0, 2, 1], {}),
        ([1, 2, 1], {"total_repeat_length": 6}),
        ([1, 2, 1], {"total_repeat_length": 2}),
    ):
        got = mnp.repeat(X, np.array(counts), 0, **options)
        assert_same(got, jnp.repeat(X, np.array(counts), 0, **options))


PADS: list[tuple[Any, str, dict[str, Any]]] = [
    (1, "constant", {}), (((1, 2), (0, 1), (2, 0)), "constant", {"constant_values": 3.5}),
    ((1, 2), "constant", {"constant_values": ((1, 2), (3, 4), (5, 6))}), (2, "edge", {}), (2, "reflect", {}),
    (4, "symmetric", {}),
    (((3, 7),), "wrap", {}), (2, "linear_ramp", {"end_values": 4.0}), (1, "maximum", {}), ((2, 1), "mean", {}),
    (1, "minimum", {}),
]  # fmt: skip


@pytest.mark.parametrize(("width", "mode", "options"), PADS, ids=lambda v: str(v)[:20])
def test_pad(width: Any, mode: str, options: dict[str, Any]) -> None:
    check("pad", X, width, mode, **options)


def test_shape_errors() -> None:
    with pytest.raises(ShapeError, match=r"shape \(3, 4, 5\) has 60 elements, shape \(7, 9\) has 63"):
        mnp.reshape(X, (7, 9))
    with pytest.raises(ShapeError, match="one -1"):
        mnp.reshape(X, (-1, -1))
    with pytest.raises(ShapeError, match="not a multiple of 7"):
        mnp.reshape(X, (7, -1))
    with pytest.raises(ShapeError, match=r"shape \(3, 4, 5\) cannot be broadcast to"):
        mnp.broadcast_to(X, (3, 1, 5))
    with pytest.raises(ShapeError, match="equally many dimensions"):
        mnp.concatenate([X, X[0]])
    with pytest.raises(ShapeError, match="stack: arrays have different shapes"):
        mnp.stack([X, X[:1]])
    with pytest.raises(ArgumentError, match="cannot be split into 3 equal parts"):
        mnp.split(X, 3, 1)
    with pytest.raises(ArgumentError, match="not a permutation"):
        mnp.transpose(X, (0, 1))
    with pytest.raises(ArgumentError, match="pad: mode must be one of"):
        mnp.pad(X, 1, "upwards")


# --- products -----------------------------------------------------------------------------------------------
MATMULS = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 6)), ((1, 3, 4), (2, 4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)),
    ((2, 3, 0), (0, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMULS, ids=str)
def test_matmul(a: Any, b: Any) -> None:
    check("matmul", sample(a), sample(b, seed=2))


def test_products() -> None:
    a, b = X, sample((4, 5, 2), seed=9)
    check("dot", X, sample((5, 2)))
    check("dot", X[0, 0], sample((2, 5, 3)))
    check("dot", 2.0, X)
    check("tensordot", a, b)
    check("tensordot", a, b, ((2, 1), (1, 0)))
    check("tensordot", a, sample((2,)), 0)
    check("outer", X[0], X[1, 0])
    check("inner", X, sample((2, 5)))
    check("vdot", X[0], X[1])
    check("vecdot", X, X[0] + 1)
    check("vecdot", X.astype(complex) * 1j, X, axis=0)
    check("kron", X[0], sample((2, 3)))
    check("trace", X, axis1=1, axis2=2)
    check("cross", sample((4, 3)), sample((4, 3), seed=1))
    check("matvec", X, X[0, 0])
    check("matmul", np.arange(6).reshape(2, 3), sample((3, 2)))
    check("matmul", sample((3, 4), "bool"), sample((4, 2), "bool"))


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("i,i->", (3,), (3,)), ("i,j->ij", (3,), (4,)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("ij,kj", (3, 4), (2, 4)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)), ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)), ("ij,ij->ij", (3, 4), (3, 4)), ("ij,j->i", (3, 4), (4,)),
    ("ij,ik->kj", (3, 4), (3, 2)),
    ("...,...", (3, 1), (1, 4)), ("bij,bij->b", (2, 3, 4), (2, 3, 4)), ("ijk->kj", (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shapes"), [(t, s) for t, *s in EINSUMS], ids=lambda v: v if isinstance(v, str) else ""
)
def test_einsum(text: str, shapes: Any) -> None:
    arrays = [sample(s, seed=i) for i, s in enumerate(shapes)]
    check_functions(lambda *a: mnp.einsum(text, *a), lambda *a: jnp.einsum(text, *a), *arrays)


def test_einsum_errors_and_other_form() -> None:
    with pytest.raises(ArgumentError, match="einsum: 'ij,jk->ik' does not fit operands"):
        mnp.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 5)))
    with pytest.raises(ShapeError, match=r"matmul: shapes \(3, 4\) and \(5, 6\) do not fit"):
        mnp.ones((3, 4)) @ mnp.ones((5, 6))
    with pytest.raises(ShapeError, match="use multiply for scalars"):
        mnp.matmul(X, 2.0)
    assert_same(mnp.einsum(X[0], [0, 1], X[1], [0, 2], [1, 2]), np.einsum(X[0], [0, 1], X[1], [0, 2], [1, 2]))


# --- sorting, statistics ------------------------------------------------------------------------------------
def test_sorting() -> None:
    x = np.array([[3, 1, 2, 1], [0, -5, 7, 0]])
    nans = np.array([2.0, np.nan, -1.0, np.inf, 0.0], "f")
    for axis in (0, 1, None):
        check("sort", x, axis)
        check("argsort", x, axis)
    check("sort", nans)
    check("sort", x, descending=True)
    check("argsort", x, descending=True)
    check("lexsort", (x[0], x[1]))
    check("searchsorted", np.array([1.0, 2.0, 2.0, 5.0], "f"), np.array([[0.0, 2.0], [9.0, 5.0]], "f"))
    check("searchsorted", np.array([1, 2, 2, 5]), np.array([2, 6]), side="right")
    check("digitize", np.array([0.2, 6.4, 3.0], "f"), np.array([0.0, 1.0, 3.0], "f"))
    check("isin", x, np.array([1, 7]))
    check("cumsum", x, 1)
    check("cumprod", X, 2)
    check("cumsum", X)
    check("diff", X, axis=1)
    check("diff", x, n=2, prepend=1)
    check("cumulative_sum", X, axis=1, include_initial=True)


def test_shapes_that_depend_on_values() -> None:
    x = np.array([[0, 3, 0], [4, 0, 5]])
    check("nonzero", x, size=4, fill_value=-1)
    check("nonzero", x, size=2)
    for name in ("nonzero", "argwhere", "flatnonzero", "unique"):
        assert_same(getattr(mnp, name)(x), getattr(jnp, name)(x))
    check("bincount", np.array([1, 4, 1, 0]), length=6)
    assert_same(mnp.bincount(np.array([1, 4, 1])), jnp.bincount(np.array([1, 4, 1])))
    with pytest.raises(ConcretizationTypeError, match="pass size="):
        traced(lambda x: mnp.nonzero(x), x)
    with pytest.raises(ConcretizationTypeError, match="unique"):
        traced(lambda x: mnp.unique(x), x)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_quantiles(method: str) -> None:
    check("quantile", X, np.array([0.0, 0.3, 1.0], "f"), axis=1, method=method)
    check("quantile", X, 0.7, axis=(0, 2), keepdims=True, method=method)


def test_statistics() -> None:
    nans = X.copy()
    nans[0, 1, :2] = np.nan
    for name in ("median", "nanmedian"):
        check(name, X, axis=1)
        check(name, nans, axis=0)
    check("percentile", X, np.array([20.0, 50.0], "f"))
    check("nanquantile", nans, 0.4, axis=1)
    check("cov", X[0])
    check("corrcoef", X[0])
    check("histogram", X, 6)
    check("histogram", X, np.array([-1.0, 0.0, 0.5, 2.0], "f"))
    assert mnp.allclose(X, X + 1e-7)
    assert not mnp.array_equal(X, X[0])
    assert mnp.array_equal(nans, nans, equal_nan=True)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_random_reductions_and_reshapes(shape: list[int], data: st.DataObject) -> None:
    x = sample(tuple(shape))
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    keep = data.draw(st.booleans())
    assert_same(mnp.sum(x, axes, keepdims=keep), x.sum(axes, keepdims=keep))
    order = data.draw(st.permutations(range(len(shape))))
    assert_same(mnp.transpose(x, order), x.transpose(order))
    assert_same(mnp.ravel(mnp.flip(x, axes)), np.flip(x, axes).ravel())


@pytest.mark.parametrize(
    "f",
    [
        lambda x: mnp.var(x, 1).sum(), lambda x: (mnp.einsum("ijk,ijl->ikl", x, x) ** 2).sum(),
        lambda x: mnp.sort(x, 1)[:, 1].sum(), lambda x: (mnp.cumsum(x, 1) ** 3).sum(), lambda x: mnp.roll(x, 1,
        0).prod(2).sum(),
        lambda x: (mnp.pad(x, 1, "reflect") ** 2).sum(), lambda x: mnp.median(x, 1).sum(), lambda x: mnp.std(x),
        lambda x: mnp.logaddexp(x, 0.5).sum() + mnp.hypot(x, 2.0).sum(),
    ],
)  # fmt: skip
def test_gradients_by_differences(f: Any) -> None:
    with config.override("enable_x64", True):
        x = X.astype(np.float64)
        direction = sample(X.shape, np.float64, seed=8)
        slope = (grad(f)(mnp.asarray(x)) * direction).sum().item()
        step = 1e-6
        want = (f(mnp.asarray(x + step * direction)).item() - f(mnp.asarray(x - step * direction)).item()) / (2 * step)
        np.testing.assert_allclose(slope, want, rtol=1e-6)


def test_scalar_types() -> None:
    assert mnp.float32(1).dtype == mnp.float32 == np.dtype("float32")
    assert mnp.finfo(mnp.bfloat16).bits == 16
    assert mnp.iinfo(mnp.int8).max == 127
    assert mnp.zeros(2, mnp.bfloat16).dtype == mnp.bfloat16
    assert {mnp.float32: 1}[mnp.float32] == 1
    for np_ in (mnp, jnp):  # sets and dicts of types find those of NumPy, and not dtypes
        for name in ("float32", "bool_", "bfloat16", "complex64", "uint8"):
            dtype = np_.zeros(1, name).dtype
            assert dtype.type in {getattr(np_, name)} and getattr(np_, name) in {dtype.type: 0}
            assert dtype == getattr(np_, name) and dtype not in {getattr(np_, name)}
    assert mnp.isdtype(mnp.int8, "integral") and not mnp.isdtype(mnp.int8, ("bool", "real floating"))
    assert mnp.issubdtype(mnp.bfloat16, mnp.floating)
    assert typeof(mnp.asarray(2)).weak_type and not typeof(mnp.int32(2)).weak_type


def test_linspace_ends_where_it_should() -> None:
    for num in (2, 11, 50, 99, 104):
        for stop in (1.0, 0.1, 7.3):
            assert mnp.linspace(0.0, stop, num)[-1].item() == np.float32(stop)
