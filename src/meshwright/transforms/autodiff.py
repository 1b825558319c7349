"""Differentiation of functions of pytrees: jvp, linearize, vjp, linear_transpose, grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray, Typed, as_typed
from meshwright.core.expected import as_numbers, from_front
from meshwright.core.naming import wraps
from meshwright.core.pytree_classes import Partial
from meshwright.core.signature import described, leaf_names
from meshwright.core.source import name_scope
from meshwright.core.tracebacks import boundary
from meshwright.errors import (
    ArgumentError,
    ArgumentNumberError,
    ArgumentTypeError,
    DifferentiationError,
    TangentMismatchError,
)
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import JaxprTrace, typeof
from meshwright.ops.elementwise.table import convert, materialize
from meshwright.ops.elementwise.table import stop_gradient as stop_gradient_op
from meshwright.transforms.linearized import checked_leaves, jvp_flat, linearized, pulled, pushed, tangent_of
from meshwright.transforms.pullback import VJP
from meshwright.transforms.references import REFERENCES
from meshwright.transforms.rules import collect_cts
from meshwright.transforms.tape import Tape, backward, require_alive
from meshwright.transforms.wrapped import is_pair, name_of, require_callable, transformed


# --- forward ------------------------------------------------------------------------------------------------
@boundary
def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """``(fun(*primals), derivative of fun at primals along tangents)``; a tangent has the shape of its primal.

    With ``has_aux``, ``fun`` returns a pair ``(out, aux)`` and ``aux`` is appended to the result. Tangents of integers
    and bools, given and returned, are NumPy arrays of the empty dtype ``float0``.

    Raises:
      DifferentiationError: structure, shapes or dtypes of tangents differ from those of primals.
      ArgumentTypeError: ``primals`` or ``tangents`` is not a tuple or list.

    Example:
      >>> out, tangent = mw.jvp(lambda x: x**2, (3.0,), (10.0,))
      >>> float(out), float(tangent)
      (9.0, 60.0)
    """
    require_callable(fun, "jvp")
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentTypeError("jvp: primals and tangents must be tuples or lists of the function's arguments")
    if isinstance(primals, tuple) != isinstance(tangents, tuple):
        raise TangentMismatchError(
            f"jvp of {described(fun)}: primals are a {type(primals).__name__}, tangents a {type(tangents).__name__}; "
            "write both in the same way"
        )
    flat, treedef = pytree.flatten(tuple(primals))
    if REFERENCES.value.among(flat):
        return REFERENCES.value.jvp(jvp, fun, primals, tangents, has_aux)  # type: ignore[no-any-return]
    avals = [typeof(p) for p in flat]
    given = checked_leaves("jvp", "tangents", fun, "primals", tuple(tangents), treedef, avals)
    tangent_in = [t if dtypes.is_inexact(a.dtype) else Zero(a) for a, t in zip(avals, given)]
    call, aux = with_aux(fun, has_aux, "jvp")
    with name_scope(f"jvp({name_of(fun)})"):
        outs, touts, out_tree = jvp_flat(lambda *leaves: call(*pytree.unflatten(treedef, leaves)), flat, tangent_in)
    touts = [tangent_of(typeof(x), t) for x, t in zip(outs, touts)]
    return (pytree.unflatten(out_tree, outs), pytree.unflatten(out_tree, touts), *aux())


def with_aux(
    fun: Callable[..., Any], has_aux: bool, where: str
) -> tuple[Callable[..., Any], Callable[[], Sequence[Any]]]:
    """``fun`` without its auxiliary output, and a function that returns that output (in a list) after a call.

    Without ``has_aux``, the second function returns an empty sequence.
    """
    if not has_aux:
        return fun, tuple
    cell: list[Any] = []

    def call(*args: Any) -> Any:
        out, aux = _split_aux(fun(*args), where)
        cell[:] = [aux]
        return out

    return call, lambda: [_strip(aux) for aux in cell]


def _split_aux(out: Any, where: str) -> tuple[Any, Any]:
    if not is_pair(out):
        raise ArgumentTypeError(
            f"{where}: with has_aux=True the function must return a pair (output, aux), got {out!r}"
        )
    return out


def _strip(tree: Any) -> Any:
    """``tree`` with JVP tracers of finished traces replaced by their primals."""

    def leaf(x: Any) -> Any:
        while hasattr(x, "primal") and not x.owner.alive:
            x = x.primal
        return x

    return pytree.map(leaf, tree)


# --- linearize and reverse ----------------------------------------------------------------------------------
@boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """``(fun(*primals), f_jvp)``, where ``f_jvp(*tangents)`` evaluates the derivative at ``primals``.

    ``f_jvp`` does not repeat the non-linear computations. It is a pytree whose leaves are the residuals, so it can be
    passed in and out of jitted functions. With ``has_aux``, ``fun`` returns a pair ``(out, aux)`` and ``aux`` is
    appended to the result.

    Raises:
      DifferentiationError: (from ``f_jvp``) structure, shapes or dtypes of tangents differ from those of primals.

    Example:
      >>> out, f_jvp = mw.linearize(lambda x: x**2, 3.0)
      >>> float(out), float(f_jvp(1.0)), float(f_jvp(10.0))
      (9.0, 6.0, 60.0)
    """
    require_callable(fun, "linearize")
    if REFERENCES.value.among(pytree.leaves(primals)):
        return REFERENCES.value.linearize(linearize, fun, primals, has_aux)  # type: ignore[no-any-return]
    call, aux = with_aux(fun, has_aux, "linearize")
    with name_scope(f"jvp({name_of(fun)})"):
        out, linear = linearized(fun, call, primals)
    return (out, Partial(pushed, linear), *aux())


@boundary
def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """``(fun(*primals), f_vjp)``, where ``f_vjp(ct)`` returns a tuple of cotangents, one per argument.

    ``ct`` has the shape of the output, and each cotangent has the shape of its argument. Cotangents of integers and
    bools are NumPy arrays of the empty dtype ``float0``. ``f_vjp`` is a pytree whose leaves are the residuals, so it
    can be passed in and out of jitted functions. With ``has_aux``, ``fun`` returns a pair ``(out, aux)`` and ``aux`` is
    appended to the result.

    Raises:
      DifferentiationError: a cotangent's structure or type differs from the output's.

    Example:
      >>> out, f_vjp = mw.vjp(lambda x, y: x * y.sum(), 3.0, mnp.array([4.0, 5.0]))
      >>> f_vjp(10.0)
      (Array(90., dtype=float32, weak_type=True), Array([30., 30.], dtype=float32))
    """
    require_callable(fun, "vjp")
    refuse_reduce_axes(reduce_axes, "vjp")
    out, linear, *aux = _pullback(fun, primals, has_aux, "vjp")
    return (out, VJP.of(linear, pytree.leaves(primals)), *aux)


def _pullback(fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, where: str) -> tuple[Any, ...]:
    """The value of ``fun``, its linear part, and its auxiliary output if it has one."""
    call, aux = with_aux(fun, has_aux, where)
    with name_scope(f"jvp({name_of(fun)})"):
        out, linear = linearized(fun, call, primals)
    return (out, linear, *aux())


def refuse_reduce_axes(axes: Sequence[Any], where: str) -> None:
    """Raise if ``reduce_axes`` is not empty. JAX keeps the parameter in its signatures but supports only ``()``."""
    if axes:
        raise ArgumentError(
            f"{where}: reduce_axes={axes!r} is not supported, as in JAX; sum over the axes with lax.psum"
        )


@boundary
def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """The transpose of a linear function: ``f_transpose(ct)`` returns a tuple of cotangents, one per argument.

    Args:
      primals: arguments of ``fun``, or objects with their shapes and dtypes; values are not used.

    Raises:
      RuleError: ``fun`` is not linear in its arguments; names the op. DifferentiationError: the arguments and results
        are neither all floating-point nor all integers, or the type of a cotangent differs from the output's.

    Example:
      >>> transposed = mw.linear_transpose(lambda x: 3 * x, mw.ShapeDtypeStruct((2,), "float32"))
      >>> transposed(mnp.array([1.0, 2.0]))
      (Array([3., 6.], dtype=float32),)
    """
    require_callable(fun, "linear_transpose")
    flat, treedef = pytree.flatten(primals)
    avals = [x.aval if isinstance(x, Typed) else typeof(x) for x in map(as_typed, flat)]
    refuse_reduce_axes(reduce_axes, "linear_transpose")

    def transposed(ct: Any) -> tuple[Any, ...]:
        tape = Tape(STATE.trace)
        args = [tape.new_arg(a.strong()) for a in avals]
        with tape:
            with set_trace(tape):
                out = fun(*pytree.unflatten(treedef, args))
            outs, out_tree = pytree.flatten(out)
            require_alive(outs)
        out_avals = [typeof(x) for x in outs]
        _check_alike(fun, avals, out_avals)
        flat_ct = checked_leaves("linear_transpose", "cotangent", fun, "output", ct, out_tree, out_avals, ring=True)
        cts = [convert(c, a.dtype) for c, a in zip(flat_ct, out_avals)]
        results = backward(tape, tape.records, collect_cts(tape, outs, cts), args)
        return pytree.unflatten(
            treedef, [convert(materialize(x), a.dtype, a.weak_type) for x, a in zip(results, avals)]
        )

    return transposed


def _check_alike(fun: Any, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> None:
    """Raise unless the types are all floating-point or all integers; a linear function cannot map one to the other."""
    kinds = [[dtypes.is_inexact(a.dtype) for a in avals] for avals in (ins, outs)]
    if any(a.dtype == dtypes.bool_ for a in (*ins, *outs)) or len({k for side in kinds for k in side}) > 1:
        raise DifferentiationError(
            f"linear_transpose of {described(fun)}: arguments and results must be all floating-point or all integers; "
            f"it takes {', '.join(map(str, ins))} and returns {', '.join(map(str, outs))}"
        )


def argument_numbers(argnums: Any, n: int, where: str) -> tuple[int, ...]:
    """``argnums`` as non-negative positions among ``n`` positional arguments.

    Raises:
      ArgumentNumberError: a number is out of range or appears twice. ArgumentTypeError: ``argnums`` holds non-integers.
    """
    numbers = from_front(f"{where}: argnums", as_numbers(f"{where}: argnums", argnums), n, "the function")
    if len(set(numbers)) != len(numbers):
        raise ArgumentNumberError(f"{where}: argnums={argnums} names an argument more than once; name each once")
    return numbers


def function_of(fun: Callable[..., Any], numbers: Sequence[int], args: Sequence[Any], kwargs: Any) -> Any:
    """``fun`` as a function of the arguments at positions ``numbers``; the others are fixed to ``args``, ``kwargs``."""

    @wraps(fun)
    def call(*values: Any) -> Any:
        full = list(args)
        for i, v in zip(numbers, values):
            full[i] = v
        return fun(*full, **kwargs)

    return call


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:  # fmt: skip
    """A function that returns ``(fun(...), gradient of fun with respect to argnums)``.

    ``fun`` must return a real scalar or, with ``has_aux``, a pair ``(scalar, aux)``, which is then the value.

    Raises (when called):
      DifferentiationError: the output is not a real scalar, or an argument has an integer dtype.

    Example:
      >>> value, gradient = mw.value_and_grad(lambda x: (x**2).sum())(mnp.array([1.0, 2.0]))
      >>> float(value), gradient
      (5.0, Array([2., 4.], dtype=float32))
    """
    require_callable(fun, "grad")
    refuse_reduce_axes(reduce_axes, "grad")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers(argnums, len(args), "grad")
        inputs = [args[i] for i in numbers]
        for i in numbers:
            _check_input(fun, i, args[i], holomorphic, allow_int)
        call = function_of(fun, numbers, args, kwargs)
        out, linear, *aux = _pullback(call, tuple(inputs), has_aux, "vjp")
        aval = _check_output(out, fun, holomorphic)
        grads = pulled(linear, np.ones((), aval.dtype))
        grad_out = grads[0] if isinstance(argnums, int) else grads
        return ((out, *aux) if has_aux else out), grad_out

    return transformed(wrapped, fun, "value_and_grad", argnums, has_aux, holomorphic, allow_int, reduce_axes)


def _check_input(fun: Callable[..., Any], number: int, arg: Any, holomorphic: bool, allow_int: bool) -> None:
    for i, leaf in enumerate(pytree.leaves(arg)):
        try:
            dtype = typeof(leaf).dtype
        except ArgumentTypeError as error:
            name = leaf_names(fun, [arg], {}, range(number))[i]
            raise ArgumentTypeError(f"grad: argument {name} of {described(fun)}: {error}") from None
        if dtypes.is_complex(dtype) if holomorphic else (dtypes.is_inexact(dtype) or allow_int):
            continue
        name = leaf_names(fun, [arg], {}, range(number))[i]
        if holomorphic:
            raise DifferentiationError(
                f"grad with holomorphic=True needs complex inputs, argument {name} of {name_of(fun)} is {dtype}; "
                "convert it with .astype(complex), or leave holomorphic out"
            )
        raise DifferentiationError(
            f"grad needs floating-point inputs, argument {name} of {name_of(fun)} is {dtype}; convert it with "
            ".astype(float), choose other argnums, or pass allow_int=True for a gradient of float0 zeros"
        )


def _check_output(out: Any, fun: Any, holomorphic: bool) -> Any:
    leaves = pytree.leaves(out)
    if len(leaves) != 1 or pytree.structure(out) != pytree.structure(0):
        raise DifferentiationError(
            f"grad needs a function with one scalar output, {described(fun)} returned "
            f"{pytree.show(pytree.structure(out))}; for auxiliary outputs pass has_aux=True"
        )
    aval = typeof(leaves[0])
    if aval.shape != ():
        raise DifferentiationError(
            f"grad needs a scalar output, {described(fun)} returned shape {aval.shape}; reduce it (sum, mean), or use "
            "jacrev, jacfwd or vjp"
        )
    if not (dtypes.is_complex(aval.dtype) if holomorphic else dtypes.is_float(aval.dtype)):
        kind = "complex" if holomorphic else "real floating-point"
        remedy = "; take .real or abs, or pass holomorphic=True" if dtypes.is_complex(aval.dtype) else ""
        raise DifferentiationError(f"grad needs a {kind} output, {described(fun)} returned {aval.dtype}{remedy}")
    return aval


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False, reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:  # fmt: skip
    """The gradient of a scalar-valued function with respect to ``argnums``; with ``has_aux``, ``(gradient, aux)``.

    The gradient has the structure and shapes of the argument; it is a tuple if ``argnums`` is a sequence. With
    ``allow_int``, the gradient of an integer or bool argument is an array of the empty dtype ``float0``.

    Raises (when called):
      DifferentiationError: the output is not a real scalar, or an argument has an integer dtype.

    Example:
      >>> loss = lambda w, x: w["scale"] * (x**2).sum()
      >>> mw.grad(loss)({"scale": 3.0}, mnp.array([1.0, 2.0]))
      {'scale': Array(5., dtype=float32, weak_type=True)}
      >>> mw.grad(loss, argnums=1)({"scale": 3.0}, mnp.array([1.0, 2.0]))
      Array([ 6., 12.], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return transformed(wrapped, fun, "grad", argnums, has_aux, holomorphic, allow_int, reduce_axes)


# --- pieces for transformations of functions ----------------------------------------------------------------
def stop_gradient(x: Any) -> Any:
    """``x`` (a pytree of arrays) unchanged, but with a derivative of zero.

    Example:
      >>> float(mw.grad(lambda x: x * lax.stop_gradient(x))(3.0))
      3.0
    """
    return pytree.map(lambda leaf: stop_gradient_op(leaf) if dtypes.is_inexact(typeof(leaf).dtype) else leaf, x)


def closed_call(fun: Callable[..., Any], flat: Sequence[Any], debug_name: str) -> tuple[ClosedJaxpr, list[Any], Any]:
    """Trace ``fun`` on flat arguments to a jaxpr without constants: values it closes over become leading operands.

    Returns (jaxpr, the values of those operands, output treedef).
    """
    trace = JaxprTrace()
    args = [trace.new_arg(typeof(x)) for x in flat]
    with trace:
        with set_trace(trace):
            out = fun(*args)
            leaves, treedef = pytree.flatten(out)
        jaxpr = trace.finish(leaves, debug_name)
    lifted, hoisted = lift_constants(jaxpr)
    return lifted, hoisted, treedef


def lift_constants(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """``jaxpr`` with its constants turned into leading operands, and their values."""
    inner = jaxpr.jaxpr
    if not jaxpr.consts:
        return jaxpr, []
    return ClosedJaxpr(inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars])), jaxpr.consts
