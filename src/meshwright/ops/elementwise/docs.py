"""Documentation of elementwise ops, by rows of :mod:`meshwright.ops.elementwise.table`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError


@dataclass(frozen=True)
class Docs:
    """``says`` describes the result; ``example`` is an expression and its value."""

    says: str
    example: str
    result: str
    arguments: str = "x y"
    #: the op's name in ``meshwright.lax``, if it differs from that in jaxprs
    public: str = ""


WORDS = {"b": "bools", "i": "signed integers", "u": "unsigned integers", "f": "floats", "c": "complex numbers"}

DOCS: dict[str, Docs] = {
    # --- arithmetic -----------------------------------------------------------------------------------------
    "neg": Docs("``-x``; unsigned integers wrap around.", "lax.neg(jnp.array([1, -4])).tolist()", "[-1, 4]"),
    "abs": Docs(
        "The absolute value; of complex numbers, as a float.", "lax.abs(jnp.array([-1.5, 2.0])).tolist()", "[1.5, 2.0]"
    ),
    "sign": Docs(
        "-1, 0 or 1 as ``x`` is negative, zero or positive; ``x / |x|`` of complex numbers, and NaN of NaN.",
        "lax.sign(jnp.array([-3, 0, 7])).tolist()", "[-1, 0, 1]",
    ),
    "add": Docs("``x + y``; of bools, whether either holds.", "lax.add(jnp.array([1, 2]), 3).tolist()", "[4, 5]"),
    "sub": Docs("``x - y``; integers wrap around.", "lax.sub(jnp.array([1, 2]), 3).tolist()", "[-2, -1]"),
    "mul": Docs("``x * y``; of bools, whether both hold.", "lax.mul(jnp.array([1, 2]), 3).tolist()", "[3, 6]"),
    "div": Docs(
        "``x / y``; of integers, rounded towards zero, and -1 where ``y`` is 0.",
        "lax.div(jnp.array([7, -7]), 2).tolist()", "[3, -3]",
    ),
    "rem": Docs(
        "What ``x / y``, rounded towards zero, leaves: it has ``x``'s sign.",
        "lax.rem(jnp.array([7, -7]), 3).tolist()", "[1, -1]",
    ),
    "pow": Docs("``x`` to the power ``y``.", "lax.pow(jnp.array([2.0, 3.0]), 2.0).tolist()", "[4.0, 9.0]"),
    "square": Docs("``x * x``.", "lax.square(jnp.array([2, -3])).tolist()", "[4, 9]"),
    "sqrt": Docs(
        "The square root; NaN of negative floats.", "lax.sqrt(jnp.array([4.0, 9.0])).tolist()", "[2.0, 3.0]"
    ),
    "rsqrt": Docs("``1 / sqrt(x)``.", "lax.rsqrt(jnp.array([4.0, 16.0])).tolist()", "[0.5, 0.25]"),
    "cbrt": Docs(
        "The real cube root, of negative numbers too.", "lax.cbrt(jnp.array([8.0, -27.0])).round(5).tolist()",
        "[2.0, -3.0]",
    ),
    "max": Docs(
        "The greater of ``x`` and ``y``, NaN if either is; complex numbers compare by real part first.",
        "lax.max(jnp.array([1, 5]), 3).tolist()", "[3, 5]",
    ),
    "min": Docs(
        "The lesser of ``x`` and ``y``, NaN if either is; complex numbers compare by real part first.",
        "lax.min(jnp.array([1, 5]), 3).tolist()", "[1, 3]",
    ),
    "nextafter": Docs(
        "The float next to ``x1`` in the direction of ``x2``.", "(lax.nextafter(jnp.array(1.0), 2.0) > 1).item()",
        "True", "x1 x2",
    ),
    # --- rounding and kinds of numbers ----------------------------------------------------------------------
    "floor": Docs("The greatest whole number not above ``x``.", "lax.floor(jnp.array([1.5, -1.5])).tolist()",
                  "[1.0, -2.0]"),
    "ceil": Docs("The least whole number not below ``x``.", "lax.ceil(jnp.array([1.5, -1.5])).tolist()",
                 "[2.0, -1.0]"),
    "is_finite": Docs("Whether ``x`` is neither infinite nor NaN.",
                      "lax.is_finite(jnp.array([1.0, jnp.inf, jnp.nan])).tolist()", "[True, False, False]"),
    # --- exponentials and logarithms ------------------------------------------------------------------------
    "exp": Docs("e to the power ``x``.", "lax.exp(jnp.array([0.0, 1.0])).round(4).tolist()", "[1.0, 2.718...]"),
    "exp2": Docs("2 to the power ``x``.", "lax.exp2(jnp.array([0.0, 3.0])).tolist()", "[1.0, 8.0]"),
    "expm1": Docs("``exp(x) - 1``, exact for small ``x``.", "lax.expm1(jnp.array(1e-10)).item()", "1.0...e-10"),
    "log": Docs("The natural logarithm.", "lax.log(jnp.array([1.0, 2.0])).tolist()", "[0.0, 0.693...]"),
    "log1p": Docs("``log(1 + x)``, exact for small ``x``.", "lax.log1p(jnp.array(1e-10)).item()", "1.0...e-10"),
    "logistic": Docs("``1 / (1 + exp(-x))``, the sigmoid.", "lax.logistic(jnp.array([0.0, 2.0])).tolist()",
                     "[0.5, 0.880...]"),
    # --- trigonometry ---------------------------------------------------------------------------------------
    "sin": Docs("The sine of an angle in radians.", "lax.sin(jnp.array([0.0, 1.0])).tolist()", "[0.0, 0.841...]"),
    "cos": Docs("The cosine of an angle in radians.", "lax.cos(jnp.array([0.0, 1.0])).tolist()", "[1.0, 0.540...]"),
    "tan": Docs("The tangent of an angle in radians.", "lax.tan(jnp.array([0.0, 1.0])).tolist()", "[0.0, 1.557...]"),
    "asin": Docs("The angle in [-pi/2, pi/2] whose sine is ``x``.", "lax.asin(jnp.array([0.0, 1.0])).tolist()",
                 "[0.0, 1.570...]"),
    "acos": Docs("The angle in [0, pi] whose cosine is ``x``.", "lax.acos(jnp.array([1.0, 0.0])).tolist()",
                 "[0.0, 1.570...]"),
    "atan": Docs("The angle in [-pi/2, pi/2] whose tangent is ``x``.", "lax.atan(jnp.array([0.0, 1.0])).tolist()",
                 "[0.0, 0.785...]"),
    "atan2": Docs("The angle of the point ``(y, x)`` of the plane, in [-pi, pi]: the first argument is the ordinate.",
                  "lax.atan2(jnp.array([1.0, -1.0]), jnp.array([1.0, 1.0])).tolist()", "[0.785..., -0.785...]"),
    "sinh": Docs("The hyperbolic sine.", "lax.sinh(jnp.array([0.0, 1.0])).tolist()", "[0.0, 1.175...]"),
    "cosh": Docs("The hyperbolic cosine.", "lax.cosh(jnp.array([0.0, 1.0])).tolist()", "[1.0, 1.543...]"),
    "tanh": Docs("The hyperbolic tangent.", "lax.tanh(jnp.array([0.0, 1.0])).tolist()", "[0.0, 0.761...]"),
    "asinh": Docs("The inverse of ``sinh``.", "lax.asinh(jnp.array([0.0, 1.0])).tolist()", "[0.0, 0.881...]"),
    "acosh": Docs("The inverse of ``cosh``, for ``x >= 1``.", "lax.acosh(jnp.array([1.0, 2.0])).tolist()",
                  "[0.0, 1.316...]"),
    "atanh": Docs("The inverse of ``tanh``, for ``|x| < 1``.", "lax.atanh(jnp.array([0.0, 0.5])).tolist()",
                  "[0.0, 0.549...]"),
    # --- special functions ----------------------------------------------------------------------------------
    "erf": Docs("The error function, ``2/sqrt(pi)`` times the integral of ``exp(-t^2)`` from 0 to ``x``.",
                "lax.erf(jnp.array([0.0, 1.0])).tolist()", "[0.0, 0.842...]"),
    "erfc": Docs("``1 - erf(x)``, exact for large ``x``.", "lax.erfc(jnp.array([0.0, 1.0])).tolist()",
                 "[1.0, 0.157...]"),
    "erf_inv": Docs("The inverse of ``erf``, for ``|x| <= 1``.", "lax.erf_inv(jnp.array([0.0, 0.5])).tolist()",
                    "[0.0, 0.476...]"),
    "lgamma": Docs("The logarithm of ``|gamma(x)|``.", "lax.lgamma(jnp.array([1.0, 4.0])).round(3).tolist()",
                   "[0.0, 1.79...]"),
    "digamma": Docs("The derivative of ``lgamma``.", "lax.digamma(jnp.array([1.0, 2.0])).tolist()",
                    "[-0.577..., 0.422...]"),
    "polygamma": Docs("The ``m``-th derivative of ``digamma`` at ``x``; ``m`` is a float that holds a whole number.",
                      "lax.polygamma(jnp.array(1.0), jnp.array(1.0)).item()", "1.644...", "m x"),
    "zeta": Docs("The Hurwitz zeta function: the sum of ``(q + k) ** -x`` over ``k = 0, 1, …``.",
                 "lax.zeta(jnp.array(2.0), jnp.array(1.0)).item()", "1.644...", "x q"),
    # --- complex numbers ------------------------------------------------------------------------------------
    "real": Docs("The real part.", "lax.real(jnp.array([1 + 2j])).tolist()", "[1.0]"),
    "imag": Docs("The imaginary part.", "lax.imag(jnp.array([1 + 2j])).tolist()", "[2.0]"),
    "complex": Docs("``x + iy``.", "lax.complex(jnp.array([1.0]), jnp.array([2.0])).tolist()", "[(1+2j)]"),
    "conj": Docs("The complex conjugate.", "lax.conj(jnp.array([1 + 2j])).tolist()", "[(1-2j)]"),
    # --- bits -----------------------------------------------------------------------------------------------
    "and": Docs("Bit by bit, both; of bools, whether both hold.", "lax.bitwise_and(jnp.array([6, 5]), 3).tolist()",
                "[2, 1]", public="bitwise_and"),
    "or": Docs("Bit by bit, either; of bools, whether one holds.", "lax.bitwise_or(jnp.array([6, 5]), 3).tolist()",
               "[7, 7]", public="bitwise_or"),
    "xor": Docs("Bit by bit, one of the two; of bools, whether they differ.",
                "lax.bitwise_xor(jnp.array([6, 5]), 3).tolist()", "[5, 6]", public="bitwise_xor"),
    "not": Docs("Every bit the other way; of bools, whether ``x`` does not hold.",
                "lax.bitwise_not(jnp.array([0, 5])).tolist()", "[-1, -6]", public="bitwise_not"),
    "shift_left": Docs("Bits moved ``y`` places up, zeros coming in; 0 if that is the width or more.",
                       "lax.shift_left(jnp.array([1, 3]), 2).tolist()", "[4, 12]"),
    "shift_right_logical": Docs("Bits moved ``y`` places down, zeros coming in.",
                                "lax.shift_right_logical(jnp.array([-1, 8]), 2).tolist()", "[1073741823, 2]"),
    "shift_right_arithmetic": Docs("Bits moved ``y`` places down, copies of the sign coming in.",
                                   "lax.shift_right_arithmetic(jnp.array([-8, 8]), 2).tolist()", "[-2, 2]"),
    "population_count": Docs("The number of ones among the bits.", "lax.population_count(jnp.array([7, 8])).tolist()",
                             "[3, 1]"),
    "clz": Docs("The number of zeros before the first one among the bits.", "lax.clz(jnp.array([1, 0])).tolist()",
                "[31, 32]"),
    # --- comparisons ----------------------------------------------------------------------------------------
    "eq": Docs("Whether ``x == y``; NaN equals nothing.", "lax.eq(jnp.array([1, 2]), 2).tolist()", "[False, True]"),
    "ne": Docs("Whether ``x != y``.", "lax.ne(jnp.array([1, 2]), 2).tolist()", "[True, False]"),
    "lt": Docs("Whether ``x < y``.", "lax.lt(jnp.array([1, 2]), 2).tolist()", "[True, False]"),
    "le": Docs("Whether ``x <= y``.", "lax.le(jnp.array([1, 3]), 2).tolist()", "[True, False]"),
    "gt": Docs("Whether ``x > y``.", "lax.gt(jnp.array([3, 2]), 2).tolist()", "[True, False]"),
    "ge": Docs("Whether ``x >= y``.", "lax.ge(jnp.array([2, 1]), 2).tolist()", "[True, False]"),
}  # fmt: skip


def arguments_of(name: str, accepts: Sequence[str]) -> list[str]:
    """The names of an op's operands."""
    names = DOCS[name].arguments.split() if name in DOCS else "x y".split()
    return names[: len(accepts)]


