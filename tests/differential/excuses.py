# ruff: noqa: E501
"""Where we differ from JAX on purpose, and why.

With an ``oracle`` each value must be JAX's or that of NumPy or SciPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import scipy.special
import scipy.stats
from arguments import ALL
from outcomes import Call, Of, Weak, elementwise_same, outcome
from tables import TABLES, function_of

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.core.dtypes import inexact


@dataclass(frozen=True)
class Excuse:
    """``found`` is how the difference begins: ``values``, ``accepted``, ``refused``, ``dtype``, ``shape``, ``weakly``.

    It holds of calls with an argument of one of ``kinds``: NumPy's letters, ``h`` for floats of 16 bits; "" for any.
    """

    names: str
    found: str
    reason: str
    oracle: Callable[[str, Call], bool] | None = None
    kinds: str = ""
    when: Callable[[Call], bool] = lambda call: True

    def holds(self, name: str, call: Call, found: str) -> bool:
        if name not in self.names.split() or not found.startswith(self.found) or not self.when(call):
            return False
        if self.kinds and not kinds_of(call) & {*self.kinds}:
            return False
        return self.oracle is None or self.oracle(name, call)


def kinds_of(call: Call) -> set[str]:
    """The kinds of all arrays and numbers of a call."""
    leaves = jax.tree.leaves((call.args, call.kwargs))
    dtypes = [_dtype(x.value if isinstance(x, Weak) else x) for x in leaves if not isinstance(x, Of)]
    return {"h" if d.itemsize == 2 and d.kind in "fV" else d.kind for d in dtypes}


def _dtype(x: Any) -> np.dtype:
    """That of an array, or one that is named."""
    if isinstance(x, str):
        return np.dtype(x) if x in (d.name for d in ALL) else np.dtype("O")
    return np.asarray(x).dtype


def _agrees(name: str, call: Call, ours: Any, theirs: Any, want: Any, loose: float) -> bool:
    """Whether each of our values is that of the oracle ``want`` or JAX's, but for signs of zeros."""
    found = outcome(ours, call, mnp.asarray), outcome(want, call, _wide), outcome(theirs, call, jnp.asarray)
    if any(isinstance(x, Exception) for x in found):
        return False
    results = [[np.asarray(v) for v in (x if isinstance(x, tuple) else (x,))] for x in found]
    with np.errstate(all="ignore"):
        return all(
            bool((elementwise_same(g, w.astype(g.dtype), loose, False) | elementwise_same(g, t, loose, False)).all())
            for g, w, t in zip(*results)
        )


def same_elements(name: str, call: Call) -> bool:
    """Whether each element of either result is near one of the other."""
    ours, theirs = (np.ravel(outcome(function_of(m, name), call, m.asarray)) for m in (mnp, jnp))
    near = np.isclose(ours[:, None], theirs, rtol=1e-3, atol=1e-3, equal_nan=True)
    return bool(near.any(0).all() and near.any(1).all())


def same_parts(name: str, call: Call) -> bool:
    """Whether a partition has JAX's elements before the position, at it, and after it."""
    x, at = _wide(call.args[0]), call.args[1]
    axis = call.kwargs.get("axis", call.args[2] if len(call.args) > 2 else -1)
    found = [np.asarray(outcome(function_of(m, name), call, m.asarray)) for m in (mnp, jnp)]
    found = [np.take_along_axis(x, v, axis) for v in found] if name.startswith("arg") else found
    parts = [np.split(v, [at % x.shape[axis], at % x.shape[axis] + 1], axis) for v in found]
    return all(np.array_equal(np.sort(a, axis), np.sort(b, axis), equal_nan=True) for a, b in zip(*parts))


def of_floats(name: str, call: Call) -> bool:
    """Whether the result is that of the same numbers as floats."""

    def as_float(x: Any) -> Any:
        return x.astype(inexact(_wide(x).dtype)) if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else x

    floats = replace(call, args=tuple(map(as_float, call.args)))
    ours, want = (np.asarray(outcome(function_of(mw, name), c, mnp.asarray)) for c in (call, floats))
    return bool(elementwise_same(ours, want, call.loose, False).all())


