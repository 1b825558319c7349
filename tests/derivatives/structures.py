"""Functions of arrays at the points where their derivatives are easily wrong: ties, zeros, infinities, NaN, duplicates.

A case is a function of a library ``m`` (ours or JAX, with the modules ``m.numpy``, ``m.lax``, ``m.nn``, ``m.special``,
``m.random``) and of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

INF, NAN = np.inf, np.nan


@dataclass(frozen=True)
class Case:
    """``f(m, *args)``; with ``twice`` second derivatives are compared, too."""

    name: str
    f: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    twice: bool = True


TIES = np.array([[2.0, 1.0, 2.0, -1.0], [0.0, 0.0, -0.0, 3.0], [-1.0, -1.0, -1.0, -1.0]])
ZEROS = np.array([[2.0, 0.0, 3.0, 0.0], [1.5, 0.0, -2.0, 4.0], [0.5, 2.0, 3.0, -1.0]])
NANS = np.array([[2.0, NAN, 3.0, 1.0], [NAN, NAN, NAN, NAN], [0.5, 2.0, -3.0, 2.0]])
LOWS = np.array([[2.0, -INF, 1.0, 2.0], [-INF, -INF, -INF, -INF], [0.0, 0.0, 0.0, 0.0]])
HIGHS = np.array([[2.0, INF, 1.0, 2.0], [INF, INF, 0.0, 1.0], [0.0, INF, -INF, 0.0]])
PLAIN = np.array([[0.3, -1.2, 2.5, 0.7], [1.1, 0.4, -0.6, 1.9], [-2.2, 0.9, 1.3, -0.8]])
VEC = np.array([0.3, -1.2, 2.5, 0.7, 1.1])
DATA = {"ties": TIES, "zeros": ZEROS, "nans": NANS, "lows": LOWS, "highs": HIGHS, "plain": PLAIN}


def _reductions() -> Iterator[Case]:
    everywhere = ("ties", "zeros", "plain")
    table = {
        "sum mean prod max min amax var std median ptp cumsum cumprod average": everywhere,
        "nansum nanmean nanprod nanmax nanmin nanstd nanvar nanmedian nancumsum nancumprod": (*everywhere, "nans"),
        "max min sort cummax": ("highs", "nans"),
        "sum mean": ("highs",),
    }
    for names, kinds in table.items():
        for name in names.split():
            for kind in kinds:
                for options in ({"axis": 1}, {}) if kind == "ties" else ({"axis": 1},):
                    if name == "cummax":
                        yield Case(f"lax.cummax {kind}", lambda m, x: m.lax.cummax(x, 1), (DATA[kind],))
                        continue
                    yield Case(
                        f"{name} {kind} {options}",
                        lambda m, x, name=name, options=options: getattr(m.numpy, name)(x, **options),
                        (DATA[kind],),
                    )
    for kind in (*everywhere, "lows", "highs"):
        for name in ("softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"):
            yield Case(f"nn.{name} {kind}", lambda m, x, name=name: getattr(m.nn, name)(x, axis=1), (DATA[kind],))
        for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"):
            if name == "cumprod" and kind in ("lows", "highs"):  # 0 inf
                continue
            yield Case(f"lax.{name} {kind}", lambda m, x, name=name: getattr(m.lax, name)(x, axis=1), (DATA[kind],))
            yield Case(
                f"lax.{name} {kind} reverse",
                lambda m, x, name=name: getattr(m.lax, name)(x, axis=0, reverse=True),
                (DATA[kind],),
            )
    for name in ("softmax", "log_softmax", "logsumexp"):
        for kind in ("lows", "plain"):
            yield Case(
                f"nn.{name} where {kind}",
                lambda m, x, name=name: getattr(m.nn, name)(x, axis=1, where=m.numpy.asarray(PLAIN > 0.5)),
                (DATA[kind],),
            )
    yield Case("nn.softmax all masked", lambda m, x: m.nn.softmax(x, axis=1, where=np.zeros((3, 4), bool)), (PLAIN,))
    yield Case("logsumexp b", lambda m, x, b: m.nn.logsumexp(x, axis=1, b=b), (PLAIN, ZEROS))
    yield Case("logsumexp sign", lambda m, x, b: m.nn.logsumexp(x, 1, b=b, return_sign=True)[0], (LOWS[:1], ZEROS[:1]))
    for name in ("sum", "prod", "max", "min", "mean", "std", "var"):
        extra = {"initial": 0.0} if name in ("max", "min") else {}
        for kind in ("ties", "zeros", "nans"):
            yield Case(
                f"{name} where {kind}",
                lambda m, x, name=name, extra=extra: getattr(m.numpy, name)(
                    x, axis=1, where=m.numpy.asarray(~np.isnan(NANS)), **extra
                ),
                (DATA[kind],),
            )
    for q in (0.0, 0.25, 0.5, 1.0):
        # halfway, the nearest is the even one of two positions, as in NumPy; JAX takes the lower
        for method in ("linear", "lower", *(["nearest"] if q != 0.5 else []), "midpoint"):
            yield Case(
                f"quantile {q} {method}",
                lambda m, x, q=q, method=method: m.numpy.quantile(x, q, axis=1, method=method),
                (TIES,),
            )
        yield Case(f"quantile lows {q}", lambda m, x, q=q: m.numpy.quantile(x, q, axis=1), (LOWS,))
        yield Case(f"nanquantile {q}", lambda m, x, q=q: m.numpy.nanquantile(x, q, axis=1), (NANS,))
    yield Case("quantile by q", lambda m, q: m.numpy.quantile(m.numpy.asarray(PLAIN), q), (np.array([0.1, 0.5, 0.77]),))
    yield Case("median even", lambda m, x: m.numpy.median(x, axis=0), (PLAIN,))


def _sorting() -> Iterator[Case]:
    for kind in ("ties", "nans", "highs"):
        yield Case(f"sort {kind}", lambda m, x: m.numpy.sort(x, axis=1) ** 2, (DATA[kind],))
        yield Case(f"lax.top_k {kind}", lambda m, x: m.lax.top_k(x, 2)[0] ** 2, (DATA[kind],))
        yield Case(f"partition {kind}", lambda m, x: m.numpy.partition(x, 1, axis=1)[:, 1] ** 2, (DATA[kind],))
    yield Case("lax.sort pairs", lambda m, x, y: m.lax.sort((x, y), dimension=1, num_keys=1)[1] ** 2, (TIES, PLAIN))
    yield Case("unique values", lambda m, x: m.numpy.unique(x, size=6) ** 2, (TIES,))
    yield Case("searchsorted interp", lambda m, x: m.numpy.interp(x, np.arange(3.0), np.array([1.0, 5.0, 2.0])),
               (np.array([0.0, 1.0, 2.0, -1.0, 3.0, 0.5]),))  # fmt: skip
    yield Case("interp by values", lambda m, f, xp: m.numpy.interp(np.array([0.0, 0.5, 2.0, 9.0]), xp, f),
               (np.array([1.0, 5.0, 2.0]), np.array([0.0, 0.7, 2.0])))  # fmt: skip
    yield Case("clip ties", lambda m, x, a, b: m.numpy.clip(x, a, b),
               (np.array([0.0, 1.0, 0.5, -1.0, 2.0]), np.zeros(5), np.ones(5)))  # fmt: skip
    yield Case("clip crossed", lambda m, x, a, b: m.numpy.clip(x, a, b),
               (np.array([0.0, 1.0, 0.5, 3.0, 2.0]), np.full(5, 2.0), np.ones(5)))  # fmt: skip
    yield Case("maximum ties", lambda m, x, y: m.numpy.maximum(x, y) * m.numpy.minimum(x, y), (TIES, np.zeros((3, 4))))


INDICES = {
    "negative": np.array([-1, 0, -3, -2]),
    "outside": np.array([7, 0, -9, 4]),
    "duplicate": np.array([1, 1, 2, 1]),
    "scalar outside": np.array(9),
    "scalar negative": np.array(-2),
}


def _indexing() -> Iterator[Case]:
    for kind, i in INDICES.items():
        new = np.linspace(0.5, 2.0, max(i.size, 1)).reshape(i.shape) * 1.0
        rows = np.linspace(-1.0, 2.0, i.size * 4).reshape(*i.shape, 4)
        yield Case(f"x[i] {kind}", lambda m, x, i=i: x[m.numpy.asarray(i)] ** 2, (VEC,))
        yield Case(f"x[i] rows {kind}", lambda m, x, i=i: x[m.numpy.asarray(i)] ** 2, (PLAIN,))
        yield Case(f"x[:, i] {kind}", lambda m, x, i=i: x[:, m.numpy.asarray(i)] ** 2, (PLAIN,))
        for mode in (None, "fill", "clip", "wrap"):
            if mode != "wrap" or i.ndim:
                yield Case(
                    f"take {kind} {mode}",
                    lambda m, x, i=i, mode=mode: m.numpy.take(x, m.numpy.asarray(i), axis=0, mode=mode) ** 2,
                    (PLAIN,),
                )
        for mode in ("fill", "clip", "drop", "promise_in_bounds")[: 3 if "outside" in kind else 4]:
            yield Case(
                f"at.get {kind} {mode}",
                lambda m, x, i=i, mode=mode: x.at[m.numpy.asarray(i)].get(mode=mode) ** 2,
                (VEC,),
            )
        for name in ("set", "add", "subtract", "multiply", "divide", "power", "min", "max"):
            if name == "set" and kind == "duplicate":
                continue
            for mode in (None, "clip") if "outside" in kind and name in ("set", "add", "multiply") else (None,):
                yield Case(
                    f"at.{name} {kind} {mode}",
                    lambda m, x, v, i=i, name=name, mode=mode: getattr(x.at[m.numpy.asarray(i)], name)(v, mode=mode),
                    (np.abs(VEC), new),
                )
            yield Case(
                f"at.{name} rows {kind}",
                lambda m, x, v, i=i, name=name: getattr(x.at[m.numpy.asarray(i)], name)(v) ** 2,
                (np.abs(PLAIN), rows),
            )
        if i.ndim:
            yield Case(f"at.apply {kind}", lambda m, x, i=i: x.at[m.numpy.asarray(i)].apply(m.numpy.sin), (VEC,))
            for name in ("segment_sum", "segment_prod", "segment_max", "segment_min"):
                yield Case(
                    f"{name} {kind}",
                    lambda m, x, i=i, name=name: getattr(m.ops, name)(x, m.numpy.asarray(i), num_segments=4),
                    (np.array([1.0, 0.0, 2.0, 2.0]),),
                )
            yield Case(
                f"take_along_axis {kind}",
                lambda m, x, i=i: m.numpy.take_along_axis(x, m.numpy.asarray(i)[None, :], axis=1) ** 2, (PLAIN[:1],)
            )  # fmt: skip
        yield Case(
            f"lax.dynamic_index {kind}", lambda m, x, i=i: m.lax.dynamic_index_in_dim(x, i.ravel()[0], 0) ** 2, (PLAIN,)
        )
        yield Case(
            f"lax.dynamic_slice {kind}",
            lambda m, x, i=i: m.lax.dynamic_slice(x, (i.ravel()[0], 1), (2, 2)) ** 2,
            (PLAIN,),
        )
        yield Case(
            f"lax.dynamic_update {kind}",
            lambda m, x, u, i=i: m.lax.dynamic_update_slice(x, u, (i.ravel()[0], 1)) ** 2,
            (PLAIN, PLAIN[:2, :2] + 1),
        )
    for name in ("mul", "min", "max"):
        yield Case(
            f"at.{name} duplicates of ties",
            lambda m, x, v, name=name: getattr(x.at[np.array([0, 0, 1, 2, 2])], name)(v),
            (np.array([1.0, 0.0, 2.0]), np.array([1.0, 1.0, 0.0, 2.0, 2.0])),
        )
    yield Case(
        "at.mul with zeros",
        lambda m, x, v: x.at[np.array([0, 2])].multiply(v),
        (np.array([0.0, 1.0, 2.0]), np.array([3.0, 0.0])),
    )
    for name in ("index_take", "index_in_dim"):
        if name == "index_take":
            yield Case(
                "lax.index_take", lambda m, x: m.lax.index_take(x, (np.array([-1, 1, 7, 1]),), (0,)) ** 2, (PLAIN,)
            )
    yield Case("x[mask]", lambda m, x: m.numpy.where(m.numpy.asarray(PLAIN > 0), x, 0.0) ** 2, (PLAIN,))
    yield Case("compress", lambda m, x: m.numpy.compress(np.array([True, False, True]), x, axis=0) ** 2, (PLAIN,))
    yield Case(
        "select", lambda m, x: m.numpy.select([x > 1, x < 0], [x**2, m.numpy.sqrt(m.numpy.abs(x))], 0.0), (PLAIN,)
    )
    yield Case("choose", lambda m, x: m.numpy.choose(np.array([0, 2, 1, 0]), x, mode="clip") ** 2, (PLAIN,))
    yield Case("put_along_axis", lambda m, x, v: m.numpy.put_along_axis(
        x, np.array([[0], [2], [1]]), v, axis=1, inplace=False) ** 2,
        (PLAIN, np.array([[1.0], [2.0], [3.0]])))  # fmt: skip


def _bodies() -> Iterator[Case]:
    def last(a: Any, b: Any) -> Any:
        return b

    def first(a: Any, b: Any) -> Any:
        return a

    def halves(a: Any, b: Any) -> Any:
        return a * 0.5 + b

    bodies = {"first": first, "last": last, "halves": halves, "product": lambda a, b: a * b}
    for name, body in bodies.items():
        init = 1.0 if name == "product" else 0.0
        for strides in ((1,), (2,)):
            yield Case(
                f"reduce_window {name} {strides}",
                lambda m, x, body=body, strides=strides, init=init: m.lax.reduce_window(
                    x, init, body, (3,), strides, "VALID"
                ),
                (np.array([1.0, 2.0, 0.0, 0.0, 5.0, -1.0, 3.0]),),
                False,
            )
        if name != "halves":  # it is not associative
            yield Case(
                f"reduce {name}", lambda m, x, body=body, init=init: m.lax.reduce(x, init, body, (1,)), (ZEROS,), False
            )
            yield Case(
                f"associative_scan {name}", lambda m, x, body=body: m.lax.associative_scan(body, x, axis=1), (ZEROS,)
            )

    def compose(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    for rows in (ZEROS, np.tile(ZEROS, (1, 5))[:, :13]):
        yield Case(
            f"reduce affine {rows.shape}",
            lambda m, x, y: m.lax.reduce((x, y), (1.0, 0.0), compose, (1,))[1],
            (rows, rows[::-1] + 1),
            False,
        )
    yield Case(
        "associative_scan affine", lambda m, x, y: m.lax.associative_scan(compose, (x, y), axis=1)[1], (ZEROS, PLAIN)
    )
    for op, init in (("max", -INF), ("min", INF), ("add", 0.0), ("mul", 1.0)):
        yield Case(
            f"reduce_window {op}",
            lambda m, x, op=op, init=init: m.lax.reduce_window(x, init, getattr(m.lax, op), (1, 2), (1, 1), "VALID"),
            (TIES,),
            op == "add",
        )


def _linalg() -> Iterator[Case]:
    singular = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    null = np.zeros((3, 3))
    one_zero = np.diag([2.0, 0.0, 3.0])
    regular = PLAIN[:, :3] + 2 * np.eye(3)
    for name, a in {"singular": singular, "null": null, "one zero": one_zero, "regular": regular}.items():
        yield Case(f"det {name}", lambda m, x: m.numpy.linalg.det(x), (a,), name == "regular")
        yield Case(f"slogdet {name}", lambda m, x: m.numpy.linalg.slogdet(x)[1], (a,), name == "regular")
    tall = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.3], [0.1, 0.7]])
    for name, a in {"tall": tall, "wide": tall.T, "square": regular}.items():
        yield Case(f"pinv {name}", lambda m, x: m.numpy.linalg.pinv(x), (a,))
        yield Case(f"svd values {name}", lambda m, x: m.numpy.linalg.svd(x, compute_uv=False), (a,))
        yield Case(f"lstsq {name}", lambda m, x, y: m.numpy.linalg.lstsq(x, y)[0], (a, a[:, 0] + 1), False)
    deficient = np.outer([1.0, 2.0, -1.0, 0.5], [1.0, 0.5])
    yield Case("pinv deficient", lambda m, x: m.numpy.linalg.pinv(x), (deficient,), False)
    for name, a in {"twice": np.diag([1.0, 1.0, 2.0]), "null": null, "distinct": np.diag([1.0, 3.0, 2.0])}.items():
        yield Case(f"eigvalsh {name}", lambda m, x: m.numpy.linalg.eigvalsh(x + x.T), (a,), False)
        yield Case(f"eigh values {name}", lambda m, x: m.numpy.linalg.eigh(x + x.T)[0], (a,), False)
        yield Case(f"svd values of {name}", lambda m, x: m.numpy.linalg.svd(x, compute_uv=False), (a,), False)
        yield Case(f"norm nuc {name}", lambda m, x: m.numpy.linalg.norm(x, "nuc"), (a,), False)
        yield Case(f"norm 2 {name}", lambda m, x: m.numpy.linalg.norm(x, 2), (a,), False)
    for order in (None, 2, 1, INF, -INF, 0, 3, 0.5):
        for name, v in {
            "zero": np.zeros(3),
            "some": np.array([0.0, -2.0, 1.0]),
            "ties": np.array([2.0, -2.0, 2.0]),
        }.items():
            yield Case(f"norm {order} {name}", lambda m, x, order=order: m.numpy.linalg.norm(x, order), (v,))
    for order in (None, "fro", 1, INF, -1):
        yield Case(f"norm matrix {order}", lambda m, x, order=order: m.numpy.linalg.norm(x, order), (one_zero,))
    yield Case("cholesky", lambda m, x: m.numpy.linalg.cholesky(x @ x.T), (regular,))
    yield Case("inv", lambda m, x: m.numpy.linalg.inv(x), (regular,))
    yield Case("solve", lambda m, x, y: m.numpy.linalg.solve(x, y), (regular, PLAIN))
    yield Case("qr", lambda m, x: m.numpy.linalg.qr(x)[1], (tall,), False)
    yield Case("matrix_power", lambda m, x: m.numpy.linalg.matrix_power(x, -2), (regular,))
    yield Case("matrix_power null", lambda m, x: m.numpy.linalg.matrix_power(x, 3), (null,))
    yield Case("cond", lambda m, x: m.numpy.linalg.cond(x), (regular,), False)
    yield Case("expm", lambda m, x: m.scipy.linalg.expm(x), (one_zero,), False)


def _makers() -> Iterator[Case]:
    point = (np.array(0.0), np.array(0.0))
    yield Case("linspace equal ends", lambda m, a, b: m.numpy.linspace(a, b, 5), point)
    yield Case("linspace one", lambda m, a, b: m.numpy.linspace(a, b, 1), point)
    yield Case("logspace", lambda m, a, b: m.numpy.logspace(a, b, 4), (np.array(0.0), np.array(1.0)))
    yield Case("geomspace", lambda m, a, b: m.numpy.geomspace(a, b, 4), (np.array(1.0), np.array(1.0)), False)
    yield Case("geomspace ends", lambda m, a, b: m.numpy.geomspace(a, b, 4), (np.array(1.0), np.array(8.0)))
    yield Case(
        "where guarded sqrt",
        lambda m, x: m.numpy.where(x > 0, m.numpy.sqrt(m.numpy.where(x > 0, x, 1.0)), 0.0),
        (VEC * 0,),
    )
    yield Case(
        "where guarded log", lambda m, x: m.numpy.where(x > 0, m.numpy.log(m.numpy.where(x > 0, x, 1.0)), 0.0), (VEC,)
    )
    yield Case("nan_to_num", lambda m, x: m.numpy.nan_to_num(x) ** 2, (HIGHS,))
    yield Case("unwrap", lambda m, x: m.numpy.unwrap(x), (np.array([0.0, 3.5, -3.0, 7.0]),))
    yield Case("trapezoid", lambda m, y, x: m.numpy.trapezoid(y, x), (VEC, np.array([0.0, 0.0, 1.0, 1.0, 2.0])))
    yield Case("gradient", lambda m, x: m.numpy.gradient(x), (VEC,))
    yield Case("ediff1d", lambda m, x: m.numpy.ediff1d(x, 0.5, 0.25), (VEC,))
    yield Case("cov", lambda m, x: m.numpy.cov(x), (PLAIN,))
    yield Case("corrcoef", lambda m, x: m.numpy.corrcoef(x), (PLAIN,))
    yield Case("corrcoef constant", lambda m, x: m.numpy.corrcoef(x), (TIES,))
    yield Case("polyval", lambda m, p, x: m.numpy.polyval(p, x), (np.array([2.0, 0.0, 1.0]), np.zeros(3)))
    yield Case("polyfit", lambda m, y: m.numpy.polyfit(np.arange(5.0), y, 2), (VEC,))
    yield Case("vander", lambda m, x: m.numpy.vander(x, 4), (np.array([0.0, 1.0, -1.0]),))
    yield Case("x**int array", lambda m, x: x ** m.numpy.asarray(np.arange(5)), (np.zeros(5),))
    yield Case(
        "x**-int array",
        lambda m, x: x ** m.numpy.asarray(np.array([-1, 0, 1, 2, 3])),
        (np.array([2.0, 0.0, 0.0, -1.0, 0.0]),),
    )
    for n in (0, 1, 2, 3, -1):
        yield Case(f"x**{n}", lambda m, x, n=n: x**n, (np.array([0.0, -0.0, 1.0, -2.0, INF]),))
        yield Case(f"x**{n}.0", lambda m, x, n=n: x ** float(n), (np.array([0.0, -0.0, 1.0, -2.0, INF]),))
    yield Case("0**x", lambda m, x: m.numpy.power(0.0, x), (np.array([0.0, 1.0, 2.0, 0.5]),))
    yield Case("lax.pow int", lambda m, x: m.lax.pow(x, m.numpy.asarray(np.arange(5))), (np.zeros(5),))
    for name in ("fft", "ifft", "rfft", "hfft", "fft2", "rfft2", "ifftn"):
        yield Case(f"fft.{name}", lambda m, x, name=name: m.numpy.abs(getattr(m.numpy.fft, name)(x)) ** 2, (PLAIN,))
    yield Case("fft magnitude at 0", lambda m, x: m.numpy.abs(m.numpy.fft.fft(x)), (np.zeros(4),), False)


def _complex() -> Iterator[Case]:
    for name in ("abs", "angle", "sqrt", "log", "exp", "sin", "tanh", "square", "reciprocal", "arctan", "arcsinh"):
        yield Case(
            f"complex {name}",
            lambda m, x, y, name=name: m.numpy.abs(getattr(m.numpy, name)(m.lax.complex(x, y))) ** 2,
            (np.array([0.5, -0.5, 2.0, 0.0]), np.array([0.25, 0.0, -1.0, 1.5])),
        )
    yield Case(
        "complex abs at 0", lambda m, x, y: m.numpy.abs(m.lax.complex(x, y)), (np.zeros(2), np.array([0.0, 1.0]))
    )
    yield Case(
        "complex power", lambda m, x, y: m.numpy.real(m.lax.complex(x, y) ** 2.5), (np.ones(2), np.array([0.3, -1.0]))
    )
    yield Case(
        "complex prod",
        lambda m, x, y: m.numpy.abs(m.numpy.prod(m.lax.complex(x, y))) ** 2,
        (np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, -1.0])),
    )
    yield Case(
        "complex std",
        lambda m, x, y: m.numpy.std(m.lax.complex(x, y)),
        (np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, -1.0])),
    )
    yield Case(
        "complex norm", lambda m, x, y: m.numpy.linalg.norm(m.lax.complex(x, y)), (np.zeros(3), np.zeros(3)), False
    )


def _random() -> Iterator[Case]:
    table: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
        "gamma": (lambda r, k, a: r.gamma(k, a, (4,)), (1.5,)),
        "gamma small": (lambda r, k, a: r.gamma(k, a, (4,)), (0.1,)),
        "loggamma": (lambda r, k, a: r.loggamma(k, a, (4,)), (0.7,)),
        "beta": (lambda r, k, a, b: r.beta(k, a, b, (4,)), (1.5, 0.7)),
        "dirichlet": (lambda r, k, a: r.dirichlet(k, np.ones(3) * a, (4,)), (1.5,)),
        "chisquare": (lambda r, k, a: r.chisquare(k, a, (4,)), (3.0,)),
        "t": (lambda r, k, a: r.t(k, a, (4,)), (3.0,)),
        "f": (lambda r, k, a, b: r.f(k, a, b, (4,)), (3.0, 5.0)),
        "pareto": (lambda r, k, a: r.pareto(k, a, (4,)), (2.0,)),
        "uniform": (lambda r, k, a, b: r.uniform(k, (4,), minval=a, maxval=b), (-1.0, 2.0)),
        "truncated_normal": (lambda r, k, a, b: r.truncated_normal(k, a, b, (4,)), (-1.0, 2.0)),
        "weibull": (lambda r, k, a, b: r.weibull_min(k, a, b, (4,)), (1.0, 2.0)),
        "rayleigh": (lambda r, k, a: r.rayleigh(k, a, (4,)), (1.5,)),
        "wald": (lambda r, k, a: r.wald(k, a, (4,)), (1.5,)),
        "lognormal": (lambda r, k, a: r.lognormal(k, a, (4,)), (0.5,)),
        "triangular": (lambda r, k, a, b, c: r.triangular(k, a, b, c, (4,)), (0.0, 0.5, 2.0)),
        "generalized_normal": (lambda r, k, a: r.generalized_normal(k, a, (4,)), (1.5,)),
        "multivariate_normal": (
            lambda r, k, a, b: r.multivariate_normal(k, a * np.ones(2), b * np.eye(2), (4,)), (0.5, 2.0)),
    }  # fmt: skip
    for name, (f, values) in table.items():
        yield Case(
            f"random.{name}", lambda m, *a, f=f: f(m.random, m.random.key(3), *a), tuple(np.array(v) for v in values),
            name in ("uniform", "rayleigh", "lognormal", "pareto"),
        )  # fmt: skip


CASES = [*_reductions(), *_sorting(), *_indexing(), *_bodies(), *_linalg(), *_makers(), *_complex(), *_random()]


_DIFFERENCES = [
    *(f"reduce_window {body} {strides}" for body in ("first", "last", "halves", "product") for strides in ((1,), (2,))),
    *(f"at.apply {kind}" for kind in INDICES),
    "reduce first", "reduce affine (3, 4)", "reduce affine (3, 13)", "reduce_window mul", "compress",
]  # fmt: skip
#: of these JAX has no derivative, or not that of the values: "differences" are the oracle, or the values alone are
#: compared with JAX and what is otherwise is said
OTHERWISE: dict[str, str] = {
    **dict.fromkeys(_DIFFERENCES, "differences"),
    **{f"lax.{n} {k}{r}": "ties share in another order" for n in ("cummax", "cummin") for k in ("ties", "lows", "highs")
       for r in ("", " reverse")},
    **{f"lax.cumlogsumexp highs{r}": "takes infinities for 0" for r in ("", " reverse")},
    "logsumexp b": "by weights that are 0 it has no derivative", "logsumexp sign": "the same",
    "partition ties": "another one of equal elements",
    **{f"var where {k}": "NaN in rows of which nothing counts" for k in ("ties", "zeros", "nans")},
}  # fmt: skip
