"""Where we mean to differ from JAX: in which op, of which values, in which way, and why.

What NumPy says of a program, too, needs no entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as onp
from fuzz_programs import HUGE, Case

#: with which a reason begins that is no entry of ours: who says what we do
SAID = "as"
DERIVATIVES = "gradient|tangent|derivative"


#: how a program fails the check in question, if it does
Ask = Callable[[Case], Any]


# --- what an input has somewhere ----------------------------------------------------------------------------
def _part(test: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Whether a test says yes of an element of an array, or of its real or imaginary part."""

    def has(x: Any) -> bool:
        parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
        return any(bool(onp.any(test(p.astype(onp.float64)))) for p in parts)

    return has


nan, infinity = _part(onp.isnan), _part(onp.isinf)
zero = _part(lambda x: x == 0)
negative, below_one = _part(lambda x: x < 0), _part(lambda x: x < 1)
no_finite = _part(lambda x: ~onp.isfinite(x))
huge = _part(lambda x: onp.abs(x) > 1e9)


def extreme(x: Any) -> bool:
    """Finite numbers of which products and quotients of four leave the narrow types: those of 16 bits, or of 32."""
    least, most = (1 / 64, 16) if half(x) else (1e-9, 1e9)
    return _part(lambda v: onp.isfinite(v) & (v != 0) & ~((onp.abs(v) > least) & (onp.abs(v) < most)))(x)


def half_nan(x: Any) -> bool:
    """A complex infinity whose other part is NaN."""
    parts = onp.asarray([x.real, x.imag], onp.float64)
    return bool(onp.any(onp.isinf(parts) & onp.isnan(parts[::-1])))


def on_cut(x: Any) -> bool:
    """Complex numbers on the imaginary axis beyond 1."""
    return bool(onp.any((x.real == 0) & (abs(x.imag) > 1)))


def overflows(x: Any) -> bool:
    """Squares of finite numbers do."""
    return bool(onp.any(onp.isfinite(x) & ~onp.isfinite(onp.square(x)))) if x.dtype.kind != "b" else False


def wraps(x: Any) -> bool:
    """Squares of integers do."""
    return bool(onp.any(onp.square(x.astype(onp.float64)) > onp.iinfo(x.dtype).max))


def half(x: Any) -> bool:
    return bool(x.dtype == onp.float16)


def without_infinity(x: Any) -> bool:
    """A type that has none."""
    return str(x.dtype).endswith("fn")


def nothing(x: Any) -> bool:
    return x.size == 0


def a_number(x: Any) -> bool:
    return x.ndim == 0


def ties(x: Any) -> bool:
    return len(onp.unique(x.ravel(), equal_nan=False)) < x.size


def anything(x: Any) -> bool:
    return True


# --- how elements differ ------------------------------------------------------------------------------------
def ours_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(ours)


def some(ours: Any, theirs: Any) -> Any:
    """Any values, where the types are the same."""
    return onp.full(ours.shape, True)


def not_finite(ours: Any, theirs: Any) -> Any:
    return ~(onp.isfinite(ours) & onp.isfinite(theirs))


def finite(ours: Any, theirs: Any) -> Any:
    return onp.isfinite(ours) & onp.isfinite(theirs)


def ours_infinite(ours: Any, theirs: Any) -> Any:
    return onp.isinf(ours)


def ours_finite(ours: Any, theirs: Any) -> Any:
    return onp.isfinite(ours)


def neither_finite(ours: Any, theirs: Any) -> Any:
    return ~onp.isfinite(ours) & ~onp.isfinite(theirs)


def theirs_zero(ours: Any, theirs: Any) -> Any:
    return theirs == 0


def as_float32(ours: Any, theirs: Any) -> Any:
    """Numbers of float64 by as much as float32 rounds."""
    return (ours.dtype in (onp.float64, onp.complex128)) & (abs(ours - theirs) <= 1e-5 * (1 + abs(ours)))


def whole(ours: Any, theirs: Any) -> Any:
    return onp.full(ours.shape, ours.dtype.kind in "iu")


def complex_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(ours) & (ours.dtype.kind == "c")


def ours_nan_theirs_infinite(ours: Any, theirs: Any) -> Any:
    return onp.isnan(ours) & onp.isinf(theirs)


def infinite_theirs_nan(ours: Any, theirs: Any) -> Any:
    return onp.isinf(ours) & onp.isnan(theirs)


