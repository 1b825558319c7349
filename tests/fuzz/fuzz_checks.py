"""What is compared of a random program: values and types, derivatives, batches, and the program on a mesh."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp
from fuzz_programs import Case, namespace, random_case, shrunk
from walk import Typed, by_jax, by_us, typed

import meshwright as mw
import meshwright.lax as mlax
import meshwright.nn as mnn
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import MeshwrightError, VerificationError

jax.config.update("jax_traceback_filtering", "off")  # which takes longer than what raises
OURS, THEIRS = namespace(mw, mnp, mlax, mnn), namespace(jax, jnp, jax.lax, jax.nn)
MESHES = [mw.AbstractMesh((2,), ("x",)), mw.AbstractMesh((3,), ("x",)), mw.AbstractMesh((2, 2), ("x", "y"))]
#: by how much values may differ, relative to the largest and to each, by the kind of the coarsest type on the way
TOLERANCE = {"bfloat16": 6e-2, "float16": 1e-2, "float32": 2e-4, "complex64": 2e-4}


class Mismatch(Exception):
    """The two libraries differ."""


class Inexact(Mismatch):
    """Their finite numbers, or their integers, do: it is nothing but rounding where they agree in float64."""


@contextmanager
def modes(case: Case) -> Any:
    """The case's width of types in both libraries; neither warns."""
    with warnings.catch_warnings(), onp.errstate(all="ignore"), jax.enable_x64(case.x64), mw.enable_x64(case.x64):
        warnings.simplefilter("ignore")
        yield


def tolerance(case: Case) -> float:
    """That of the coarsest type in a case."""
    kinds = {str(typed(v).aval.dtype) for v in case.inputs.values()} | {str(v.aval.dtype) for v in case.values.values()}
    return max((TOLERANCE.get(k, 1e-8) for k in kinds), default=1e-8)


def compare(what: str, ours: Any, theirs: Any, rtol: float, derivative: bool = False) -> None:
    """Raise where two results differ in type or value.

    Of bools weak types mean nothing. Those of derivatives are ours; and where products in one order make an infinity,
    in another NaN, a derivative may be either.
    """
    mine, other = (
        x.aval if isinstance(x, Typed) else typeof(x) for x, typeof in ((ours, mw.typeof), (theirs, jax.typeof))
    )
    weak = not derivative and mine.dtype != bool
    said = (mine.shape, mine.dtype, weak and mine.weak_type), (other.shape, other.dtype, weak and other.weak_type)
    if said[0] != said[1]:
        raise Mismatch(f"{what}: ours has type {mine} (weak: {mine.weak_type}), theirs {other}")
    a, b = (onp.asarray(x) for x in (ours, theirs))
    if b.dtype.kind not in "fc":
        a, b = (x.astype(onp.float64) if x.dtype.kind == "V" else x for x in (a, b))
    if b.dtype.kind in "biu":
        if not onp.array_equal(a, b):
            raise Inexact(f"{what}: ours is {a.tolist()}, theirs {b.tolist()}")  # what was rounded is asked its sign
        return
    wide = onp.complex128 if b.dtype.kind == "c" else onp.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = onp.isfinite(a) & onp.isfinite(b)
    scale = onp.max(onp.abs(b[finite]), initial=0)
    close = onp.abs(a - b) <= rtol * onp.abs(b) + rtol * min(max(scale, 1e-3), 1e3)
    same = ~onp.isfinite(a) & ~onp.isfinite(b) if derivative else (a == b) | (onp.isnan(a) & onp.isnan(b))
    if not onp.all(finite | same):
        raise Mismatch(f"{what}: ours is {a.tolist()}, theirs {b.tolist()}")
    if not onp.all(close | ~finite):
        raise Inexact(f"{what}: ours is {a.tolist()}, theirs {b.tolist()}")