def public_name(name: str) -> str:
    """The op's name in ``meshwright.lax``."""
    return (DOCS[name].public if name in DOCS else "") or name


def in_order(name: str, accepts: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The operands of a call with keyword arguments, in order.

    Raises:
      ArgumentTypeError: an operand is missing, repeated, or unknown.
    """
    rest = {k: v for k, v in named.items() if k != "accuracy"}
    if named.get("accuracy") is not None:
        raise ArgumentTypeError(f"{public_name(name)}: there is one accuracy, that of XLA's CPU code; leave it out")
    names = arguments_of(name, accepts)
    if sorted(rest) != sorted(names[len(args) :]):
        raise ArgumentTypeError(
            f"{public_name(name)}({', '.join(names)}): got {counted(len(args), 'operand')} and keywords {sorted(rest)}"
        )
    return [*args, *(rest[n] for n in names[len(args) :])]


def signature(name: str, accepts: Sequence[str]) -> inspect.Signature:
    """The signature of the op as a function."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(n, kind) for n in arguments_of(name, accepts)])


def docstring(name: str, accepts: Sequence[str]) -> str:
    """The docstring of an op."""
    if name not in DOCS:
        return f"The op ``{name}``, elementwise."
    entry, names = DOCS[name], arguments_of(name, accepts)
    kinds = [WORDS[k] for k in accepts[0]]
    dtypes = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    alone = len(names) == 1
    takes = f"{', '.join(names)}: {'an array' if alone else 'arrays'} of {dtypes}"
    takes += "." if alone else ", of one shape and dtype; a scalar stands for an array of its value."
    wrong = "another dtype" if alone else "another dtype, or two of them; nothing is promoted here"
    shapes = "" if alone else "\n      ShapeError: different shapes; nothing is broadcast here but scalars."
    return (
        f"{entry.says} Elementwise.\n\n    Args:\n      {takes}\n\n    Raises:\n      DTypeError: {wrong}.{shapes}\n\n"
        f"    Example:\n      >>> {entry.example}\n      {entry.result}\n    "
    )
