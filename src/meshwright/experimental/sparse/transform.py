"""Functions of dense arrays applied to sparse ones (``sparsify``), and derivatives by what sparse arrays store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import meshwright.numpy as mnp
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.errors import RuleError
from meshwright.experimental.sparse import structure
from meshwright.experimental.sparse.base import JAXSparse
from meshwright.experimental.sparse.bcoo import BCOO, bcoo_reduce_sum
from meshwright.experimental.sparse.formats import as_bcoo
from meshwright.experimental.sparse.product import bcoo_dot_general
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.elementwise.conversion import convert
from meshwright.transforms.autodiff import value_and_grad as value_and_dense_grad
from meshwright.transforms.jacobian import jacfwd as dense_jacfwd
from meshwright.transforms.jacobian import jacrev as dense_jacrev
from meshwright.transforms.vmap import vmap

#: functions of one argument that map 0 to 0; of linear ones, elements at one position need not be added before
_LINEAR = ("copy", "imag", "neg", "real")
_OF_ZERO = (
    "abs", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "convert_element_type", "erf", "erf_inv", "expm1",
    "floor", "log1p", "reduce_precision", "round_nearest_afz", "round_nearest_even", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh",
)  # fmt: skip
_NUMBERS = complex, float, int
#: ops that call a jaxpr on their operands
_CALLS = ("jit", "custom_jvp_call", "checkpoint")


def is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """A version of a function of dense arrays that takes sparse ones too, and returns what stays sparse as ``BCOO``.

    Ops on dense values are done as they are. Those on sparse ones are products, sums, elementwise functions that map 0
    to 0, reductions by addition, and ops that move elements; the sum of a sparse array and a dense one is dense.

    Args:
      use_tracer: accepted for compatibility; both ways give the same results.

    Raises (when called):
      RuleError: an op is not defined for sparse operands; it is named.

    Example:
      >>> from meshwright.experimental import sparse
      >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
      >>> sparse.sparsify(lambda m, v: 2 * (m.T @ v))(m, mnp.array([1.0, 10.0]))
      Array([60.,  4.], dtype=float32)
    """

    @wraps(f)
    def sparse(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = pytree.flatten((args, kwargs), is_leaf=is_sparse)
        values = [as_bcoo(x, "sparsify") if is_sparse(x) else x for x in leaves]
        arrays = [i for i, x in enumerate(values) if is_sparse(x) or hasattr(x, "dtype") or isinstance(x, _NUMBERS)]
        types = [ShapedArray(x.shape, x.dtype) if is_sparse(x) else typeof(x) for x in (values[i] for i in arrays)]
        out_tree: Any = None

        def flat(*xs: Any) -> list[Any]:
            nonlocal out_tree
            given = list(leaves)
            for i, x in zip(arrays, xs):
                given[i] = x
            called, named = pytree.unflatten(tree, given)
            outs, out_tree = pytree.flatten(f(*called, **named))
            return outs

        jaxpr = trace_to_jaxpr(flat, types)
        return pytree.unflatten(out_tree, _evaluated(jaxpr, [values[i] for i in arrays]))

    return sparse


def _evaluated(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr, of which some operands are sparse."""
    env: dict[Any, Any] = dict(zip((*jaxpr.jaxpr.invars, *jaxpr.jaxpr.constvars), (*args, *jaxpr.consts)))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        outs = _applied(eqn, operands) if any(map(is_sparse, operands)) else eqn.op.bind(*operands)
        env.update(zip(eqn.outvars, outs if eqn.op.multiple_results else [outs]))
    return [x if is_sparse(x := read(a)) else _as_array(x, a.aval) for a in jaxpr.jaxpr.outvars]


def _as_array(x: Any, aval: ShapedArray) -> Any:
    """A constant that is returned, as an array."""
    return convert(mnp.asarray(x), aval.dtype, aval.weak_type)


def _applied(eqn: JaxprEqn, operands: Sequence[Any]) -> Any:
    """The results of an op with sparse operands.

    Raises:
      RuleError: there is no rule for it.
    """
    name, op, x = eqn.op.name, eqn.op, operands[0]
    if name in _CALLS:
        return _evaluated(op.jaxpr, operands)  # type: ignore[attr-defined]
    if name in _LINEAR:
        return x.with_data(op.bind(x.data))
    if name in _OF_ZERO or (name == "integer_pow" and op.params["y"] > 0):
        return structure.mapped(x, op.bind)
    if name in _RULES and (found := _RULES[name](op.params, *operands)) is not None:
        return found
    raise RuleError(
        f"sparsify: {name} of a sparse operand is not defined, at {eqn.source}; apply it to todense() of it, or outside"
    )