def both(
    what: str, ours: Callable[[], Sequence[Any]], theirs: Callable[[], Sequence[Any]], rtol: float,
    derivative: bool = False,
) -> None:  # fmt: skip
    """Compare what two functions return; where theirs refuses, ours may do what it likes."""
    try:
        wanted = theirs()
    except Exception:
        return
    try:
        got = ours()
    except MeshwrightError as error:
        raise Mismatch(f"{what}: ours refuses: {type(error).__name__}: {error}") from error
    except Mismatch:
        raise
    except Exception as error:
        raise Mismatch(f"{what}: ours fails: {type(error).__name__}: {error}") from error
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        compare(f"{what}, result {i}", a, b, rtol, derivative)


# --- the checks ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class How:
    """How functions are evaluated, by JAX and by us: to leaves with types."""

    theirs: Callable[..., Sequence[Any]]
    ours: Callable[..., Sequence[Any]]


def _eager(f: Callable[..., Any], *args: Any) -> list[Any]:
    return mw.tree.leaves(f(*map(_ours, args)))


def _jitted(f: Callable[..., Any], *args: Any) -> list[Any]:
    return mw.tree.leaves(mw.jit(f)(*args))


def _eager_jax(f: Callable[..., Any], *args: Typed) -> list[Any]:
    return jax.tree.leaves(f(*(jnp.asarray(x) if isinstance(x, Typed) and not x.aval.weak_type else x for x in args)))


#: traces, walked with what NumPy computes; and the libraries themselves
WALKED, REAL = How(by_jax, by_us), How(_eager_jax, _eager)


def check_values(case: Case, how: How = WALKED) -> None:
    """Values, dtypes and weak types."""
    args = list(case.inputs.values())
    ours, theirs = case.function(OURS), case.function(THEIRS)
    both("values", lambda: how.ours(ours, *args), lambda: how.theirs(theirs, *map(typed, args)), tolerance(case))


def check_eager(case: Case, how: How = WALKED) -> None:
    """The same of ours evaluated op by op."""
    check_values(case, How(how.theirs, _eager))


def check_jit(case: Case, how: How = WALKED) -> None:
    """The same of ours as one compiled program."""
    check_values(case, How(how.theirs, _jitted))


def check_first(case: Case, how: How = WALKED) -> None:
    """The gradient by all inputs that have one, and the tangent."""
    _derivatives(case, how, "gradient", lambda lib, f, args: (args, lib.grad(f, tuple(range(len(args))))(*args)))
    _derivatives(case, how, "tangent", lambda lib, f, args: lib.jvp(f, args, args))


def check_second(case: Case, how: How = WALKED) -> None:
    """A derivative of the gradient."""

    def second(lib: Any, f: Any, args: Any) -> Any:
        return lib.jvp(lambda *a: lib.grad(f)(*a), args, args)

    _derivatives(case, how, "second derivative", second)