def numbers_for_nan(name: str, call: Call) -> bool:
    """Whether the result is JAX's but where JAX's is NaN."""
    libraries = (mw, jax) if name.startswith("scipy.") else (mnp, jnp)
    made = zip((function_of(m, name) for m in libraries), (mnp, jnp))
    ours, theirs = (np.asarray(outcome(function, call, m.asarray)) for function, m in made)
    return bool((elementwise_same(ours, theirs, call.loose) | np.isnan(theirs)).all())


def _asks_for_integers(call: Call) -> bool:
    return np.dtype(call.kwargs.get("dtype") or float).kind in "biu"


def on_the_cut(name: str, call: Call) -> bool:
    """The same, or on the other side of a cut on which the exact value lies."""
    ours, theirs = (np.asarray(outcome(function_of(m, name), call, m.asarray)) for m in (mnp, jnp))
    same = elementwise_same(ours, theirs, call.loose) | elementwise_same(ours, np.conj(theirs), call.loose)
    return bool((same | np.isnan(theirs)).all())


def same_eigenspaces(name: str, call: Call) -> bool:
    """Whether the values are JAX's, and the vectors orthonormal ones of the matrix: their phases are open."""
    libraries = (mw, jax) if name.startswith("lax.") else (mnp, jnp)
    made = zip((function_of(m, name) for m in libraries), (mnp, jnp))
    found = (map(np.asarray, outcome(function, call, m.asarray)) for function, m in made)
    (values, v), (theirs, _) = (sorted(results, key=np.ndim) for results in found)
    a = _wide(call.args[0]).astype(v.dtype)
    a = (a + a.mT.conj()) / 2
    at = 64 * np.finfo(v.dtype).eps * np.abs(values).max()
    pairs = (values, theirs), (a @ v, v * values[..., None, :]), (v.mT.conj() @ v, np.eye(v.shape[-1]))
    return all(np.allclose(x, y, 0, at) for x, y in pairs)


def polar_factors(name: str, call: Call) -> bool:
    """Whether the factors of a singular matrix are a Hermitian one and one of norm 1 whose product it is."""
    u, h, *_ = map(np.asarray, outcome(function_of(mw, name), call, mnp.asarray))
    a, at = _wide(call.args[0]), 64 * np.finfo(u.dtype).eps
    none = np.linalg.matrix_rank(a) < min(a.shape)
    near = np.allclose(u @ h, a, 0, at * np.abs(a).max()) and np.allclose(h, h.mT.conj(), 0, at)
    return bool(none and near and np.linalg.norm(u, 2) <= 1 + at)


def singular(name: str, call: Call) -> bool:
    """Whether the logarithm of a determinant is minus infinity where the matrix is singular, and JAX's elsewhere."""
    ours, theirs = (np.asarray(outcome(function_of(m, name), call, m.asarray)[1]) for m in (mnp, jnp))
    x = _wide(call.args[0])
    none = np.linalg.matrix_rank(x.astype(float)) < x.shape[-1]
    return bool(np.where(none, ours == -np.inf, elementwise_same(ours, theirs, call.loose)).all())


def infinite_at_zero(name: str, call: Call) -> bool:
    """Whether the density is infinite where one of the probabilities is 0 and its parameter below 1."""
    x, alpha = map(_wide, call.args)
    found = np.asarray(outcome(function_of(mw, name), call, mnp.asarray))
    return bool(((x == 0) & (alpha < 1)).any() and found == np.inf)


def near_in_parameters(name: str, call: Call) -> bool:
    """Whether draws are JAX's up to rounding in the dtype of the parameters."""
    ours, theirs = (np.asarray(outcome(function_of(m, name), call, m.numpy.asarray)) for m in (mw, jax))
    precision = max(float(ml_dtypes.finfo(a.dtype).eps) for a in call.args if isinstance(a, np.ndarray))
    return np.allclose(ours, theirs, 4 * precision, precision, equal_nan=True)