def _sparse_only(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, for operands that are all sparse."""
    return lambda params, *xs: rule(params, *xs) if all(map(is_sparse, xs)) else None


def _first_sparse(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, if the first operand is sparse."""
    return lambda params, *xs: rule(params, *xs) if is_sparse(xs[0]) and not any(map(is_sparse, xs[1:])) else None


def _summed(mat: BCOO, axes: Sequence[int]) -> Any:
    """The sum over dimensions, which is dense if none is left."""
    found = bcoo_reduce_sum(mat, axes=axes)
    return found if found.ndim else found.todense()


_RULES: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: structure.added(x, y),
    "sub": lambda _, x, y: structure.added(x, -y),
    "mul": lambda _, x, y: structure.multiplied(x, y),
    "div": _first_sparse(lambda _, x, y: structure.divided(x, y)),
    "dot_general": lambda p, x, y: bcoo_dot_general(
        x, y, dimension_numbers=p["dimension_numbers"], preferred_element_type=p["preferred_element_type"]
    ),
    "transpose": _sparse_only(lambda p, x: x.transpose(p["permutation"])),
    "reduce_sum": _sparse_only(lambda p, x: _summed(x, p["axes"])),
    "reshape": _sparse_only(lambda p, x: structure.bcoo_reshape(x, new_sizes=p["new_sizes"])),
    "squeeze": _sparse_only(lambda p, x: structure.bcoo_squeeze(x, dimensions=p["dimensions"])),
    "broadcast_in_dim": _sparse_only(lambda p, x: structure.bcoo_broadcast_in_dim(x, **p)),
    "concatenate": _sparse_only(lambda p, *xs: structure.bcoo_concatenate(xs, dimension=p["dimension"])),
    "slice": _sparse_only(lambda p, x: structure.bcoo_slice(x, **p)),
    "dynamic_slice": _first_sparse(lambda p, x, *at: structure.cut_within(x, at, p["slice_sizes"])),
    "rev": _sparse_only(lambda p, x: structure.bcoo_rev(x, p["dimensions"])),
}


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any
) -> Callable[..., Any]:
    """``value_and_grad`` whose gradients by sparse arguments are sparse: at the positions of the arguments.

    Raises (when called):
      ArgumentTypeError: a sparse argument in another format than BCOO is differentiated within a tree.
    """
    single = isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def both(*args: Any, **named: Any) -> Any:
        parts = {i % len(args): _data(args[i]) for i in numbers}

        def of_data(given: dict[int, Any]) -> Any:
            called = [_with(x, given[i]) if i in given else x for i, x in enumerate(args)]
            return fun(*called, **named)

        value, grads = value_and_dense_grad(of_data, has_aux=has_aux, **kwargs)(parts)
        found = tuple(_with(args[i], grads[i % len(args)]) for i in numbers)
        return value, found[0] if single else found

    return both


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any
) -> Callable[..., Any]:
    """``grad`` whose gradients by sparse arguments are sparse: at the positions of the arguments.

    Example:
      >>> from meshwright.experimental import sparse
      >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
      >>> sparse.grad(lambda m: (m @ mnp.array([1.0, 10.0])).sum())(m).todense()
      Array([[ 0., 10.],
             [ 1.,  0.]], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    def gradient(*args: Any, **named: Any) -> Any:
        value, grads = both(*args, **named)
        return (grads, value[1]) if has_aux else grads

    return gradient


def _jacobian(of_dense: Callable[..., Any]) -> Callable[..., Any]:
    """``jacfwd`` or ``jacrev`` by what sparse arguments store."""

    def jacobian(
        fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any
    ) -> Callable[..., Any]:
        single = isinstance(argnums, int)
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

        def derivative(*args: Any, **named: Any) -> Any:
            out_tree: Any = None

            def of_data(given: dict[int, Any]) -> Any:
                nonlocal out_tree
                out = fun(*(_with(x, given[i]) if i in given else x for i, x in enumerate(args)), **named)
                out_tree = pytree.structure(out[0] if has_aux else out)
                return out

            parts = {i % len(args): _data(args[i]) for i in numbers}
            found = of_dense(of_data, has_aux=has_aux, **kwargs)(parts)
            slopes, aux = found if has_aux else (found, None)
            per_output = []
            for slope in out_tree.flatten_up_to(slopes):
                by = tuple(_with(args[i], slope[i % len(args)]) for i in numbers)
                per_output.append(by[0] if single else by)
            made = pytree.unflatten(out_tree, per_output)
            return (made, aux) if has_aux else made

        return derivative

    jacobian.__name__ = jacobian.__qualname__ = name = of_dense.__name__
    jacobian.__doc__ = f"""``{name}`` whose derivatives by sparse arguments are sparse.

    They are a batch, over the entries of a result, of arrays with the positions of the argument.

    Example:
      >>> from meshwright.experimental import sparse
      >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
      >>> sparse.{name}(lambda m: m @ mnp.array([1.0, 10.0]))(m)
      BCOO(float32[2, 2, 2], nse=2, n_batch=1)
    """
    return jacobian


jacfwd, jacrev = _jacobian(dense_jacfwd), _jacobian(dense_jacrev)
jacobian = jacrev


def _data(tree: Any) -> Any:
    """The tree with what sparse arrays store in their places."""
    return pytree.map(lambda x: x.data if is_sparse(x) else x, tree, is_leaf=is_sparse)


def _with(tree: Any, data: Any) -> Any:
    """The tree with other stored elements."""
    leaves, treedef = pytree.flatten(tree, is_leaf=is_sparse)
    parts = treedef.flatten_up_to(data)
    return pytree.unflatten(treedef, [_stored(x, d) if is_sparse(x) else d for x, d in zip(leaves, parts)])


def _stored(mat: Any, data: Any) -> Any:
    """``mat`` with other stored elements; with a batch of them, a batch of arrays."""
    children, treedef = pytree.flatten(mat)

    def again(data: Any) -> Any:
        return pytree.unflatten(treedef, [data, *children[1:]])

    for _ in range(mnp.ndim(data) - mat.data.ndim):
        again = vmap(again)
    return again(data)