def _derivatives(case: Case, how: How, what: str, derivative: Callable[[Any, Any, Any], tuple[Any, Any]]) -> None:
    """Compare derivatives of the sum of all results; ``derivative`` gives them after what they belong to.

    Ours are weakly typed where what they belong to is; JAX's depend on the ops on the way.
    """
    names = [n for n, v in case.inputs.items() if jnp.issubdtype(typed(v).aval.dtype, jnp.floating)]
    if not names:
        return
    args = [case.inputs[n] for n in names]

    def of(lib: Any, names_of: Any, convert: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *args: derivative(lib, _total(case, names, lib.numpy, convert, names_of), args)

    def ours() -> Sequence[Any]:
        leaves = how.ours(of(mw, OURS, _ours), *args)
        values, found = leaves[: len(leaves) // 2], leaves[len(leaves) // 2 :]
        if list(map(_type, values)) != list(map(_type, found)):
            raise Mismatch(f"{what}: {found!r} of {values!r}: the types differ")
        return leaves

    both(what, ours, lambda: how.theirs(of(jax, THEIRS, jnp.asarray), *map(typed, args)), 10 * tolerance(case), True)


def _type(x: Any) -> Any:
    return x.aval if isinstance(x, Typed) else mw.typeof(x)


def _total(case: Case, names: Sequence[str], np_: Any, convert: Callable[[Any], Any], names_of: Any) -> Any:
    """A number of all results that are no integers, as a function of the inputs ``names``."""

    def total(*args: Any) -> Any:
        given = {**{n: convert(v) for n, v in case.inputs.items() if n not in names}, **dict(zip(names, args))}
        outs = case.function(names_of)(*(given[n] for n in case.inputs))
        return sum((np_.sum(np_.real(o) * 1.5) for o in outs if np_.issubdtype(o.dtype, onp.inexact)), np_.float32(0))

    return total


def check_vmap(case: Case, how: How = WALKED) -> None:
    """Batched over each dimension of each input."""
    args = list(case.inputs.values())
    for i, x in enumerate(args):
        for d in range(onp.ndim(x)):
            axes = tuple(d if j == i else None for j in range(len(args)))
            ours, theirs = mw.vmap(case.function(OURS), axes), jax.vmap(case.function(THEIRS), axes)
            both(
                f"vmap over {axes}", lambda: how.ours(ours, *args),  # noqa: B023
                lambda: how.theirs(theirs, *map(typed, args)), tolerance(case),  # noqa: B023
            )  # fmt: skip


def check_partitioned(case: Case, how: How = WALKED) -> None:
    """On a mesh, with shardings, against the unpartitioned program."""
    rng = onp.random.default_rng(case.seed)
    mesh = MESHES[int(rng.integers(len(MESHES)))]
    specs = []
    for x in case.inputs.values():
        free = [None] * onp.ndim(x)
        for axis in mesh.axis_names:
            if free and rng.random() < 0.7:
                free[int(rng.integers(len(free)))] = axis
        specs.append(NamedSharding(mesh, P(*free)))
    args = list(case.inputs.values())
    try:
        part = mw.jit(case.function(OURS), in_shardings=tuple(specs)).lower(*args).partition(mesh)
        part.verify(*args, finite=0)
    except VerificationError as error:
        raise Mismatch(f"partitioned on {mesh} as {[s.spec for s in specs]}: {error}") from error
    except MeshwrightError as error:
        raise Mismatch(f"partitioned: ours refuses: {type(error).__name__}: {error}") from error


def _ours(x: Any) -> Any:
    return mnp.asarray(x)


#: where we mean to differ, in how a check fails and the text of the program cut down to it
OTHERWISE = {
    r"does not fit in u?int": "Python integers that a dtype does not hold are refused; JAX wraps them around",
    r"(type|AxisError).*median\(.*keepdims": "of a number, NumPy keeps no dimensions and JAX one",
    r"u?int8.*\bnn\.(hard_tanh|log_sigmoid|log1mexp|softmax|log_softmax|logmeanexp|standardize)": "JAX wraps",
    r"u?int\d+'.*np\.clip": "JAX wraps the bounds around",
    r"values, .*complex.*cumprod": "JAX multiplies the first by one, which makes NaN of complex infinities",
    r"nn\.standardize": "JAX's variance is the mean of squares less the mean's square, which overflows and cancels",
    r"weak.*np\.(gcd|lcm|hypot|heaviside|rad2deg|deg2rad|diagonal|unwrap|logaddexp2)": "where JAX loses weak types",
    r"weak.*lax\.associative_scan": "JAX loses weak types in it",
    r"rule returned a cotangent of type c": "the cotangent of a real argument is real; JAX takes complex ones",
    r"weak.*'bool'.*(\*\*|power)": "JAX's powers by bools are not weakly typed",
    r"lax\.bessel_i1e": "JAX's derivative at NaN is that at 0",
    r"for while_loop": "JAX differentiates loops over nothing",
    r"u?int\d+'.*(\*\*|power)": "JAX's powers by negative integers are what overflow leaves",
    r"np\.(trapezoid|modf)\(": "of infinities JAX's are NaN, and NumPy's are not",
    r"lax\.igamma": "igamma(inf, inf) is 1 in JAX, and NaN in SciPy",
    r"values, .*complex.*lax\.cum(max|min)": "JAX orders complex NaN beside numbers",
    r"values, .*complex.*logaddexp": "complex infinities become NaN in JAX",
    r"second derivative.*1j|derivative.*complex.*at\[": "beside complex infinities JAX's are 0",
    r"complex values cannot be written": "complex numbers lose no part where they are written; JAX drops the imaginary",
    r"at\.\w+: .*do not broadcast": "values of no elements have to fit, as NumPy's",
    r"atan2: .*complex|cumlogsumexp: expected floats": "NumPy and we refuse them for complex numbers",
    r"type .*np\.angle": "JAX's angle of a narrow float is sometimes wider",
    r"(gradient|tangent|derivative).*(log1mexp|acosh|arccosh)": "outside of its domain JAX's has a value",
    r"(gradient|tangent|derivative).*(copysign|abs)\(": "at NaN JAX's is -1",
    r"(gradient|tangent|derivative).*lax.cum(max|min)": "JAX halves that of equal elements along its tree",
    r"(gradient|tangent|derivative).*(hypot|sinc|divide|/)": "of 1e-30 JAX takes the square, which is 0",
    r"(gradient|tangent|derivative).*logaddexp2?\(": "beside 1e30, JAX's counts both of two equal operands whole",
    r"(gradient|tangent|derivative).*cumlogsumexp": "JAX's is not that of logsumexp beside infinities",
    r"(gradient|tangent|derivative).*= np\.array\(np\.nan.*np\.a?(min|max)": "that of a number is the number",
    r"(gradient|tangent|derivative).*= np\.array\(\[[][, ]*\].*np\.nan": "NaN, the mean of nothing, has no derivative",
}
#: the checks, and how many of a hundred programs they are made of
CHECKS = {
    check_values: 100, check_eager: 10, check_jit: 10, check_first: 45, check_second: 20, check_vmap: 25,
    check_partitioned: 25,
}  # fmt: skip
Check = Callable[[Case, How], None]


def failure(case: Case, check: Check, how: How = WALKED) -> str:
    """How a check of a program fails; "" if it does not, or only where NumPy computes primitives."""
    try:
        with modes(case):
            check(case, how)
    except Inexact as error:
        why = str(error) if case.is_wide or failure(case.widened(), check, how) else ""
    except Mismatch as error:
        why = str(error)
    else:
        return ""
    return failure(case, check, REAL) if why and how is WALKED else why


def run(seed: int) -> tuple[str, Case, str] | None:
    """Draw a program and check it; a failing one comes back cut down, with the check's name and what differs."""
    case = random_case(seed)
    chance = onp.random.default_rng((seed, 1))
    if not case.lines:
        return None
    for check, share in CHECKS.items():
        if chance.integers(100) < share and failure(case, check) and (found := _unmeant(case, check)):
            return check.__name__, *found
    return None


def _unmeant(case: Case, check: Check) -> tuple[Case, str] | None:
    """What fails and is not meant to, cut down: of the whole, or of what makes one of its results."""
    for part in (case, *(case.of_output(name) for name, _ in case.lines)):
        if failure(part, check):
            small = shrunk(part, lambda c: bool(failure(c, check)))
            why = failure(small, check)
            if not any(re.search(allowed, f"{why}\n{small}", re.DOTALL) for allowed in OTHERWISE):
                return small, why
    return None


def found_in(seed: int) -> str:
    """What program ``seed`` finds: the check, how it fails, and the program cut down; "" if nothing."""
    found = run(seed)
    return "" if found is None else f"{found[0]}: {found[2]}\n{found[1]}"