def theirs_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(theirs)


def one_infinite(ours: Any, theirs: Any) -> Any:
    return onp.isinf(ours) != onp.isinf(theirs)


def only_theirs_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(theirs) & (ours == 0)


def only_theirs_are_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(theirs) & ~onp.isnan(ours)


def either_nan(ours: Any, theirs: Any) -> Any:
    return onp.isnan(ours) | onp.isnan(theirs)


def opposite_infinities(ours: Any, theirs: Any) -> Any:
    return onp.isinf(ours) & (ours == -theirs)


def one_is_nothing(ours: Any, theirs: Any) -> Any:
    least, most = onp.sort([abs(ours.astype(onp.float64)), abs(theirs.astype(onp.float64))], axis=0)
    return least <= 1e-5 * most


def by_one(ours: Any, theirs: Any) -> Any:
    return abs(ours.astype(onp.float64) - theirs.astype(onp.float64)) == 1


def a_turn(ours: Any, theirs: Any) -> Any:
    """By a multiple of 2 pi i."""
    turns = (ours - theirs).astype(onp.complex128) / 2j / onp.pi
    return abs(turns - onp.round(turns.real)) < 1e-2


@dataclass(frozen=True)
class Otherwise:
    """Programs cut down that have ``line`` may differ: patterns, a kind of dtype and a test that an operand fulfils."""

    line: str
    reason: str
    #: of what is compared: "values", "vmap", "gradient", "tangent", "second derivative"
    what: str = ""
    #: of how it is said to differ
    said: str = ""
    kinds: str = "biufcV"
    of: Callable[[Any], bool] = anything
    #: true of all elements that differ
    differ: Callable[[Any, Any], Any] | None = None

    def explained(self, case: Case, how: Any, ask: Ask) -> Any:
        """Which of the elements that differ are meant to; of types and refusals there is one."""
        lines = "\n".join(expression for _, expression in case.lines)
        texts = (self.line, lines), (self.what, how.what), (self.said, how.said)
        if not all(re.search(pattern, text, re.DOTALL) for pattern, text in texts):
            return False
        if not any(x.dtype.kind in self.kinds and self.of(x) for x in _given(case)):
            return False
        if self.differ is None:
            return True
        return how.elements is not None and onp.asarray(self.differ(*how.elements))


