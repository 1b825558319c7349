"""What is compared of a random program: values and types, derivatives, batches, and the program on a mesh."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp
from fuzz_programs import Case, namespace, random_case, shrunk
from otherwise import is_extreme, reason_for
from walk import Typed, by_jax, by_us, typed
from witnesses import Question, agreeing, refusing, sensitivity, typed_alike, witnesses

import meshwright as mw
import meshwright.lax as mlax
import meshwright.nn as mnn
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import MeshwrightError, VerificationError

jax.config.update("jax_traceback_filtering", "off")  # which takes longer than what raises
OURS, THEIRS = namespace(mw, mnp, mlax, mnn), namespace(jax, jnp, jax.lax, jax.nn)
MESHES = [(2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)]
#: by how much values may differ, relative to the largest and to each, by the kind of the coarsest type on the way;
#: of those of eight bits two units in the last place
TOLERANCE = {
    "float8_e5m2": 0.5, "float8_e4m3fn": 0.25, "bfloat16": 6e-2, "float16": 1e-2, "float32": 2e-4, "complex64": 2e-4,
}  # fmt: skip


def _all_said_by(who: list[str]) -> tuple[list[str], Any]:
    return who, onp.array([not who])


class Mismatch(Exception):
    """The two libraries differ: in ``what`` is compared, and how it is ``said``; where values do, ``wrong`` says in
    which elements, and ``elements`` are those of both.

    ``also`` asks who else says what we do, and of which of these elements nobody does: types and refusals are one.
    """

    def __init__(self, what: str, said: str, elements: tuple[Any, Any] | None = None, wrong: Any = None) -> None:
        super().__init__(f"{what}: {said}")
        self.what, self.said, self.elements, self.wrong = what, said, elements, wrong
        self.also: Callable[[], tuple[list[str], Any]] = lambda: _all_said_by([])


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
    """Raise where two results differ in type or value."""
    mine, other = type_of(ours, derivative), type_of(theirs, derivative)
    if mine != other:
        raise Mismatch(what, f"ours has type {_aval(ours)} (weak: {_aval(ours).weak_type}), theirs {_aval(theirs)}")
    a, b = onp.asarray(ours), onp.asarray(theirs)
    special, finite = differences(a, b, rtol)
    for wrong, error in ((special, Mismatch), (finite, Inexact)):
        if wrong.any():
            raise error(what, f"ours is {a.tolist()}, theirs {b.tolist()}", (a[wrong], b[wrong]), wrong)


def _aval(x: Any) -> Any:
    return x.aval if isinstance(x, Typed) else jax.typeof(x) if isinstance(x, jax.Array) else mw.typeof(x)


def type_of(x: Any, derivative: bool) -> tuple[Any, ...]:
    """The shape, dtype and weakness of a result. Of bools weak types mean nothing; those of derivatives are ours."""
    aval = _aval(x)
    return aval.shape, aval.dtype, not derivative and aval.dtype != bool and aval.weak_type


def differences(a: Any, b: Any, rtol: float) -> tuple[Any, Any]:
    """Where two arrays differ in what is no finite float, and where finite floats, or integers, are not close.

    Integers may be floats that were rounded, and are asked again in wider types.
    """
    if b.dtype.kind in "biu" or jnp.issubdtype(b.dtype, jnp.integer):
        return onp.zeros(b.shape, bool), onp.asarray(a != b)
    wide = onp.complex128 if b.dtype.kind == "c" else onp.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = onp.isfinite(a) & onp.isfinite(b)
    scale = onp.max(onp.abs(b[finite]), initial=0)
    close = onp.abs(a - b) <= rtol * onp.abs(b) + rtol * min(max(scale, 1e-3), 1e3)
    return ~finite & ~((a == b) | (onp.isnan(a) & onp.isnan(b))), finite & ~close


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
    return jax.tree.leaves(f(*(x.value.item() if x.aval.weak_type else jnp.asarray(x.value) for x in args)))


#: traces, walked with what NumPy computes; and the libraries themselves
WALKED, REAL = How(by_jax, by_us), How(_eager_jax, _eager)


def both(
    what: str, case: Case, how: How, question: Question, rtol: float | None = None, derivative: bool = False,
    ours: Callable[[], Sequence[Any]] | None = None, theirs: Callable[[], Sequence[Any]] | None = None,
) -> None:  # fmt: skip
    """Compare what the two libraries answer; where theirs refuses, ours may do what it likes."""
    try:
        wanted = theirs() if theirs else how.theirs(*_asked(question(case, jax, THEIRS), typed))
    except Exception:
        return
    try:
        got = ours() if ours else how.ours(*_asked(question(case, mw, OURS), lambda x: x))
    except Mismatch:
        raise
    except Exception as error:
        refused = isinstance(error, MeshwrightError)
        said = f"ours {'refuses' if refused else 'fails'}: {type(error).__name__}: {error}"
        mismatch = Mismatch(what, said)
        if refused:
            mismatch.also = lambda: _all_said_by(refusing(case, question))
        raise mismatch from error
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        try:
            compare(f"{what}, result {i}", a, b, rtol or tolerance(case), derivative)
        except Mismatch as error:
            error.also = partial(_also, case, question, i, a, b, error.wrong, rtol or tolerance(case), derivative)
            raise


def _asked(asked: tuple[Any, Sequence[Any]], convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    f, args = asked
    return f, *map(convert, args)


def _also(
    case: Case, question: Question, i: int, ours: Any, theirs: Any, wrong: Any, rtol: float, derivative: bool
) -> tuple[list[str], Any]:
    """Who says of result ``i`` what we do: of its type, or of elements that are ``wrong``, and of which nobody does."""
    asked = witnesses(case, question)
    if wrong is None:
        return _all_said_by(typed_alike(asked, i, lambda x: type_of(x, derivative), type_of(ours, derivative)))
    who, left = agreeing(asked, i, onp.asarray(ours), wrong, lambda x, y: ~onp.logical_or(*differences(x, y, rtol)))
    if derivative and left.any():
        apart = abs(onp.subtract(*(onp.asarray(x)[wrong].astype(onp.complex128) for x in (ours, theirs))))
        rounded = left & (apart <= sensitivity(case, question, i)[wrong])
        who, left = [*who, *["JAX of numbers rounded otherwise"] * bool(rounded.any())], left & ~rounded
    return who, left


# --- the checks ---------------------------------------------------------------------------------------------
def check_values(case: Case, how: How = WALKED) -> None:
    """Values, dtypes and weak types."""
    drawn = case.drawn and how.theirs is by_jax
    both(
        "values", case, how, lambda case, lib, names: (case.function(names), list(case.inputs.values())),
        theirs=(lambda: [case.values[name] for name in case.outputs]) if drawn else None,
    )  # fmt: skip


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
    names = [n for n, v in case.inputs.items() if jnp.issubdtype(typed(v).aval.dtype, jnp.inexact)]
    if not names:
        return

    counted = _inexact_outputs(case)

    def question(case: Case, lib: Any, scope: Any) -> Any:
        total = _total(case, names, counted, scope)
        return lambda *args: derivative(lib, total, args), [case.inputs[n] for n in names]

    def ours() -> Sequence[Any]:
        leaves = how.ours(*_asked(question(case, mw, OURS), lambda x: x))
        values, found = leaves[: len(leaves) // 2], leaves[len(leaves) // 2 :]
        if list(map(_type, values)) != list(map(_type, found)):
            raise Mismatch(what, f"{found!r} of {values!r}: the types differ")
        return leaves

    both(what, case, how, question, 10 * tolerance(case), True, ours)


def _type(x: Any) -> Any:
    return x.aval if isinstance(x, Typed) else mw.typeof(x)


def _inexact_outputs(case: Case) -> list[str]:
    """The results that are no integers: where others ask of floats in their place, these stay out."""
    if all(name in case.values for name in case.outputs):
        outs = [case.values[name].value for name in case.outputs]
    else:
        inputs = [jnp.asarray(x) if isinstance(x, onp.ndarray) else x for x in case.inputs.values()]
        with jax.enable_x64(case.x64):
            outs = list(jax.eval_shape(case.function(THEIRS), *inputs))
    return [n for n, out in zip(case.outputs, outs) if jnp.issubdtype(out.dtype, jnp.inexact)]


def _total(case: Case, names: Sequence[str], counted: Sequence[str], scope: Any) -> Any:
    """A number of the results ``counted``, as a function of the inputs ``names``, of a library's names."""
    np_ = scope["np"]

    def total(*args: Any) -> Any:
        given = {n: np_.asarray(v) for n, v in case.inputs.items() if n not in names} | dict(zip(names, args))
        outs = case.function(scope)(*(given[n] for n in case.inputs))
        of = dict(zip(case.outputs, outs))
        return sum((np_.sum(np_.real(of[name]) * 1.5) for name in counted), np_.float32(0))

    return total


