"""Which functions of the libraries are elementwise, the points at which they are compared, and where JAX is not right.

``found`` asks JAX what each public name does to vectors, so that no function is left out of the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.scipy.special
import numpy as np

LIBRARIES = ("numpy", "lax", "nn", "scipy.special")
INF, NAN = np.inf, np.nan
#: where unary functions are asked; pairs and triples are all of the others
ONE = (0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3.5, -3.5, 1e-20, 1e-8, -1e-8, 7, -6, 40, -40, 800, -800, INF, -INF, NAN)
TWO = (0.0, -0.0, 1, -1, 0.5, -1.5, 2, 3, -3, INF, -INF, NAN)
THREE = (0.0, 1, -1, 0.5, 2, INF, NAN)

#: the public functions that map vectors to a vector of their size, with the number of vectors; ``test_table`` looks for
#: others
TABLE = {
    ("numpy", 1): """abs acos acosh arcsin arcsinh arctan arctanh around cbrt ceil cos cosh deg2rad degrees exp exp2
        expm1 fabs floor i0 log log10 log1p log2 negative positive real reciprocal rint sign sin sinc sinh sqrt square
        tan tanh trunc""",
    ("numpy", 2): """add arctan2 copysign divide float_power floor_divide fmax fmin fmod heaviside hypot logaddexp
        logaddexp2 maximum minimum mod multiply nextafter pow subtract""",
    ("numpy", 3): "clip where",
    ("lax", 1): """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv
        erfc exp exp2 expm1 floor lgamma log log1p logistic neg reciprocal round rsqrt sign sin sinh sqrt square
        stop_gradient tan tanh""",
    ("lax", 2): "add atan2 div igamma igamma_grad_a igammac max min mul nextafter polygamma pow rem sub zeta",
    ("lax", 3): "betainc clamp",
    ("nn", 1): """celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log1mexp log_sigmoid mish relu relu6 selu
        sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus tanh""",
    ("scipy.special", 1): """dawsn digamma entr erf erfc erfcx erfinv exp1 expi expit factorial gamma gammaln gammasgn
        i0 i0e i1 i1e log_ndtr loggamma logit ndtr ndtri spence""",
    ("scipy.special", 2): """beta betaln boxcox boxcox1p expn gammainc gammaincc kl_div owens_t poch rel_entr xlog1py
        xlogy""",
    ("scipy.special", 3): "betainc",
}
#: functions of vectors that are not elementwise, or only move elements: other tests have them
OTHER = set(
    """roll gradient unwrap correlate convolve polyadd polysub polymul cumsum cumprod cumulative_sum cumulative_prod
    nancumsum nancumprod cummax cummin cumlogsumexp sort sort_complex flip fliplr flipud ediff1d interp trapezoid
    quantile percentile nanquantile nanpercentile softmax log_softmax standardize polyval polyder polyint
    dot_product_attention searchsorted take choose select compress extract place put insert delete append resize
    trim_zeros roots stack nan_to_num rng_uniform reduce_precision angle logsumexp array asarray atleast_1d block clip
    conj conjugate copy empty_like hstack imag ones_like ravel squeeze zeros_like full_like histogram_bin_edges
    piecewise optimization_barrier broadcast_like identity spacing""".split()
)
#: whose second argument is whole, or has too long a derivative for a quick test
SLOW = {"scipy.special.comb", "scipy.special.zeta", "lax.regularized_incomplete_beta", "scipy.special.hyp1f1",
        "scipy.special.hyp2f1", "scipy.special.bernoulli", "lax.random_gamma_grad"}  # fmt: skip


@dataclass(frozen=True)
class Otherwise:
    """Where JAX is not followed: at the points ``where``, in the parts of these names (all), and why."""

    why: str
    where: Any = None
    parts: tuple[str, ...] = ()

    def orders(self) -> set[int]:
        """Which derivatives it is about: 1, 2."""
        return {len(part.removeprefix("rev ")) - 1 for part in self.parts} or {1, 2}


def anywhere(*xs: Any) -> Any:
    return np.ones(xs[0].shape, bool)


#: by function, what JAX has otherwise
EXCEPTIONS: dict[str, Otherwise] = {
    "sinc": Otherwise("cancels near 0 there", lambda x: np.abs(x) < 1e-4),
    "i0": Otherwise("its slope at 0 is 0, not 1, and its second derivative 1/2", lambda x: x == 0),
    "i1": Otherwise("its second derivative near 0 is 3x/8", lambda x: np.abs(x) < 1e-6, ("d00", "rev d00")),
    "i1e": Otherwise("cancels near 0 there", lambda x: np.abs(x) < 1e-6, ("d00", "rev d00")),
    "bessel_i1e": Otherwise("cancels near 0 there", lambda x: np.abs(x) < 1e-6, ("d00", "rev d00")),
    "celu": Otherwise("averages one-sided second derivatives", lambda x, a=None: x == 0, ("d00", "rev d00")),
    "log1mexp": Otherwise("-0 is no positive number", lambda x: (x == 0) & np.signbit(x)),
    "logaddexp": Otherwise("takes infinities for 0", lambda x, y: np.isinf(x) | np.isinf(y)),
    "logaddexp2": Otherwise("takes infinities for 0", lambda x, y: np.isinf(x) | np.isinf(y)),
    "clamp": Otherwise("none by a bound below the lower", lambda a, x, b: ~(a <= b), ("d2", "rev d2")),
    "beta": Otherwise("counts equal arguments once in second derivatives", lambda a, b: a == b),
    "betaln": Otherwise("counts equal arguments once in second ones; poles", lambda a, b: (a == b) | ~(a + b > 0)),
    "rel_entr": Otherwise("infinite arguments", lambda x, y: ~np.isfinite(x) | ~np.isfinite(y)),
    "kl_div": Otherwise(
        "it is infinite there", lambda x, y: ~np.isfinite(x) | ~np.isfinite(y) | ~(x > 0) | ~(y > 0)
    ),
    "log_ndtr": Otherwise("cancels far out", lambda x: x < -100),
    "logit": Otherwise("infinite arguments", np.isinf, ("d00", "rev d00")),
    "xlogy": Otherwise(
        "the slope by x is log(y) for every x, that by y is x / y", lambda x, y: ~np.isfinite(x * y) | ~(y > 0)
    ),
    "xlog1py": Otherwise(
        "the slope by x is log1p(y) for every x, that by y is x / (1 + y)", lambda x, y: ~np.isfinite(x * y) | ~(y > -1)
    ),
    "owens_t": Otherwise("infinite arguments", lambda x, y: ~np.isfinite(x) | ~np.isfinite(y)),
    "poch": Otherwise("infinite arguments", lambda x, y: ~np.isfinite(x) | ~np.isfinite(y)),
    "boxcox": Otherwise("has none by the power at 0, and infinite slopes at 0", lambda x, y: (x == 0) | (y == 0)),
    "boxcox1p": Otherwise("has none by the power at 0, and infinite slopes at -1", lambda x, y: (x == -1) | (y == 0)),
    "hypot": Otherwise(
        "second ones leave out what is 0 or as large as the other",
        lambda x, y: (np.abs(x) == np.abs(y)) | (x * y == 0),
        ("d00", "rev d00", "d01", "rev d01", "d10", "rev d10", "d11", "rev d11"),
    ),
    "spence": Otherwise("its slope near 0 is log(x), whose own at 1 is 1/2", lambda x: (x < 1e-9) | (x == 1)),
    "ndtri": Otherwise("its slopes at 0 and 1 are infinite", lambda p: (p == 0) | (p == 1)),
    "fresnel": Otherwise("second derivatives are those of the integrand", lambda x: np.isfinite(x), ("d00",)),
    "elu": Otherwise("an infinite scale", lambda x, a=None: a is not None and ~np.isfinite(a)),
}  # fmt: skip


#: where JAX does not return: of vectors it sums a series for the other sign, too, until that converges
ENDLESS = {"expi": lambda x: np.abs(x) == 1e-8}


def modules(library: str) -> tuple[Any, Any]:
    return importlib.import_module(f"meshwright.{library}"), importlib.import_module(f"jax.{library}")


def points(name: str, arity: int) -> tuple[np.ndarray, ...]:
    """Vectors of all combinations of special points at which to compare a function."""
    one = np.array((ONE, TWO, THREE)[arity - 1], np.float64)
    all_of_them = [a.ravel() for a in np.meshgrid(*[one] * arity, indexing="ij")]
    return tuple(a[~ENDLESS[name](*all_of_them)] if name in ENDLESS else a for a in all_of_them)


def _elementwise(f: Any, arity: int) -> bool:
    try:
        out = jax.eval_shape(lambda *xs: f(*xs), *[jax.ShapeDtypeStruct((5,), np.float32)] * arity)
    except Exception:
        return False
    return getattr(out, "shape", None) == (5,) and out.dtype.kind == "f"


def functions() -> list[tuple[str, str, int]]:
    """(library, name, number of arguments) of the table."""
    return [(library, name, arity) for (library, arity), names in TABLE.items() for name in names.split()]


def found() -> Iterator[tuple[str, str, int]]:
    """What of the libraries' public functions maps vectors to a vector of their size."""
    for library in LIBRARIES:
        ours, theirs = modules(library)
        seen: set[Any] = set()
        for name in getattr(ours, "__all__", None) or [n for n in dir(ours) if not n.startswith("_")]:
            f, g = getattr(ours, name, None), getattr(theirs, name, None)
            if (
                name in OTHER
                or f"{library}.{name}" in SLOW
                or not callable(f)
                or not callable(g)
                or isinstance(g, type)
            ):
                continue
            if id(f) in seen:  # another name of it
                continue
            seen.add(id(f))
            arity = next((k for k in (1, 2, 3) if _elementwise(g, k)), None)
            if arity is not None:
                yield library, name, arity