#: the sizes of windows, positions and transforms over nothing
_NOTHING_INSIDE = "windows must lie inside|stat_length must be positive|transformed sizes"
_EXTREMA = r"(cum|nan|np\.|np\.a|np\.f|reduce_)(max|min)\(|lax\.(max|min)[(,]|ptp"
_COMPARED = r"cum(max|min)|maximum|minimum|at\[|celu|relu|hard_|nn\.s?elu"
_LOGSUM = r"logaddexp|softplus|log_sigmoid|mish|cumlogsumexp|logsumexp|logmeanexp"
_SUMS = r"sum|@|dot|matmul|einsum|inner|norm|trace|trapezoid|convolve|correlate|lax\.conv|mean|std|var|cov|average"
OTHERWISE = (
    # --- refused ---
    Otherwise("", "Python integers that a dtype does not hold are refused; JAX wraps", said=r"does not fit in u?int"),
    Otherwise(
        r"custom_product", "the cotangent of a real argument is real", said="rule returned a cotangent of type c",
    ),
    Otherwise(r"at\[", "complex numbers lose no part where they are written", said="complex values cannot be written"),
    Otherwise(r"at\[|insert", "values of no elements have to fit", said=r"do not broadcast", of=nothing),
    Otherwise("", "of nothing there is no position, mean or transform", said=_NOTHING_INSIDE, of=nothing),
    Otherwise(r"fft\.irfft", "as many numbers as two less than two are none", said="transformed sizes"),
    Otherwise(r"fft\.ifft", "a number has no axis", said="axis must be an integer", of=a_number),
    Otherwise("np.poly", "vectors have elements", said="expected two vectors with elements", of=nothing),
    Otherwise(r"lax\.", "operands have equal ranks", what="vmap", said="ours refuses: ShapeError"),
    Otherwise("attention", "integers have no softmax", said="expected floats"),
    Otherwise("linalg", "halves have no decompositions, not of nothing either", said="expected float32", of=half),
    Otherwise("dot_general", "complex sums are no real ones", said="complex sums are not kept", kinds="c"),
    Otherwise("lax.conv", "of bools there is no convolution", said="one number dtype", kinds="b"),
    Otherwise("cumlogsumexp", "of integers there is none", said="cumlogsumexp: expected floats"),
    # --- types ---
    Otherwise(
        r"median\(.*keepdims", "of a number, NumPy keeps no dimensions and JAX one",
        said="type|AxisError|axis|is a scalar", of=a_number,
    ),
    Otherwise(r"median\(.*keepdims", "of a row's number, too", what="vmap", said="type|axis", of=lambda x: x.ndim == 1),
    Otherwise(
        r"np\.angle", "JAX's angle of a number is of the default type", said=r"theirs float\d\d\[\]", of=a_number,
    ),
    Otherwise(
        r"np\.angle", "JAX's angle of a number is of the default type", what="vmap", said=r"theirs float\d\d\["
    ),
    Otherwise("dynamic_update", "JAX's become scatters, which keep weak types", what="vmap", said=r"\), theirs ~"),
    Otherwise(
        r"\d \*\* |power\(-?\d", "JAX types powers of numbers by concrete numbers as the first alone",
        said=r"weak: False\), theirs ~",
    ),
    Otherwise(
        r"(equal|less|greater).*\n(.*\n)*.*(fori|while)_loop", "bools are never weak; loops convert JAX's weak ones",
        said=r"carry goes in as bool\[.*dtypes differ",
    ),
    Otherwise(
        r"logsumexp\(.*where=", "JAX's bools become floats by the number that stands for the others", kinds="b",
        said=r"ours has type f32.*theirs float64",
    ),
    Otherwise(
        r"float8_.*\n(.*\n)*.*(logistic|mean|var|std|standardize)", "what has eight bits is rounded once here",
        differ=some,
    ),
    Otherwise(
        "max|logsumexp", "JAX's maxima begin with an infinity", kinds="V", of=without_infinity, differ=theirs_nan,
    ),
    Otherwise(
        r"percentile|quantile|median", "between equal infinities there is no other number", of=infinity,
        differ=infinite_theirs_nan,
    ),
    Otherwise(
        r"jax\.(grad|jac|hessian|value_and|vjp|linear|jvp)", "derivatives are typed as weakly as what they are of",
        said=r"weak: (True|False)\), theirs",
    ),
    # --- integers ---
    Otherwise(r"nn\..*\n(.*\n)*.*astype\(\w+, 'u?int", "what is rounded otherwise may be below", differ=by_one),
    Otherwise(
        r"\*\*|power", "JAX's powers by negative integers are what overflow leaves",
        kinds="iu", of=negative, differ=whole,
    ),
    Otherwise(
        r"(\*\*|power).*\n", "JAX's powers by negative integers are what overflow leaves", what=DERIVATIVES,
        kinds="iu", of=negative,
    ),
    Otherwise(r"np\.clip\(\w+, -", "JAX wraps bounds that a dtype does not hold", kinds="u", differ=some),
    Otherwise("log_sigmoid|log1mexp", "JAX negates integers before they are floats", kinds="iu", differ=some),
    Otherwise(r"at\[.*-1\.5", "no unsigned integer is a negative number; what is written is undefined", kinds="u"),
    Otherwise(
        r"(%|mod\(|remainder\().*\n", "a remainder 0 has the divisor's sign, as in NumPy", differ=opposite_infinities,
    ),
    Otherwise(r"np\.clip", "JAX wraps bounds that a dtype does not hold", kinds="iu", differ=whole),
    # --- complex numbers ---
    Otherwise(
        r"np\.(any|all)\(", "a number with an imaginary part is true, as in NumPy", what=DERIVATIVES,
        kinds="c", of=a_number,
    ),
    Otherwise(
        "", "of products of complex infinities one part is NaN, or both", kinds="c", of=no_finite,
        differ=neither_finite,
    ),
    Otherwise(
        r"prod\(", "JAX multiplies by one, which makes NaN of infinities", kinds="c", of=infinity, differ=theirs_nan,
    ),
    Otherwise(
        _EXTREMA, "JAX's first infinity has no imaginary part, and NaN is lost",
        kinds="c", of=no_finite, differ=not_finite,
    ),
    Otherwise(_EXTREMA, "nor has JAX's extremum of nothing", kinds="c", of=nothing, differ=neither_finite),
    Otherwise(
        _EXTREMA, "so other elements are the extremum", what=DERIVATIVES,
        kinds="c", of=no_finite, differ=some,
    ),
    Otherwise(r"unique\(", "JAX loses NaN among them", kinds="c", of=nan),
    Otherwise(
        r"cond\(|custom_branch|where|select|piecewise| [<>]=? ",
        "NaN, in either part, is not greater than 0, as in NumPy",
        kinds="c", of=no_finite,
    ),
    Otherwise(r"histogram\(", "JAX counts infinities of complex numbers", kinds="c", of=no_finite, differ=some),
    Otherwise(r"sign\(", "JAX's of complex numbers has no derivative", what=DERIVATIVES, kinds="c", differ=theirs_zero),
    Otherwise(
        r"/|divide|reciprocal", "products of complex infinities are NaN in another order", what=DERIVATIVES,
        kinds="c", of=infinity, differ=either_nan,
    ),
    Otherwise(_COMPARED, "JAX loses NaN among them", of=nan, differ=complex_nan),
    Otherwise(_COMPARED, "JAX loses NaN among them", what=DERIVATIVES, kinds="c", of=nan),
    Otherwise(
        r"at\[.*(min|max)\(", "infinite tangents times complex masks are partly NaN", what=DERIVATIVES,
        kinds="c", of=infinity, differ=either_nan,
    ),
    Otherwise(
        "a(rc)?cosh", "JAX's has the wrong sign left of 0, and underflows", what=DERIVATIVES, kinds="c",
        of=_part(lambda x: (x < 0) | (x > 1e9)),
    ),
    Otherwise(_LOGSUM, "JAX's of infinities is NaN", kinds="fc", of=infinity, differ=theirs_nan),
    Otherwise(_LOGSUM, "JAX's logarithm is not always the principal one", kinds="c", differ=a_turn),
    Otherwise(
        r"arctanh|atanh", "an infinity with NaN is NaN; C's quotients by it are 0", what=DERIVATIVES, kinds="c",
        of=half_nan, differ=ours_nan,
    ),
    # --- values ---
    Otherwise("standardize", "JAX squares before it subtracts, which overflows", of=overflows, differ=theirs_nan),
    Otherwise("standardize", "JAX squares integers before it subtracts, which wraps", kinds="iu", of=wraps),
    Otherwise("softmax", "JAX subtracts integers, which wraps", kinds="iu", of=huge),
    Otherwise("softmax", "JAX subtracts the largest of integers, which wraps where none is negative", kinds="u"),
    Otherwise("attention", "JAX's softmax is in float32", differ=as_float32),
    Otherwise("attention", "JAX's softmax is in float32, where it overflows", of=huge, differ=theirs_nan),
    Otherwise(
        r"lax\.conv", "what is left out beside the rows is no zero times infinity", of=no_finite, differ=either_nan,
    ),
    Otherwise("reduce_window", "JAX leaves the initial value out of bools", kinds="b"),
    Otherwise(
        rf"({_SUMS}).*\n", "sums are completed late: their terms, of which some are 0, meet infinities",
        what="partitioned", said="differs from the unpartitioned program by inf", kinds="fc", of=no_finite,
    ),
    Otherwise(
        "cumprod", "the order of products of complex infinities decides what is NaN",
        what="partitioned", said="differs from the unpartitioned program by inf", kinds="c", of=no_finite,
    ),
    Otherwise(
        r"[*/]|prod", "XLA makes a choice of a product with a bool: False times infinity is 0, where it sees the bool",
        what="partitioned", said="differs from the unpartitioned program by inf", kinds="b",
    ),
    Otherwise(r"lax\.igamma", "igamma(inf, inf) is NaN, as in SciPy; in JAX 1", of=no_finite, differ=ours_nan),
    Otherwise(r"standardize.*\n(.*\n)*.*sqrt", "the slope of a root of what was rounded to 0, or not", differ=finite),
    Otherwise(r"np\.(trapezoid|modf)\(", "of infinities NumPy's are no NaN", of=infinity, differ=theirs_nan),
    Otherwise(r"np\.trapezoid\(", "of complex infinities NumPy's are NaN", kinds="c", of=infinity, differ=either_nan),
    Otherwise(
        r"\n.*(searchsorted|digitize|histogram|floor|%|mod\(|remainder|//|arg(max|min|sort)| [<>!=]=? )",
        "a step of what was rounded", what="partitioned", said="differs from the unpartitioned",
    ),
    Otherwise(
        r"\n.*(%|mod\(|remainder\()", "what is divided was rounded just below a multiple, or on it", kinds="f",
        differ=one_is_nothing,
    ),
    Otherwise(
        r"\n.*log(2|10|1p|addexp)?\(", "a logarithm of what was rounded to 0, or not", kinds="fc", differ=one_infinite,
    ),
    Otherwise(r"\n.*top_k\(", "a NaN of either sign, which nobody promises, is the largest or the least", of=nan),
    Otherwise(r"\n.*(bitcast_convert_type|view\()", "bits of what was rounded", differ=whole),
    # --- derivatives ---
    Otherwise(
        r"divide\((\w+), \1\)|(\w+) / \2\b", "slopes of huge numbers that cancel leave what was rounded of them",
        what=DERIVATIVES, of=extreme, differ=some,
    ),
    Otherwise(
        r"\n.*(%|mod\(|remainder\()", "what is divided was rounded just below a multiple, or on it", kinds="f",
        what=DERIVATIVES, differ=finite,
    ),
    Otherwise(
        r"prod\(|associative_scan", "products of the others, in another order than in JAX's tree", what=DERIVATIVES,
        of=infinity, differ=either_nan,
    ),
    Otherwise(
        r"np\.angle", "the angle of reals is a step; JAX's at 0 is NaN", what=DERIVATIVES, kinds="f", of=zero,
        differ=theirs_nan,
    ),
    Otherwise("ldexp", "JAX's at 0 is 1, whatever the power", what=DERIVATIVES, of=zero, differ=finite),
    Otherwise("hypot", "JAX's is 0 by what is 0 or as large as the other", what="second", differ=finite),
    Otherwise(r"bessel_i1e", "JAX's at NaN is that at 0", what=DERIVATIVES, of=nan, differ=ours_nan),
    Otherwise(r"copysign|abs\(|norm\(\w+, 1", "JAX's at NaN is -1", what=DERIVATIVES, of=nan, differ=ours_nan),
    Otherwise(
        r"log1mexp|a(rc)?cosh", "outside of its domain it has none", what=DERIVATIVES, of=below_one, differ=ours_nan,
    ),
    Otherwise(
        "prod|associative_scan", "JAX's tree puts its halves together by sums, in which -0 is lost",
        what=DERIVATIVES, of=zero, differ=ours_infinite,
    ),
    Otherwise(
        r"sort\(.*descending", "JAX turns what it sorted around, and what is equal, too; ours keeps its order",
        what=DERIVATIVES, of=ties,
    ),
    Otherwise(
        r"cum(max|min)\(", "JAX halves that of equal elements along its tree", what=DERIVATIVES, of=ties, differ=finite,
    ),
    Otherwise(r"cum(max|min)\(", "JAX halves that of equal elements along its tree", what=DERIVATIVES, of=nan),
    Otherwise(
        _LOGSUM, "none times an infinite tangent is NaN", what="second", of=infinity, differ=ours_nan,
    ),
    Otherwise(
        r"a(rc)?tanh", "at 1 it is infinite; JAX's NaN", what=DERIVATIVES, of=_part(lambda x: abs(x) == 1),
        differ=theirs_nan,
    ),
    Otherwise(r"np\.modf", "infinity has no fractional part, as in NumPy", what=DERIVATIVES, of=infinity),
    Otherwise(
        "", "what JAX keeps as zeros times infinity is NaN", what="second", of=no_finite, differ=only_theirs_are_nan,
    ),
    Otherwise("logaddexp", "JAX counts two equal large operands whole", what=DERIVATIVES, of=huge, differ=finite),
    Otherwise(
        "logaddexp", "beside an infinity numbers have no say; JAX takes it for 0", what=DERIVATIVES, of=infinity,
        differ=ours_finite,
    ),
    Otherwise(
        "a(rc)?sinh", "JAX's loses a real part of -0, which says the side of the cut; NumPy's does not",
        what=DERIVATIVES, kinds="c", of=on_cut,
    ),
    Otherwise(
        "log1mexp", "far out it is 0; JAX divides infinity by infinity", what="second", of=huge, differ=only_theirs_nan,
    ),
    Otherwise(r"cumlogsumexp", "JAX's is not that of logsumexp", what=DERIVATIVES, of=no_finite),
    Otherwise(
        r"np\.a?(min|max)\(", "a number is its own extremum; JAX's of NaN is NaN", what=DERIVATIVES,
        of=lambda x: a_number(x) and nan(x), differ=theirs_nan,
    ),
    Otherwise(
        r"(std|var|standardize)\(.*where=", "what is left out has no say; JAX's is NaN", what=DERIVATIVES,
        differ=theirs_nan,
    ),
    Otherwise(
        r"at\[.*(min|max)\(", "infinite tangents times masks are NaN in JAX", what=DERIVATIVES, of=infinity,
        differ=theirs_nan,
    ),
    Otherwise(
        r"\*\*|power", "powers by whole numbers are polynomials; JAX's have a logarithm", what="second", of=zero,
        differ=theirs_nan,
    ),
    Otherwise(
        r"(var|std)\(.*(ddof|correction)", "of one element less one there is none", what=DERIVATIVES, differ=ours_nan,
    ),
    Otherwise(
        r"det\(", "an infinity times its minor is infinite; JAX's products of three cancel to NaN", of=infinity,
        differ=only_theirs_are_nan,
    ),
    Otherwise("det", "of NaN, such as cos(inf), it is NaN", what=DERIVATIVES, of=no_finite, differ=ours_nan),
    Otherwise(
        r"%|mod\(|remainder\(", "of infinity and by zero it is NaN, as the value is; JAX's is infinite",
        what=DERIVATIVES, of=_part(lambda x: (x == 0) | onp.isinf(x)), differ=ours_nan_theirs_infinite,
    ),
    Otherwise(r"lax\.igamma", "at infinity it is 0; JAX's NaN", what=DERIVATIVES, of=infinity, differ=theirs_nan),
    Otherwise(
        "custom_product", "a cotangent gets its argument's dtype; JAX's keeps the rule's",
        what=DERIVATIVES, said=r"ours has type .*theirs (float|complex)",
    ),
    Otherwise(
        "custom_product", "what no element depends on has no slope, and no rule is asked for one", what=DERIVATIVES,
        said="ours is 0.0", of=nothing,
    ),
)  # fmt: skip