def modulo(name: str, call: Call) -> bool:
    """Whether the integers are JAX's up to multiples of what its dtype has."""
    ours, theirs = (np.asarray(outcome(function_of(m, name), call, m.numpy.asarray)) for m in (mw, jax))
    return bool((ours.astype(np.int64).astype(theirs.dtype) == theirs).all())


def truncated(name: str, call: Call) -> bool:
    """Whether each value is JAX's or NumPy's, or the quotient of a negative exponent, rounded towards zero."""
    ours, theirs = (np.asarray(outcome(m.power, call, m.asarray)) for m in (mnp, jnp))
    base, exponent = np.broadcast_arrays(*map(_wide, call.args))
    quotient = np.where(np.abs(base) == 1, base ** (exponent & 1), 0)
    whole = np.where(exponent < 0, quotient, base ** np.maximum(exponent, 0))
    return bool(((ours == theirs) | (ours == whole) | (exponent < 0) & (base == 0)).all())


def _wide(x: Any) -> np.ndarray:
    """An argument of an oracle, with the value that it has in the libraries."""
    return np.asarray(mnp.asarray(x.value if isinstance(x, Weak) else x))


def as_numpy(name: str, call: Call) -> bool:
    with np.errstate(all="ignore"):
        return _agrees(name, call, function_of(mnp, name), function_of(jnp, name), function_of(np, name), 1)


def as_numpy_with_signs(name: str, call: Call) -> bool:
    """As NumPy, but for the signs of infinities beside NaN, which C99 leaves open."""

    def positive(m: Any) -> Callable[..., Any]:
        def f(x: Any) -> np.ndarray:
            y = np.asarray(function_of(m, name)(x)).copy()
            for part, other in ((y.real, y.imag), (y.imag, y.real)):
                part[np.isinf(part) & np.isnan(other)] = np.inf
            return y

        return f

    return _agrees(name, call, positive(mnp), positive(jnp), positive(np), 1)


def as_clip(name: str, call: Call) -> bool:
    """Whether a clamped array is what NumPy clips it to."""
    low, x, high = map(_wide, call.args)
    return bool(elementwise_same(np.asarray(outcome(mw.lax.clamp, call, mnp.asarray)), np.clip(x, low, high)).all())


def as_scipy(name: str, call: Call) -> bool:
    def wide(*args: Any, **named: Any) -> Any:
        return function_of(scipy, name.removeprefix("scipy."))(*(_in_doubles(a) for a in args), **named)

    with np.errstate(all="ignore"):
        return _agrees(name, call, function_of(mw, name), function_of(jax, name), wide, call.loose)


