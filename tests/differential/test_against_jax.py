# ruff: noqa: E501
"""Every function of the tables against JAX's of that name: values, dtypes, weak types, shapes, and what is refused.

Where JAX is wrong, or leaves open what we define, an exception says so; with ``numpy`` the values must be NumPy's.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import jax
import library_table
import numpy as np
import numpy_table
import pytest
from arguments import OF_32_BITS, OF_64_BITS
from kinds import Kind
from outcomes import Call, Weak, difference, outcome, same

import meshwright as mw
import meshwright.numpy as mnp

for _part in ("linalg", "special", "stats"):
    importlib.import_module(f"jax.scipy.{_part}")


@dataclass(frozen=True)
class Exception_:
    """``found`` is how the difference begins: ``values``, ``accepted``, ``refused``, ``dtype``, ``shape``, ``weakly``.

    It holds of calls with an argument of one of ``kinds``: NumPy's letters, ``h`` for floats of 16 bits; "" for any.
    """

    names: str
    found: str
    reason: str
    numpy: bool = False
    kinds: str = ""

    def holds(self, name: str, call: Call, found: str) -> bool:
        if name not in self.names.split() or not found.startswith(self.found):
            return False
        return (not self.kinds or bool(kinds_of(call) & {*self.kinds})) and (not self.numpy or as_numpy(name, call))


def kinds_of(call: Call) -> set[str]:
    """The kinds of all arrays and numbers of a call."""
    leaves = jax.tree.leaves((call.args, call.kwargs))
    dtypes = [np.asarray(x.value if isinstance(x, Weak) else x).dtype for x in leaves]
    return {"h" if d.itemsize == 2 and d.kind in "fV" else d.kind for d in dtypes}


_COMPLEX = "abs acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinc sinh sqrt tan tanh"
EXCEPTIONS = [
    Exception_(_COMPLEX + " square power float_power", "values", "complex values at infinities and zeros are C99's", True),
    Exception_("maximum minimum fmax fmin max min nanmax nanmin less less_equal greater greater_equal ptp clip", "values",
               "NaN in complex numbers is kept and never below or above, as in NumPy", True),
    Exception_("argmax argmin nanargmax nanargmin clip", "accepted", "complex numbers have NumPy's order everywhere", kinds="c"),
    Exception_("sign remainder floor_divide fmod modf divmod spacing heaviside", "values", "signs of zeros are NumPy's", True),
    Exception_("fmod remainder floor_divide divmod", "values", "a quotient by the integer 0 is not defined", kinds="biu"),
    Exception_("angle", "dtype", "floats stay what they are, as in NumPy", kinds="hf"),
    Exception_("arctan2", "refused", "complex numbers have no quadrants; NumPy refuses, too", kinds="c"),
    Exception_("sort sort_complex", "values", "descending order keeps the order of equal elements, as argsort does"),
    Exception_("sort argsort lexsort unique unique_values unique_all unique_counts unique_inverse union1d setxor1d intersect1d "
               "setdiff1d searchsorted median", "values", "the place of complex NaN", kinds="c"),
    Exception_("partition argpartition", "values", "order within the parts is open"),
    Exception_("partition argpartition kron polyadd polysub round sum prod insert place ix_ einsum choose diff ediff1d median "
               "percentile quantile nanmedian nanpercentile nanquantile gradient trapezoid interp vander indices roots isin "
               "bincount digitize rot90 select extract compress fabs array_split polyval polyfit poly linspace",
               "accepted", "NumPy accepts it"),
    Exception_("cumulative_prod", "dtype", "narrow integers are widened, as the array API says and cumulative_sum does", kinds="biu"),
    Exception_("nanpercentile nanquantile percentile quantile median nanmedian", "values", "rounding of an interpolation of equals"),
    Exception_("roots", "values", "the order of zeros is open"),
    Exception_("nn.sigmoid nn.silu nn.glu nn.log1mexp nn.softmax nn.log_softmax scipy.special.log_ndtr scipy.special.ndtr "
               "scipy.special.ndtri", "accepted", "integers, bools and halves are computed with as floats", kinds="biuh"),
    Exception_("nn.log1mexp nn.log_sigmoid nn.soft_sign nn.squareplus nn.softmax nn.log_softmax nn.standardize nn.gelu nn.celu "
               "nn.logsumexp nn.logmeanexp", "values", "integers wrap around in JAX's", kinds="iu"),
    Exception_("scipy.special.exp1 scipy.special.expi scipy.special.spence scipy.special.gammainc scipy.special.gammaincc "
               "scipy.special.rel_entr scipy.special.kl_div", "values", "limits, NaN and infinities are SciPy's"),
    Exception_("scipy.special.spence", "accepted", "halves are computed with as floats", kinds="h"),
    Exception_("nn.log_sigmoid", "accepted", "bools are computed with as floats", kinds="b"),
    Exception_("logaddexp2", "values", "rounding of halves", kinds="h"),
    Exception_("ldexp", "refused", "bools are no exponents", kinds="b"),
]  # fmt: skip
#: Python integers that do not fit a dtype are refused, as in NumPy 2; JAX wraps them around
DOES_NOT_FIT = "does not fit in"
TABLES: dict[str, Kind] = {**{f"numpy.{n}": k for n, k in numpy_table.TABLE.items()}, **library_table.TABLE}


def function_of(package: Any, name: str) -> Any:
    for part in name.split("."):
        package = getattr(package, part)
    return package


def excused(name: str, call: Call, found: str) -> bool:
    own = name.removeprefix("numpy.")
    return DOES_NOT_FIT in found or any(exception.holds(own, call, found) for exception in EXCEPTIONS)


def as_numpy(name: str, call: Call) -> bool:
    """Whether our values are NumPy's."""
    with np.errstate(all="ignore"):
        got = outcome(getattr(mnp, name), call, mnp.asarray)
        want = outcome(getattr(np, name), call, lambda x: np.asarray(mnp.asarray(x)))
    if isinstance(got, Exception) or isinstance(want, Exception):
        return False
    gots, wants = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    return all(same(np.asarray(g), np.asarray(w), signs=False) for g, w in zip(gots, wants))


def check(name: str, calls: list[Call], loose: float) -> None:
    ours, theirs = function_of(mw, name), function_of(jax, name)
    wrong = []
    for call in calls:
        found = difference(ours, theirs, Call(call.args, call.kwargs, loose))
        if found and not excused(name, call, found):
            wrong.append(f"{name}({call}): {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", TABLES)
def test_some_calls(name: str) -> None:
    """Two calls of each function."""
    calls = list(TABLES[name].calls(OF_32_BITS))
    check(name, calls[:: max(1, -(-len(calls) // 2))], TABLES[name].loose)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("name", TABLES)
def test_all_calls(name: str, wide: bool) -> None:
    with mw.enable_x64(wide), jax.enable_x64(wide):
        check(name, list(TABLES[name].calls(OF_64_BITS if wide else OF_32_BITS)), TABLES[name].loose)


def test_the_table_has_every_function_of_numpy() -> None:
    listed = {*numpy_table.TABLE, *numpy_table.SYNONYMS, *numpy_table.ELSEWHERE.split()}
    shared = {n for n in dir(mnp) if n in dir(jax.numpy) and n[0] != "_" and callable(getattr(mnp, n))}
    missing = {
        n for n in shared - listed if not isinstance(getattr(mnp, n), type) and not hasattr(getattr(mnp, n), "dtype")
    }
    assert not missing, sorted(missing)
    for synonym, name in numpy_table.SYNONYMS.items():
        assert getattr(mnp, synonym) is getattr(mnp, name), synonym
