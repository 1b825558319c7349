"""``VJPHiPrimitive`` of ``jax.experimental.hijax``: a function of arrays with its derivatives as methods of a class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import float0, is_inexact
from meshwright.errors import ArgumentError, ArgumentTypeError, MissingRuleError, ShapeError
from meshwright.ir.op import Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.control.custom_vjp import CustomLin
from meshwright.ops.elementwise.table import add, materialize
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vmap import custom_vmap


class GradAccum:
    """Where :meth:`VJPHiPrimitive.vjp_bwd` puts the cotangent of an argument."""

    def __init__(self) -> None:
        self.total: Any = None

    def accum(self, ct: Any) -> None:
        """Add a cotangent; None and symbolic zeros are zero."""
        if ct is not None and not isinstance(ct, Zero):
            self.total = ct if self.total is None else add(self.total, ct)


class AxisData:
    """The axis that ``vmap`` adds: its ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.name = self.spmd_name = None


class VJPHiPrimitive:
    """Base of functions of arrays that are differentiated by their own rules.

    An instance is the function for arguments of certain types: ``__init__`` sets ``in_avals`` (a tuple of trees of
    types), ``out_aval`` (a tree of types) and ``params`` (a dict of hashable values, which become attributes), and
    calls that of this class. What it computes is the method ``expand``, which can be partitioned, batched and compiled
    like any other function. Reverse mode takes ``vjp_fwd`` and ``vjp_bwd_retval`` (or ``vjp_bwd``), forward mode
    ``jvp``, or ``lin`` and ``linearized``. Without rules for a mode, it is not differentiated in it. ``vmap`` batches
    ``expand`` and the rules, unless ``batch`` is overridden; ``batch_dim_rule`` is not needed, and not asked.

    Raises:
      ArgumentError: ``__init__`` did not set an attribute, or methods are overridden that exclude each other, or that
        have no effect here.

    Example:
      >>> from meshwright.experimental.hijax import VJPHiPrimitive
      >>> class Clipped(VJPHiPrimitive):
      ...     def __init__(self, x, limit):
      ...         self.in_avals, self.out_aval, self.params = (x,), x, {"limit": limit}
      ...         super().__init__()
      ...     def expand(self, x):
      ...         return x
      ...     def vjp_fwd(self, nzs_in, x):
      ...         return self(x), None
      ...     def vjp_bwd_retval(self, res, g):
      ...         return (mnp.clip(g, -self.limit, self.limit),)
      >>> mw.grad(lambda x: 9 * Clipped(mw.typeof(x), 2.0)(x))(1.0)
      Array(2., dtype=float32, weak_type=True)
    """

    in_avals: tuple[Any, ...]
    out_aval: Any
    params: dict[str, Hashable]
    effects: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        name = type(self).__name__
        for attribute in ("in_avals", "out_aval", "params"):
            if not hasattr(self, attribute):
                raise ArgumentError(f"{name}.__init__ must set self.{attribute} before super().__init__()")
        if self._overrides("vjp_bwd") and self._overrides("vjp_bwd_retval"):
            raise ArgumentError(f"{name} overrides vjp_bwd and vjp_bwd_retval; one of them gives the cotangents")
        if self._overrides("transpose") or self.effects:
            what = "effects" if self.effects else "a method transpose"
            raise ArgumentError(
                f"{name} has {what}, which is not used here; give cotangents by vjp_bwd_retval, and keep what changes "
                "in new_ref"
            )
        self.in_avals_flat, self.in_tree = pytree.flatten(self.in_avals)
        self.out_avals_flat, self.out_tree = pytree.flatten(self.out_aval)
        for aval in (*self.in_avals_flat, *self.out_avals_flat):
            if not isinstance(aval, ShapedArray):
                raise ArgumentTypeError(f"{name}: types are those of arrays here, as typeof gives them; got {aval!r}")
        self.__dict__.update(self.params)
        self.check(*self.in_avals)
        self._function = self._with_rules()

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(VJPHiPrimitive, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self.params}]"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.params == other.params  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.params.items())))

    def __call__(self, *args: Any) -> Any:
        flat, tree = pytree.flatten(args)
        if tree != self.in_tree:
            raise ArgumentTypeError(
                f"{self}: expected arguments of the structure {pytree.show(self.in_tree)}, got {pytree.show(tree)}"
            )
        for x, want, path in zip(flat, self.in_avals_flat, pytree.paths(args)):
            _require(typeof(x), want, f"{self}: argument{path}")
        return pytree.unflatten(self.out_tree, self._function(*flat))

    # --- what subclasses override ---------------------------------------------------------------------------
    def check(self, *arg_tys: Any) -> None:
        """Check the types of the arguments."""

    def expand(self, *args: Any) -> Any:
        """The results."""
        raise self._missing("expand", "which computes it")

    def vjp_fwd(self, nzs_in: Any, /, *args: Any) -> Any:
        """The results and residuals, a tree of arrays; ``nzs_in`` tells which arguments are differentiated."""
        raise self._missing("vjp_fwd", "which reverse mode needs")

    def vjp_bwd(self, res: Any, outgrad: Any, /, *arg_accums: Any) -> None:
        """Add the cotangents of the arguments to ``arg_accums``, trees of :class:`GradAccum`."""
        for accums, cts in zip(arg_accums, self.vjp_bwd_retval(res, outgrad), strict=True):
            if cts is not None:
                pytree.map(lambda accum, ct: accum.accum(ct), accums, cts, is_leaf=_is_zero)

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        """A tuple with the cotangent of each argument; None is zero."""
        raise self._missing("vjp_bwd_retval", "which reverse mode needs")

    def jvp(self, primals: Any, tangents: Any) -> Any:
        """The results and their tangents."""
        if not self._overrides("lin"):
            raise self._missing("jvp", "which forward mode needs")
        nonzero = pytree.map(lambda t: not isinstance(t, Zero), tangents, is_leaf=_is_zero)
        outs, residuals = self.lin(nonzero, *primals)
        return outs, self.linearized(residuals, *tangents)

    def lin(self, nzs_in: Any, *primals: Any) -> Any:
        """The results and residuals for :meth:`linearized`."""
        raise self._missing("lin", "which linearize needs")

    def linearized(self, residuals: Any, *tangents: Any) -> Any:
        """The tangents of the results."""
        raise self._missing("linearized", "which linearize needs")

    def transpose(self, out_ct: Any, *maybe_accums: Any) -> Any:
        """Not used."""

    def batch(self, axis_data: AxisData, args: Any, dims: Any) -> Any:
        """The results for arguments with a dimension more where ``dims`` have a number, and where theirs is."""

    def batch_dim_rule(self, axis_data: AxisData, dims: Any, /) -> Any:
        """Not used: ``vmap`` puts the new dimension where it takes the least moving."""

    def dce(self, used_outs: Any) -> Any:
        """Not used: what nobody reads is not computed."""

    def remat(self, policy: Any, *args: Any) -> Any:
        """Not used: checkpoints compute it again."""

    def _missing(self, method: str, why: str) -> MissingRuleError:
        return MissingRuleError(f"{self}: define {type(self).__name__}.{method}, {why}")

    # --- the function of leaves -----------------------------------------------------------------------------
    def _with_rules(self) -> Callable[..., list[Any]]:
        def run(*flat: Any) -> list[Any]:
            return self._results("expand", self.expand(*pytree.unflatten(self.in_tree, flat)))

        run.__name__ = type(self).__name__
        function: Callable[..., list[Any]] = run
        if self._overrides("batch"):
            mapped = custom_vmap(run)
            mapped.def_vmap(self._batched)
            function = mapped
        derived = custom_jvp(function)
        derived.defjvp(self._derivative, symbolic_zeros=True)
        return derived

    def _results(self, method: str, out: Any) -> list[Any]:
        """The leaves of what a method returns for the results."""
        flat, tree = pytree.flatten(out)
        if tree != self.out_tree:
            raise ArgumentTypeError(
                f"{self}: {method} returned {pytree.show(tree)}, out_aval has the structure "
                f"{pytree.show(self.out_tree)}"
            )
        for x, want, path in zip(flat, self.out_avals_flat, pytree.paths(out)):
            _require(typeof(x), want, f"{self}: output{path} of {method}")
        return flat

    def _derivative(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The rule of ``custom_jvp``: results, and tangents by an op whose transpose is the backward rule."""
        if not self._overrides("vjp_fwd"):
            return self._pushed(primals, tangents)
        nonzero = pytree.unflatten(self.in_tree, [not isinstance(t, Zero) for t in tangents])
        out, residuals = self.vjp_fwd(nonzero, *pytree.unflatten(self.in_tree, primals))
        outs = self._results("vjp_fwd", out)
        kept, tree = pytree.flatten(residuals)
        n, linear = len(primals), tuple(is_inexact(a.dtype) for a in self.in_avals_flat)

        def pull(saved: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            return self._pulled(pytree.unflatten(tree, saved[n:]), pytree.unflatten(self.out_tree, cts))

        def push(saved: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
            given = iter(moved)
            full = [next(given) if lin else Zero(typeof(x)) for x, lin in zip(saved, linear)]
            touts = self._pushed(saved[:n], full)[1]
            return [materialize(t) for t, a in zip(touts, types) if is_inexact(a.dtype)]

        types = tuple(typeof(y).strong() for y in outs)
        given = [*primals, *kept, *(materialize(t) for t, lin in zip(tangents, linear) if lin)]
        op = CustomLin(
            type(self).__name__, pull, n + len(kept), linear, types, in_avals=tuple(typeof(x).strong() for x in given),
            push=push if self._overrides("jvp") or self._overrides("lin") else None,
        )  # fmt: skip
        found = iter(op.bind(*given))
        return outs, [next(found) if is_inexact(a.dtype) else Zero(a.to_tangent_aval()) for a in types]

    def _pushed(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        whole = (pytree.unflatten(self.in_tree, xs) for xs in (primals, tangents))
        out, tangent = self.jvp(*whole)
        return self._results("jvp", out), pytree.leaves(tangent)

    def _pulled(self, residuals: Any, ct: Any) -> list[Any]:
        accums = [GradAccum() for _ in self.in_avals_flat]
        self.vjp_bwd(residuals, ct, *pytree.unflatten(self.in_tree, accums))
        for accum, aval, path in zip(accums, self.in_avals_flat, pytree.paths(self.in_avals)):
            if accum.total is not None and is_inexact(aval.dtype):
                _require(typeof(accum.total), aval, f"{self}: the cotangent of argument{path}")
        return [a.total if is_inexact(t.dtype) else None for a, t in zip(accums, self.in_avals_flat)]

    def _batched(self, size: int, in_batched: Sequence[bool], *flat: Any) -> tuple[list[Any], bool]:
        dims = pytree.unflatten(self.in_tree, [0 if mapped else None for mapped in in_batched])
        outs, out_dims = self.batch(AxisData(size), pytree.unflatten(self.in_tree, flat), dims)
        places = pytree.broadcast_prefix(out_dims, outs, f"{self}: the dimensions of batch", lambda d: d is None)
        return [put_batch_dim(x, d, 0, size) for x, d in zip(pytree.leaves(outs), places)], True


def _is_zero(x: Any) -> bool:
    return x is None or isinstance(x, Zero)


def _require(got: ShapedArray, want: ShapedArray, what: str) -> None:
    """Raise if a type is not the stated one; weak types become others.

    Raises:
      ShapeError: it has another shape or dtype.
    """
    fits = got.dtype == want.dtype or got.weak_type or got.dtype == float0
    if got.shape != want.shape or not fits:
        raise ShapeError(f"{what} has type {got}, its type is stated as {want}; they must be equal")