def is_extreme(case: Case) -> bool:
    """Whether narrow types overflow and underflow in a case: what then is NaN or zero is asked in float64."""
    return any(map(extreme, _given(case)))


def beside_huge(case: Case, how: Any, ask: Ask) -> Any:
    """Which elements are finite and differ by no more than the largest number is rounded, where that is huge."""
    if how.elements is None:
        return False
    ours, theirs = (x.astype(onp.complex128) for x in how.elements)
    largest = max((onp.max(abs(x[onp.isfinite(x)]), initial=0) for x in _given(case) if x.dtype.kind != "b"), default=0)
    close = finite(ours, theirs) & (abs(ours - theirs) <= 1e-6 * largest) & (largest > HUGE)
    return close & (close.any() and ask(case.tamed()) is None)


def beyond_range(case: Case, how: Any, ask: Ask) -> Any:
    """Which elements agree in float64, where narrow types overflow; those of which all do are not asked about."""
    wide = ask(case.widened()) if how.elements is not None and is_extreme(case) else None
    alike = wide is not None and wide.elements is not None and wide.what == how.what
    return ~wide.wrong[how.wrong] if alike and wide.wrong.shape == how.wrong.shape else False


def _given(case: Case) -> list[Any]:
    """The inputs, and what lines before the last make of them."""
    between = [case.values[name].value for name, _ in case.lines[:-1] if name in case.values]
    return [onp.asarray(x) for x in (*case.inputs.values(), *between)]


#: reasons that hold for all lines
_GENERAL = (
    ("beside huge numbers others are rounded", beside_huge),
    ("narrow types overflow, or are rounded to 0", beyond_range),
)  # fmt: skip


def reason_for(case: Case, how: Any, ask: Ask) -> str | None:
    """Why a program cut down is meant to differ so; None if it is not. ``ask`` says how a program does, if at all."""
    who, left = how.also()
    reasons = [f"{SAID} {name}" for name in who]
    for reason, explained in (*_GENERAL, *((one.reason, one.explained) for one in OTHERWISE)):
        if not left.any():
            break
        mask = explained(case, how, ask) & left
        if mask.any():
            reasons.append(reason)
            left = left & ~mask
    return None if left.any() else "; ".join(reasons)
