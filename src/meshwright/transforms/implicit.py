"""Implicitly defined functions: roots (``custom_root``) and linear solves (``custom_linear_solve``).

Derivatives follow from the equation by the implicit function theorem, not from the solver. The solver may therefore
contain loops that cannot be differentiated in reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import NOWHERE
from meshwright.errors import ArgumentError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Zero
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.varying import axes_of, cast
from meshwright.ops.control.call import CustomJvpCall
from meshwright.ops.elementwise.table import convert, materialize, neg
from meshwright.ops.linalg.linear_solve import LinearSolve
from meshwright.transforms.autodiff import closed_call, linear_transpose
from meshwright.transforms.linearized import jvp_flat
from meshwright.transforms.wrapped import is_pair, name_of, require_callable

Matvec = Callable[[Any], Any]
#: a jaxpr that takes captured values and then the arguments; and the captured values
_Piece = tuple[ClosedJaxpr, list[Any]]


def _check_alike(where: str, what: str, tree: Any, avals: Sequence[Any], want_tree: Any, want: Sequence[Any]) -> None:
    types = [(a.shape, a.dtype) for a in avals]
    if tree != want_tree or types != [(a.shape, a.dtype) for a in want]:
        raise ArgumentError(
            f"{where}: {what} must be like the argument, {pytree.show(want_tree)} of {', '.join(map(str, want))}; got "
            f"{pytree.show(tree)} of {', '.join(map(str, avals))}"
        )


def _split_aux(where: str, out: Any) -> tuple[Any, Any]:
    if not is_pair(out):
        raise ArgumentError(f"{where}: with has_aux, the solver must return a pair (solution, aux), got {out!r}")
    return out


def _solver(
    where: str, solve: Callable[[Matvec, Any], Any], matvec: Matvec, example: Sequence[Any], tree: Any, has_aux: bool
) -> tuple[_Piece, Any]:
    """``solve`` traced as a function of flat right-hand sides; and the structure of ``(solution, aux)``.

    Raises:
      ArgumentError: the solution differs from the right-hand side in structure or types.
    """

    def flat(*xs: Any) -> Any:
        out = solve(matvec, pytree.unflatten(tree, xs))
        return _split_aux(where, out) if has_aux else (out, ())

    piece, out_tree = _piece(flat, example, where)
    solution, _ = pytree.unflatten(out_tree, piece[0].out_avals)
    leaves, solution_tree = pytree.flatten(solution)
    _check_alike(where, "the solution", solution_tree, leaves, tree, [typeof(x) for x in example])
    return piece, out_tree


def custom_linear_solve(
    matvec: Matvec,
    b: Any,
    solve: Callable[[Matvec, Any], Any],
    transpose_solve: Callable[[Matvec, Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """``solve(matvec, b)``, the solution of ``matvec(x) = b``, differentiated implicitly.

    The result can be differentiated with respect to ``b`` and all that ``matvec`` closes over. ``solve`` itself is
    never differentiated.

    Args:
      matvec: a linear function from pytrees like ``b`` to such pytrees.
      solve: called with a linear function and a right-hand side; returns the solution.
      transpose_solve: like ``solve``, but called with the transpose of ``matvec``. Needed for reverse mode.
      symmetric: whether ``matvec`` is its own transpose; ``solve`` is then used for the transposed system too.
      has_aux: the solvers return pairs ``(solution, aux)``. This function then does too; ``aux`` has no derivative.

    Raises:
      ArgumentError: the result of ``matvec`` or of a solver differs from ``b`` in structure or types.
      DifferentiationError (later): reverse mode without ``transpose_solve`` or ``symmetric``.

    Example:
      >>> def half(y):
      ...     return mw.lax.custom_linear_solve(lambda x: 2 * y * x, 3.0, lambda mv, b: b / mv(1.0), symmetric=True)
      >>> float(half(1.0)), float(mw.grad(half)(1.0))
      (1.5, -1.5)
    """
    for f in (matvec, solve):
        require_callable(f, "custom_linear_solve")
    where = f"custom_linear_solve {name_of(matvec)}"
    flat, tree, product = _equation(where, "matvec", matvec, b)
    solved, out_tree = _solver(where, solve, matvec, flat, tree, has_aux)
    pieces = [product, solved]
    if not symmetric and transpose_solve is not None:
        transposed = linear_transpose(matvec, pytree.unflatten(tree, flat))

        def vecmat(ct: Any) -> Any:
            return transposed(ct)[0]

        pieces.append(_piece(lambda *xs: vecmat(pytree.unflatten(tree, xs)), flat, name_of(matvec))[0])
        pieces.append(_solver(where, transpose_solve, vecmat, flat, tree, has_aux)[0])
    consts, jaxprs = _sharing(pieces, map(typeof, flat))
    back: Sequence[ClosedJaxpr | None] = jaxprs if symmetric else [*jaxprs[2:], None, None]
    op = LinearSolve(name_of(solve), jaxprs[0], jaxprs[1], back[0], back[1], len(consts))
    solution, aux = pytree.unflatten(out_tree, _as_weak(op.bind(*consts, *flat), solved[0]))
    return (solution, aux) if has_aux else solution


def _equation(where: str, what: str, fun: Callable[[Any], Any], example: Any) -> tuple[list[Any], Any, _Piece]:
    """The leaves of ``example``, its structure, and ``fun`` traced on it.

    Raises:
      ArgumentError: the result of ``fun`` differs from ``example`` in structure or types.
    """
    leaves, tree = pytree.flatten(example)
    flat = [convert(x, typeof(x).dtype, typeof(x).weak_type) for x in leaves]
    axes = NOWHERE.union(*map(axes_of, flat))
    while True:  # in a region, an unknown varies between devices where its equation does
        flat = [cast(x, axes) for x in flat]
        piece, out_tree = _piece(lambda *xs: fun(pytree.unflatten(tree, xs)), flat, name_of(fun))
        before, axes = axes, axes.union(*(a.vma for a in piece[0].out_avals))
        if axes == before:
            break
    _check_alike(where, f"the result of {what}", out_tree, piece[0].out_avals, tree, [typeof(x) for x in flat])
    return flat, tree, piece


def _piece(fun: Callable[..., Any], flat: Sequence[Any], name: str) -> tuple[_Piece, Any]:
    """``fun`` traced on flat arrays, and the structure of its result."""
    jaxpr, consts, tree = closed_call(fun, flat, name)
    return (jaxpr, consts), tree


def _sharing(pieces: Sequence[_Piece], avals: Iterable[Any]) -> tuple[list[Any], list[ClosedJaxpr]]:
    """The captured values of all pieces, and each piece as a jaxpr that takes them all; results strongly typed."""
    consts = [c for _, captured in pieces for c in captured]
    types = [*map(typeof, consts), *avals]
    jaxprs, start = [], 0
    for jaxpr, captured in pieces:
        own = slice(start, start + len(captured))

        def call(*xs: Any, jaxpr: ClosedJaxpr = jaxpr, own: slice = own) -> list[Any]:
            outs = eval_jaxpr(jaxpr, jaxpr.consts, *xs[own], *xs[len(consts) :])
            return [convert(y, typeof(y).dtype) for y in outs]

        jaxprs.append(trace_to_jaxpr(call, types, "linear_solve"))
        start = own.stop
    return consts, jaxprs


def _as_weak(results: Sequence[Any], recorded: ClosedJaxpr) -> list[Any]:
    """The results of a solver with the weak types that they had when it was traced."""
    return [convert(y, typeof(y).dtype, a.weak_type) for y, a in zip(results, recorded.out_avals)]


def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    tangent_solve: Callable[[Matvec, Any], Any],
    has_aux: bool = False,
) -> Any:
    """``solve(f, initial_guess)``, a root of ``f``, differentiated implicitly.

    The result can be differentiated with respect to all that ``f`` closes over. ``solve`` is never differentiated, and
    the derivative with respect to ``initial_guess`` is zero.

    Args:
      f: a function from pytrees like ``initial_guess`` to such pytrees.
      solve: called with a function and an initial guess; returns a root of the function.
      tangent_solve: called with a linear function ``g`` and ``y``; returns the solution of ``g(x) = y``.
      has_aux: ``solve`` returns a pair ``(root, aux)``. This function then does too; ``aux`` has no derivative.

    Raises:
      ArgumentError: the result of ``f`` or of ``solve`` differs from ``initial_guess`` in structure or types.

    Example:
      >>> def newton(f, x):
      ...     return mw.lax.fori_loop(0, 8, lambda i, x: x - f(x) / mw.grad(f)(x), x)
      >>> def root(y):
      ...     return mw.lax.custom_root(lambda x: x**2 - y, 1.0, newton, lambda g, y: y / g(1.0))
      >>> float(root(4.0)), float(mw.grad(root)(4.0))
      (2.0, 0.25)
    """
    for fun in (f, solve, tangent_solve):
        require_callable(fun, "custom_root")
    where = f"custom_root {name_of(f)}"
    guess, tree, residual = _equation(where, "f", f, initial_guess)
    avals = [typeof(x) for x in guess]
    solver_piece, out_tree = _solver(where, solve, f, guess, tree, has_aux)
    n = len(residual[1])
    consts, (function, solver) = _sharing([residual, solver_piece], avals)

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = op.bind(*primals)
        root, known = outs[: len(avals)], primals[: len(consts)]
        still = [Zero(typeof(x)) for x in root]
        moving = [*tangents[:n], *(Zero(typeof(x)) for x in known[n:]), *still]
        _, pushed, _ = jvp_flat(lambda *xs: eval_jaxpr(function, function.consts, *xs), [*known, *root], moving)
        rest = [Zero(a.strong()) for a in solver.out_avals[len(avals) :]]
        if all(isinstance(t, Zero) for t in pushed):
            return outs, [*still, *rest]

        def slope(v: Any) -> Any:
            here = lambda *xs: eval_jaxpr(function, function.consts, *known, *xs)  # noqa: E731
            _, slopes, _ = jvp_flat(here, root, pytree.flatten(v)[0])
            return pytree.unflatten(tree, [materialize(t) for t in slopes])

        right = pytree.unflatten(tree, [neg(materialize(t)) for t in pushed])
        moved = custom_linear_solve(slope, right, tangent_solve, tangent_solve)
        return outs, [*pytree.flatten(moved)[0], *rest]

    op = CustomJvpCall(name_of(f), solver, rule)
    root, aux = pytree.unflatten(out_tree, _as_weak(op.bind(*consts, *guess), solver_piece[0]))
    return (root, aux) if has_aux else root
