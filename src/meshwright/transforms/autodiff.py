"""Derivatives of functions of pytrees: jvp, linearize, vjp, linear_transpose, grad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.signature import described, leaf_names
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Zero
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import JaxprTrace, check_alive, typeof
from meshwright.ops.elementwise import convert, materialize
from meshwright.ops.elementwise import stop_gradient as stop_gradient_op
from meshwright.transforms.jvp import JVPTrace
from meshwright.transforms.rules import collect_cts
from meshwright.transforms.tape import Tape, TapeTracer, backward, replay


def name_of(fun: Any) -> str:
    """A function's name, for messages and jaxprs."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def require_callable(fun: Any, where: str) -> None:
    """Raise unless ``fun`` can be called."""
    if not callable(fun):
        raise ArgumentTypeError(f"{where}: expected a function, got {fun!r} of type {type(fun).__name__}")


def needs_jit(fun: Any, name: str) -> Any:
    """``fun``, whose ``lower`` and ``trace`` say that only jitted functions have stages."""

    def stage(*args: Any, **kwargs: Any) -> Any:
        raise ArgumentTypeError(
            f"{name} was not jitted, and only jitted functions can be traced and lowered; write jit({name}).lower(...)"
        )

    fun.lower = fun.trace = stage
    return fun


# --- forward ------------------------------------------------------------------------------------------------
def jvp_flat(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """Run ``fun`` on flat primals and tangents; returns (flat outputs, flat tangents, treedef)."""
    trace = JVPTrace(STATE.trace)
    try:
        with set_trace(trace):
            out = fun(*(trace.wrap(p, t) for p, t in zip(primals, tangents)))
        leaves, treedef = pytree.flatten(out)
        pairs = [trace.unwrap(x) for x in leaves]
    finally:
        trace.alive = False
    return [p for p, _ in pairs], [t for _, t in pairs], treedef


def _checked_tangents(
    where: str, fun: Any, tangents: Any, treedef: Any, avals: Sequence[ShapedArray]
) -> list[Any]:
    """The leaves of ``tangents``, which fit primals of these types of ``fun``; ``where`` is the function that got them.

    Raises:
      DifferentiationError: another structure, shape or dtype; says where.
    """
    flat, found = pytree.flatten(tangents)
    if found != treedef:
        raise DifferentiationError(
            f"{where} of {described(fun)}: tangents have structure {pytree.show(found)}, primals "
            f"{pytree.show(treedef)} ({pytree.difference(treedef, found, exact=True)}); give one tangent a primal"
        )
    for i, (a, t) in enumerate(zip(avals, flat)):
        b = typeof(t)
        if a.shape != b.shape or (dtypes.is_inexact(a.dtype) and a.dtype != b.dtype):
            path = pytree.paths(tangents)[i]
            raise DifferentiationError(
                f"{where} of {described(fun)}: tangents{path} has type {b}, primals{path} has type {a}; they must be "
                "equal"
            )
    return flat


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """``(fun(*primals), derivative of fun at primals along tangents)``; a tangent has the shape of its primal.

    With ``has_aux``, ``fun`` returns a pair ``(out, aux)`` and ``aux`` is appended to the result. Tangents of integers
    and bools have no meaning and are not looked at; JAX's are of ``float0``.

    Raises:
      DifferentiationError: structure, shapes or dtypes of tangents differ from those of primals.
      ArgumentTypeError: ``primals`` or ``tangents`` is no tuple or list.

    Example:
      >>> out, tangent = mw.jvp(lambda x: x**2, (3.0,), (10.0,))
      >>> float(out), float(tangent)
      (9.0, 60.0)
    """
    require_callable(fun, "jvp")
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentTypeError("jvp: primals and tangents must be tuples or lists of the function's arguments")
    flat, treedef = pytree.flatten(tuple(primals))
    tflat = _checked_tangents("jvp", fun, tuple(tangents), treedef, [typeof(p) for p in flat])
    tangent_in = [t if dtypes.is_inexact(typeof(p).dtype) else Zero(typeof(p)) for p, t in zip(flat, tflat)]
    aux_cell: list[Any] = []

    def call(*leaves: Any) -> Any:
        out = fun(*pytree.unflatten(treedef, leaves))
        if has_aux:
            out, aux = _split_aux(out, "jvp")
            aux_cell.append(aux)
        return out

    outs, touts, out_tree = jvp_flat(call, flat, tangent_in)
    touts = [materialize(t) for t in touts]
    result = pytree.unflatten(out_tree, outs), pytree.unflatten(out_tree, touts)
    return (*result, _strip(aux_cell[0])) if has_aux else result


def _split_aux(out: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(out, tuple) or len(out) != 2:
        raise ArgumentTypeError(
            f"{where}: with has_aux=True the function must return a pair (output, aux), got {out!r}"
        )
    return out


def _strip(tree: Any) -> Any:
    """Auxiliary outputs without the tracers of a finished derivative."""

    def leaf(x: Any) -> Any:
        while hasattr(x, "primal") and not x.owner.alive:
            x = x.primal
        return x

    return pytree.map(leaf, tree)


# --- linearize and reverse ----------------------------------------------------------------------------------
class _Linearized:
    """The linear part of a function at a point, as a tape."""

    def __init__(self, fun: Callable[..., Any], flat: Sequence[Any]) -> None:
        self.tape = Tape(STATE.trace)
        self.inputs: list[TapeTracer | None] = []
        tangents: list[Any] = []
        for x in flat:
            aval = typeof(x)
            arg = self.tape.new_arg(aval.strong()) if dtypes.is_inexact(aval.dtype) else None
            self.inputs.append(arg)
            tangents.append(Zero(aval) if arg is None else arg)
        with set_trace(self.tape):
            self.outs, self.tangents, self.treedef = jvp_flat(fun, flat, tangents)
        self.in_avals = [typeof(x) for x in flat]
        self.out_avals = [typeof(x) for x in self.outs]
        for x in self.outs:
            check_alive(x)

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Result tangents for input tangents."""
        env = {arg: t for arg, t in zip(self.inputs, tangents) if arg is not None}
        replay(self.tape.records, env)
        return [materialize(env[t] if isinstance(t, TapeTracer) and t in env else t) for t in self.tangents]

    def pull(self, cts: Sequence[Any]) -> list[Any]:
        """Input cotangents for result cotangents; zeros where nothing arrives, of ``float0`` for integers and bools."""
        found = collect_cts(self.tape, self.tangents, cts)
        wanted = [arg for arg in self.inputs if arg is not None]
        results = iter(backward(self.tape, found, wanted))
        return [
            np.zeros(a.shape, dtypes.float0) if arg is None else materialize(next(results))
            for arg, a in zip(self.inputs, self.in_avals)
        ]


def linearize(fun: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``(fun(*primals), f_jvp)`` where ``f_jvp(*tangents)`` is the derivative at ``primals``, evaluated without redoing
    the non-linear work.

    Raises:
      DifferentiationError: (from ``f_jvp``) structure, shapes or dtypes of tangents differ from those of primals.

    Example:
      >>> out, f_jvp = mw.linearize(lambda x: x**2, 3.0)
      >>> float(out), float(f_jvp(1.0)), float(f_jvp(10.0))
      (9.0, 6.0, 60.0)
    """
    require_callable(fun, "linearize")
    flat, treedef = pytree.flatten(primals)
    lin = _Linearized(lambda *leaves: fun(*pytree.unflatten(treedef, leaves)), flat)

    avals = [typeof(p) for p in flat]

    def f_jvp(*tangents: Any) -> Any:
        flat_tangents = _checked_tangents("linearize", fun, tangents, treedef, avals)
        return pytree.unflatten(lin.treedef, lin.push(flat_tangents))

    return pytree.unflatten(lin.treedef, lin.outs), f_jvp


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """``(fun(*primals), f_vjp)`` where ``f_vjp(ct)`` gives a tuple of cotangents, one an argument.

    ``ct`` has the shape of the output, each cotangent that of its argument. With ``has_aux``, ``fun`` returns a pair
    ``(out, aux)`` and ``aux`` is appended to the result.

    Raises:
      DifferentiationError: a cotangent's structure or type differs from the output's.

    Example:
      >>> out, f_vjp = mw.vjp(lambda x, y: x * y.sum(), 3.0, mnp.array([4.0, 5.0]))
      >>> f_vjp(10.0)
      (Array(90., dtype=float32), Array([30., 30.], dtype=float32))
    """
    require_callable(fun, "vjp")
    flat, treedef = pytree.flatten(primals)
    aux_cell: list[Any] = []

    def call(*leaves: Any) -> Any:
        out = fun(*pytree.unflatten(treedef, leaves))
        if has_aux:
            out, aux = _split_aux(out, "vjp")
            aux_cell.append(aux)
        return out

    lin = _Linearized(call, flat)

    def f_vjp(ct: Any) -> tuple[Any, ...]:
        flat_ct = _checked_cotangents("vjp", fun, ct, lin.treedef, lin.out_avals)
        return pytree.unflatten(treedef, lin.pull(flat_ct))

    out = pytree.unflatten(lin.treedef, lin.outs)
    return (out, f_vjp, _strip(aux_cell[0])) if has_aux else (out, f_vjp)


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
    """The transpose of a linear function: ``f_transpose(ct)`` gives a tuple of cotangents, one an argument.

    Args:
      primals: arguments of ``fun``, or anything with their shapes and dtypes; only those matter.

    Raises:
      RuleError: ``fun`` is not linear in its arguments; names the op. DifferentiationError: arguments that are not
        floating-point, or a cotangent of another type than the output.

    Example:
      >>> transposed = mw.linear_transpose(lambda x: 3 * x, mw.ShapeDtypeStruct((2,), "float32"))
      >>> transposed(mnp.array([1.0, 2.0]))
      (Array([3., 6.], dtype=float32),)
    """
    require_callable(fun, "linear_transpose")
    flat, treedef = pytree.flatten(primals)
    avals = [getattr(x, "aval", None) or typeof(x) for x in flat]
    for path, aval in zip(pytree.paths(primals), avals):
        if not dtypes.is_inexact(aval.dtype):
            raise DifferentiationError(
                f"linear_transpose of {name_of(fun)}: arguments must be floating-point, argument{path} is {aval.dtype}"
            )

    def transposed(ct: Any) -> tuple[Any, ...]:
        tape = Tape(STATE.trace)
        args = [tape.new_arg(a.strong()) for a in avals]
        with set_trace(tape):
            out = fun(*pytree.unflatten(treedef, args))
        outs, out_tree = pytree.flatten(out)
        cts = _checked_cotangents("linear_transpose", fun, ct, out_tree, [typeof(x) for x in outs])
        results = backward(tape, collect_cts(tape, outs, cts), args)
        tape.alive = False
        return pytree.unflatten(treedef, [materialize(x) for x in results])

    return transposed


def _checked_cotangents(where: str, fun: Any, ct: Any, out_tree: Any, avals: Sequence[Any]) -> list[Any]:
    """Flat cotangents, in the dtypes of the outputs.

    Raises:
      DifferentiationError: another structure, shape or dtype.
    """
    flat, tree = pytree.flatten(ct)
    if tree != out_tree:
        raise DifferentiationError(
            f"{where} of {described(fun)}: the cotangent has structure {pytree.show(tree)}, the function's output "
            f"{pytree.show(out_tree)} ({pytree.difference(out_tree, tree, exact=True)})"
        )
    for i, (c, a) in enumerate(zip(flat, avals)):
        got = typeof(c)
        if got.shape != a.shape or (dtypes.is_inexact(a.dtype) and got.dtype != a.dtype and not got.weak_type):
            path = pytree.paths(ct)[i]
            raise DifferentiationError(
                f"{where} of {described(fun)}: cotangent{path} has type {got}, output{path} has type {a}; they must be "
                "equal"
            )
    return [convert(c, a.dtype) if dtypes.is_inexact(a.dtype) else c for c, a in zip(flat, avals)]


def argument_numbers(argnums: Any, n: int, where: str) -> tuple[int, ...]:
    """Which of ``n`` positional arguments ``argnums`` names.

    Raises:
      ArgumentError: one that is not there. ArgumentTypeError: no numbers.
    """
    numbers = (argnums,) if isinstance(argnums, (int, str)) else tuple(argnums)
    if not all(isinstance(i, int) for i in numbers):
        raise ArgumentTypeError(f"{where}: argnums must be an int or a sequence of ints, got {argnums!r}")
    for i in numbers:
        if not -n <= i < n:
            raise ArgumentError(
                f"{where}: argnums={argnums} names argument {i}, but the function was called with {n} positional "
                f"argument{'' if n == 1 else 's'}"
            )
    return tuple(i % n for i in numbers)


def function_of(fun: Callable[..., Any], numbers: Sequence[int], args: Sequence[Any], kwargs: Any) -> Any:
    """``fun`` as a function of the arguments with these numbers, the others being those given."""

    def call(*values: Any) -> Any:
        full = list(args)
        for i, v in zip(numbers, values):
            full[i] = v
        return fun(*full, **kwargs)

    return call


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """A function that returns ``(fun(...), gradient of it with respect to argnums)``.

    ``fun`` must return a real scalar, or with ``has_aux`` a pair ``(scalar, aux)``; the value is then that pair.

    Raises (when called):
      DifferentiationError: the output is not a real scalar, or an argument has an integer dtype.

    Example:
      >>> value, gradient = mw.value_and_grad(lambda x: (x**2).sum())(mnp.array([1.0, 2.0]))
      >>> float(value), gradient
      (5.0, Array([2., 4.], dtype=float32))
    """
    require_callable(fun, "grad")

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers(argnums, len(args), "grad")
        wanted = [args[i] for i in numbers]
        for i in numbers:
            _check_input(fun, i, args[i], holomorphic, allow_int)
        call = function_of(fun, numbers, args, kwargs)
        if has_aux:
            out, pull, aux = vjp(call, *wanted, has_aux=True)
        else:
            (out, pull), aux = vjp(call, *wanted), None
        aval = _check_output(out, fun, holomorphic)
        grads = pull(np.ones((), aval.dtype))
        grad_out = grads[0] if isinstance(argnums, int) else grads
        return ((out, aux) if has_aux else out), grad_out

    return needs_jit(wrapped, f"value_and_grad({name_of(fun)})")


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
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """The gradient of a scalar-valued function with respect to ``argnums``; with ``has_aux``, ``(gradient, aux)``.

    It has the structure and shapes of the argument, and is a tuple when ``argnums`` is a sequence. With ``allow_int``,
    the gradient by an integer or bool is an array of the empty dtype ``float0``.

    Raises (when called):
      DifferentiationError: the output is not a real scalar, or an argument has an integer dtype.

    Example:
      >>> loss = lambda w, x: w["scale"] * (x**2).sum()
      >>> mw.grad(loss)({"scale": 3.0}, mnp.array([1.0, 2.0]))
      {'scale': Array(5., dtype=float32)}
      >>> mw.grad(loss, argnums=1)({"scale": 3.0}, mnp.array([1.0, 2.0]))
      Array([ 6., 12.], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return needs_jit(wrapped, f"grad({name_of(fun)})")


# --- pieces for transformations of functions ----------------------------------------------------------------
def stop_gradient(x: Any) -> Any:
    """A tree of arrays as it is, whose derivative is zero.

    Example:
      >>> float(mw.grad(lambda x: x * lax.stop_gradient(x))(3.0))
      3.0
    """
    return pytree.map(lambda leaf: stop_gradient_op(leaf) if dtypes.is_inexact(typeof(leaf).dtype) else leaf, x)


def closed_call(fun: Callable[..., Any], flat: Sequence[Any], debug_name: str) -> tuple[ClosedJaxpr, list[Any], Any]:
    """Record ``fun`` on flat arguments. Tracers it closes over become leading operands.

    Returns (jaxpr, those operands, output treedef).
    """
    trace = JaxprTrace()
    args = [trace.new_arg(typeof(x)) for x in flat]
    try:
        with set_trace(trace):
            out = fun(*args)
            leaves, treedef = pytree.flatten(out)
        jaxpr = trace.finish(leaves, debug_name)
    finally:
        trace.alive = False
    lifted, hoisted = lift_constants(jaxpr)
    return lifted, hoisted, treedef


def lift_constants(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Make all constants leading operands."""
    inner = jaxpr.jaxpr
    if not jaxpr.consts:
        return jaxpr, []
    return ClosedJaxpr(inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars])), jaxpr.consts