def check_vmap(case: Case, how: How = WALKED) -> None:
    """Batched over each dimension of each input, and over some of all inputs at once."""
    shapes = [onp.shape(x) for x in case.inputs.values()]
    for i, shape in enumerate(shapes):
        for d in range(len(shape)):
            _batched(case, how, tuple(d if j == i else None for j in range(len(shapes))), 0)
    rng = onp.random.default_rng((case.seed, 3))
    for size in {n for shape in shapes for n in shape}:
        fitting = [[d for d, n in enumerate(shape) if n == size] for shape in shapes]
        if sum(map(bool, fitting)) > 1:
            _batched(case, how, tuple(int(rng.choice(f)) if f else None for f in fitting), int(rng.integers(-1, 1)))


def _batched(case: Case, how: How, axes: tuple[int | None, ...], out: int) -> None:
    """Over ``axes`` of its inputs, to the first dimension of its results, or the last (-1)."""

    def question(case: Case, lib: Any, names: Any) -> Any:
        return lib.vmap(case.function(names), axes, out), list(case.inputs.values())

    both(f"vmap over {axes} to {out}", case, how, question)


def check_partitioned(case: Case, how: How = WALKED) -> None:
    """On a mesh, with shardings, against the unpartitioned program."""
    _partitioned(case, case.function(OURS), list(case.inputs.values()))