def _in_doubles(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind in "fViub" else x


def _prefixed(module: str, names: str) -> str:
    return " ".join(f"{module}.{n}" for n in names.split())


def _transforms_nothing(call: Call) -> bool:
    sizes = {*np.shape(call.args[0]), call.kwargs.get("n")}
    return bool(sizes & {0, 1})  # of half a spectrum of one point, nothing


def _has_zero(x: np.ndarray) -> bool:
    return bool((x == 0).any())


_COMPLEX = "abs acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinc sinh sqrt tan tanh"
EXCUSES = [
    Excuse(_COMPLEX + " square power float_power", "values", "complex values at infinities and zeros are C99's", as_numpy),
    Excuse("sin sinh", "values", "the signs of infinities beside NaN are open in C99; ours make the functions odd", as_numpy_with_signs, "c"),
    Excuse("maximum minimum fmax fmin max min nanmax nanmin less less_equal greater greater_equal ptp clip", "values",
               "NaN in complex numbers is kept and never below or above, as in NumPy", kinds="c"),
    Excuse("argmax argmin nanargmax nanargmin clip", "accepted", "complex numbers have NumPy's order everywhere", kinds="c"),
    Excuse("less less_equal greater greater_equal equal not_equal", "values", "numbers that do not fit are compared by value", as_numpy, "u"),
    Excuse("multiply divide true_divide sign remainder floor_divide fmod modf divmod spacing heaviside", "values", "signs of zeros are NumPy's", as_numpy),
    Excuse("fmod remainder floor_divide divmod", "values", "a quotient by the integer 0 is not defined", kinds="biu"),
    Excuse("angle", "dtype", "floats stay what they are, as in NumPy", kinds="hf"),
    Excuse("sort", "values", "descending order keeps the order of equal elements, as argsort does", when=lambda c: c.kwargs.get("descending", False)),
    Excuse("sort argsort lexsort unique unique_values unique_all unique_counts unique_inverse union1d setxor1d intersect1d "
               "setdiff1d searchsorted median", "values", "the place of complex NaN", kinds="c"),
    Excuse("partition argpartition", "values", "order within the parts is open", same_parts),
    Excuse("partition argpartition kron polyadd polysub round sum prod insert place ix_ einsum choose diff ediff1d median "
               "percentile quantile nanmedian nanpercentile nanquantile gradient trapezoid interp vander indices roots isin "
               "bincount digitize rot90 select extract compress fabs array_split polyval polyfit poly linspace meshgrid",
               "accepted", "NumPy accepts it"),
    Excuse("argpartition random.categorical", "dtype int64, expected int32", "positions are of the default type, as argsort's and argmax's"),
    Excuse("power", "values", "powers of integers wrap around; negative ones are quotients rounded towards zero", truncated, "iu"),
    Excuse("tri", "dtype float64, expected float32", "of the default type, as eye's, zeros' and NumPy's"),
    Excuse("random.f", "values", "of degrees that are not positive nothing is drawn", when=lambda c: any(np.min(a) < 0 for a in c.args[1:3])),
    Excuse("random.generalized_normal", "accepted", "the number 0 as an array of it", when=lambda c: c.args[1] == 0),
    Excuse("scipy.stats.norm.isf scipy.stats.norm.ppf", "dtype float32, expected float64", "floats stay what they are", kinds="hf"),
    Excuse("linalg.eigh", "values", "the phases of vectors are open", same_eigenspaces, when=lambda c: c.kwargs.get("UPLO") == "U"),
    Excuse("matmul dot vdot inner tensordot vecdot einsum linalg.matmul linalg.vecdot linalg.tensordot "
               "lax.dot lax.dot_general lax.conv", "accepted", "results may be narrower",
               when=lambda c: "preferred_element_type" in c.kwargs),
    Excuse("logaddexp logaddexp2", "values", "sums of complex infinities that are known; negative sums", on_the_cut, "c"),
    Excuse("random.f", "accepted", "parameters are broadcast to the shape", when=lambda c: "shape" in c.kwargs),
    Excuse("random.poisson", "values", "at no finite rate nothing is drawn, as at none that is NaN", when=lambda c: np.isinf(c.args[1]).any()),
    Excuse("random.randint", "refused", "bounds are integers", kinds="bhfc"),
    Excuse("random.randint", "accepted", "the upper bound is exclusive, and may be one past the last integer", when=lambda c: c.args[3] == 2**31),
    Excuse("random.weibull_min", "values", "1 / concentration is computed in the dtype of the draws", near_in_parameters, "hf"),
    Excuse("random.chisquare", "values", "of degrees that are not positive nothing is drawn", when=lambda c: np.min(c.args[1]) < 0),
    Excuse("random.weibull_min", "values", "each element is drawn by itself, not all alike", when=lambda c: "shape" not in c.kwargs),
    Excuse("random.dirichlet", "values", "of negative parameters nothing is drawn", when=lambda c: np.min(c.args[1]) < 0),
    Excuse("linalg.slogdet", "values", "the sign of NaN is NaN", when=lambda c: np.isnan(c.args[0]).any()),
    Excuse("linalg.slogdet", "values", "0 of a singular matrix, where JAX's is rounding", singular, "b"),
    Excuse("linalg.slogdet", "accepted", "complex matrices have a QR decomposition, too", kinds="c"),
    Excuse("linalg.matrix_rank", "dtype int64, expected int32", "of the default type, as ranks of matrices", when=lambda c: c.args[0].ndim < 2),
    Excuse("polyint", "not weakly", "floats of bools are not weakly typed elsewhere", kinds="b"),
    Excuse("linalg.multi_dot", "refused", "NumPy refuses one array, too", when=lambda c: len(c.args[0]) < 2),
    Excuse("linalg.vector_norm", "dtype", "norms of integers are floats, as linalg.norm's are", kinds="biu"),
    Excuse("linalg.vector_norm", "values", "powers of integers would wrap around, and their roots be cut off", as_numpy, "biu"),
    Excuse("linalg.vector_norm", "accepted", "the number of integers that are not 0, as linalg.norm's", kinds="biu", when=lambda c: c.kwargs.get("ord") == 0),
    Excuse("linalg.lstsq", "dtype", "residuals that are none are of the others' dtype", when=lambda c: "numpy_resid" in c.kwargs),
    Excuse("linalg.svd", "values", "which vectors equal singular values have is open", kinds="b", when=lambda c: "hermitian" in c.kwargs),
    Excuse("cumulative_prod", "dtype", "narrow integers are widened, as the array API says and cumulative_sum does", kinds="biu"),
    Excuse("cumulative_prod", "values", "narrow integers that are widened do not wrap around", as_numpy, "iu"),
    Excuse("nanpercentile nanquantile percentile quantile median nanmedian", "values", "rounding of an interpolation of equals", as_numpy),
    Excuse("polyfit", "values", "columns are scaled in the common dtype, not in that of x", as_numpy, when=lambda c: c.args[0].dtype != c.args[1].dtype),
    Excuse("roots", "values", "the order of zeros is open", same_elements),
    Excuse("nn.sigmoid nn.silu nn.glu nn.log1mexp nn.softmax nn.log_softmax scipy.special.log_ndtr scipy.special.ndtr "
               "scipy.special.ndtri", "accepted", "integers, bools and halves are computed with as floats", kinds="biuh"),
    Excuse("nn.log1mexp nn.log_sigmoid nn.soft_sign nn.squareplus nn.softmax nn.log_softmax nn.standardize nn.gelu nn.celu "
               "nn.logsumexp nn.logmeanexp scipy.special.softmax scipy.special.log_softmax", "values", "integers wrap around in JAX's", of_floats, "iu"),
    Excuse("scipy.stats.mode", "dtype", "floats stay what they are, as in SciPy", kinds="hf", when=lambda c: c.args[0].size == 0),
    Excuse("scipy.stats.dirichlet.pdf scipy.stats.dirichlet.logpdf", "values", "where alpha is below 1, densities grow without limit towards 0", infinite_at_zero),
    Excuse("scipy.stats.multinomial.pmf scipy.stats.multinomial.logpmf", "accepted", "floats may be whole numbers; others have no probability", kinds="hf"),
    Excuse("scipy.special.spence scipy.special.kl_div", "values", "limits at infinity, where JAX subtracts infinities", numbers_for_nan, "fh"),
    Excuse("scipy.special.spence", "accepted", "halves are computed with as floats", kinds="h"),
    Excuse("nn.log_sigmoid", "accepted", "bools are computed with as floats", kinds="b"),
    Excuse("nn.hard_tanh", "values", "no unsigned number is below -1, which wraps around in JAX's", kinds="u"),
    Excuse("logaddexp2", "values", "rounding of halves", kinds="h"),
    Excuse("nn.sparse_sigmoid", "accepted", "complex numbers have NumPy's order everywhere", kinds="c"),
    Excuse(" ".join(n for n in TABLES if n.startswith("nn.initializers.")), "accepted", "of no elements any variance is right", when=lambda c: any(0 in shape for shape in c.made[1:])),
    Excuse("nn.initializers.orthogonal nn.initializers.delta_orthogonal", "refused: qr: expected", "what has no decomposition has none of nothing", when=lambda c: any(0 in shape for shape in c.made[1:])),
    Excuse(" ".join(n for n in TABLES if n.startswith(("scipy.stats.norm.", "scipy.stats.truncnorm.", "scipy.stats.uniform."))),
               "weakly", "of numbers as other distributions"),
    Excuse("lax.linalg.qdwh", "dtype int32, expected int64", "iterations are 32-bit numbers in XLA's loops, of strong type"),
    Excuse("lax.linalg.qdwh", "not weakly", "iterations are 32-bit numbers in XLA's loops, of strong type"),
    Excuse("lax.linalg.qdwh", "values at ()", "iterations until NaN are all that there are, and those do not converge", when=lambda c: not np.isfinite(c.args[0]).all()),
    Excuse("lax.linalg.qdwh", "values", "how fast a kernel, which is rounding, gets a factor is open", polar_factors),
    Excuse("lax.linalg.eigh", "values", "the phases of vectors are open", same_eigenspaces, when=lambda c: not c.kwargs.get("lower", True)),
    Excuse("lax.linalg.hessenberg lax.linalg.tridiagonal", "accepted", "the decomposition of nothing is nothing", when=lambda c: c.args[0].size == 0),
    Excuse("lax.linalg.triangular_solve lax.linalg.cholesky_update", "refused", "LAPACK has no halves", kinds="h"),
    Excuse("lax.linalg.eigh", "accepted", "a part of the results", when=lambda c: "subset_by_index" in c.kwargs),
    Excuse("lax.linalg.cholesky_update", "accepted", "complex numbers, too", kinds="c"),
    Excuse("ldexp", "refused", "bools are no exponents", kinds="b"),
    Excuse("heaviside", "weakly", "a number beside bools is weakly typed, as elsewhere", kinds="b"),
    Excuse(_prefixed("lax", "sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh exp expm1 log log1p sqrt rsqrt square pow"),
               "values", "XLA's complex functions at infinities: those of meshwright.numpy are C99's", kinds="c"),
    Excuse(_prefixed("lax", "pow reciprocal integer_pow select_n reduce_max reduce_min argmax argmin dynamic_slice broadcast_shapes "
               "random_gamma_grad"), "accepted", "more dtypes, axes that count from the end, scalars and indices of several dtypes"),
    Excuse(_prefixed("lax", "reduce_sum reduce_prod reduce_and reduce_or reduce_xor cumsum cumprod cummax cummin cumlogsumexp"),
               "accepted", "axes that count from the end; of bools whether one or all hold, as lax.add and lax.mul say"),
    Excuse(_prefixed("lax", "reduce associative_scan scatter_add scatter_mul scatter_sub"), "accepted", "of bools as lax.add and lax.mul", kinds="b"),
    Excuse(_prefixed("lax", "reduce_max reduce_min cummax cummin associative_scan reduce_window max min sort"), "values",
               "NaN in complex numbers is kept and never below or above, as in NumPy", kinds="c"),
    Excuse("ops.segment_sum ops.segment_prod", "accepted", "of bools as lax.add and lax.mul", kinds="b"),
    Excuse("lax.convert_element_type", "values", "of complex numbers whether either part is not 0, as in NumPy", kinds="c"),
    Excuse("lax.clamp", "accepted", "XLA clamps no bools and complex numbers, which have NumPy's order everywhere", as_clip, "bc"),
    Excuse("lax.broadcast_in_dim", "refused", "broadcast_dimensions are increasing, as JAX documents"),
    Excuse("lax.random_gamma_grad", "refused", "ops take equal shapes or scalars"),
    Excuse("lax.cumlogsumexp", "values", "log(exp(-0.0)) is 0", when=lambda c: _has_zero(c.args[0])),
    Excuse("lax.cumlogsumexp", "refused", "integers are no logarithms, not even none of them", kinds="iu"),
    Excuse("lax.reduce", "values", "what is reduced over no axis still begins with the initial value", when=lambda c: c.args[3] == ()),
    Excuse("lax.sort", "values", "the order of equal elements is open where is_stable is False", when=lambda c: c.kwargs.get("is_stable") is False),
    Excuse("lax.dot_general", "dtype", "two integer dtypes are promoted", kinds="u"),
    Excuse("lax.dot_general", "values", "two integer dtypes are promoted, and numbers do not wrap around", modulo, "u"),
    Excuse("lax.empty", "dtype float32, expected float64", "without 64-bit types there are none"),
    Excuse("lax.gather", "values", "indices outside are filled without a mode; undefined in JAX", when=lambda c: c.kwargs["mode"] is None),
    Excuse("full full_like", "refused", "a Python float that is NaN or infinite is no integer"),
    Excuse("dot matmul delete", "accepted", "numbers beside narrow integers; lists of positions, as in NumPy"),
    Excuse("setxor1d intersect1d", "shape", "zeros of both signs are not unique", when=lambda c: "assume_unique" in c.kwargs),
    Excuse("mean average", "values", "of a complex sum each part is divided", numbers_for_nan, "c"),
    Excuse("var nanvar", "refused", "no variance is computed in integers; JAX refuses std", when=_asks_for_integers),
    Excuse("power", "dtype", "a bool and a number make the default integer, as elsewhere", when=lambda c: c.args[0] is True),
    Excuse("lax.fft", "accepted", "halves are computed with as floats", kinds="h"),
    Excuse(" ".join(n for n in TABLES if n.startswith(("scipy.stats.", "scipy.special."))), "values",
           "outside of parameters' ranges and at infinities as SciPy has it", as_scipy),
    Excuse("scipy.special.zeta", "values", "the limit where q is infinite is 0", when=lambda c: bool(np.isinf(c.args[1]).any())),
    Excuse(_prefixed("fft", "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"), "refused",
           "nothing has no transform; NumPy refuses, too", when=_transforms_nothing),
    Excuse(_prefixed("fft", "rfft ihfft rfft2 rfftn"), "accepted", "halves are computed with as floats", kinds="h"),
    Excuse("fft.fftfreq fft.rfftfreq", "refused", "frequencies are floats", kinds="buic"),
    Excuse(" ".join(n for n in TABLES if n.startswith(("scipy.stats.norm.", "scipy.stats.truncnorm."))), "accepted",
           "halves and integers are computed with as floats", kinds="hiu"),
    Excuse("spacing sinc", "values", "those of halves like those of other floats", kinds="h"),
    Excuse("lax.linalg.cholesky lax.linalg.eigh", "refused", "the mean of bools is no matrix", kinds="b"),
    Excuse("lax.linalg.eigh", "not weakly", "floats of integers", kinds="iu"),
    Excuse("scipy.special.owens_t", "dtype", "floats stay what they are", as_scipy, kinds="hf"),
    Excuse("scipy.special.owens_t scipy.special.gamma scipy.special.poch scipy.special.multigammaln", "weakly",
           "of numbers as elsewhere"),
    Excuse("linalg.matrix_rank", "accepted", "no rows have rank 0, as in NumPy"),
    Excuse("linalg.matrix_rank", "values", "rtol is relative to the largest singular value", as_numpy),
    Excuse("linalg.slogdet linalg.pinv linalg.qr linalg.lstsq linalg.svd linalg.svdvals lax.linalg.qr lax.linalg.svd", "refused", "LAPACK has no halves", kinds="h"),
    Excuse("lax.linalg.symmetric_product lax.linalg.cholesky_update", "accepted", "integers are multiplied, too", kinds="bui"),
    Excuse("lax.linalg.symmetric_product", "accepted", "complex numbers are multiplied, too", kinds="c"),
    Excuse(_prefixed("random", "bernoulli categorical geometric multinomial triangular"), "accepted", "integers and bools are probabilities "
           "and logits too, and any dtype may be asked for"),
    Excuse("random.multivariate_normal", "accepted", "halves are computed with as floats", kinds="h"),
    Excuse(_prefixed("random", "logistic poisson multinomial"), "values", "rounding of halves", kinds="h"),
]  # fmt: skip
#: Python integers that do not fit a dtype are refused, as in NumPy 2; JAX wraps them around
DOES_NOT_FIT = "does not fit in"


def excused(name: str, call: Call, found: str) -> bool:
    own = name.removeprefix("numpy.")
    exact = replace(call, loose=TABLES[name].loose)
    refused = found.startswith(("refused", "accepted", "foreign"))
    parts = [found] if refused else found.split("; ")
    return DOES_NOT_FIT in found or all(any(e.holds(own, exact, part) for e in EXCUSES) for part in parts)