def check_partitioned_gradient(case: Case, how: How = WALKED) -> None:
    """The same of the gradient of the sum of all results."""
    names = [n for n, v in case.inputs.items() if jnp.issubdtype(typed(v).aval.dtype, jnp.floating)]
    if names:
        total = _total(case, names, _inexact_outputs(case), OURS)
        _partitioned(case, mw.grad(total, tuple(range(len(names)))), [case.inputs[n] for n in names])


def _mesh(sizes: tuple[int, ...]) -> mw.AbstractMesh:
    return mw.AbstractMesh(sizes, ("x", "y", "z")[: len(sizes)])


def _partitioned(case: Case, f: Callable[..., Any], args: Sequence[Any]) -> None:
    rng = onp.random.default_rng(case.seed)
    mesh = _mesh(MESHES[int(rng.integers(len(MESHES)))])
    specs = []
    for x in args:
        spec: list[list[str]] = [[] for _ in onp.shape(x)]
        for axis in mesh.axis_names:
            if spec and rng.random() < 0.7:
                spec[int(rng.integers(len(spec)))].append(axis)
        specs.append(P(*(tuple(axes) or None for axes in spec)))
    try:
        lowered = mw.jit(f, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs)).lower(*args)
    except MeshwrightError:  # which other checks are about
        return
    try:
        lowered.partition(mesh).verify(*args, finite=0)
    except VerificationError as error:
        raise Mismatch(f"partitioned on {mesh.axis_sizes} as {specs}", str(error)) from error
    except MeshwrightError as error:
        raise Mismatch(
            f"partitioned on {mesh.axis_sizes} as {specs}", f"ours refuses: {type(error).__name__}: {error}"
        ) from error


def _ours(x: Any) -> Any:
    return mnp.asarray(x)


#: the checks, and how many of a hundred programs they are made of
CHECKS = {
    check_values: 100, check_eager: 10, check_jit: 10, check_first: 45, check_second: 20, check_vmap: 25,
    check_partitioned: 20, check_partitioned_gradient: 5,
}  # fmt: skip
Check = Callable[[Case, How], None]


def failure(case: Case, check: Check, how: How = WALKED) -> Mismatch | None:
    """How a check of a program fails; None if it does not, or only where NumPy computes primitives."""
    try:
        with modes(case):
            check(case, how)
    except Inexact as error:
        why = error if case.is_wide or failure(case.widened(), check, how) else None
    except Mismatch as error:
        beyond = error.elements is not None and not case.is_wide and is_extreme(case)
        why = error if not beyond or failure(case.widened(), check, how) else None
    else:
        return None
    return failure(case, check, REAL) if why and how is WALKED else why


@dataclass(frozen=True)
class Finding:
    """A program cut down that fails a check, how, and the reason where it is meant to."""

    check: Check
    case: Case
    how: Mismatch
    reason: str | None

    def __str__(self) -> str:
        meant = "" if self.reason is None else f"[meant: {self.reason}] "
        return f"{meant}{self.check.__name__}: {self.how}\n{self.case}"


def run(seed: int) -> list[Finding]:
    """Draw a program and check it: what is meant to fail, and at the end what is not, if anything."""
    case = random_case(seed)
    chance = onp.random.default_rng((seed, 1))
    found: list[Finding] = []
    for check, share in CHECKS.items() if case.lines else ():
        if chance.integers(100) < share and failure(case, check):
            found += _findings(case, check)
            if found[-1:] and found[-1].reason is None:
                break
    return found


def _findings(case: Case, check: Check) -> list[Finding]:
    """What fails, cut down: of the whole, and of what makes each of its results, until one is not meant to."""
    found: list[Finding] = []
    for part in (case, *(case.of_output(name) for name, _ in case.lines)):
        if failure(part, check):
            small = shrunk(part, lambda c: failure(c, check) is not None)
            if (why := failure(small, check)) is None:  # it fails sometimes
                continue
            with modes(small):
                found.append(Finding(check, small, why, reason_for(small, why, lambda c: failure(c, check))))
            if found[-1].reason is None:
                break
    return found


def found_in(seed: int) -> str:
    """What program ``seed`` finds: the check, how it fails, and the program cut down; "" if nothing.

    Of several, what is not meant to fail comes first.
    """
    found = run(seed)
    return str(found[-1]) if found else ""
