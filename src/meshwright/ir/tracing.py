"""Traces and tracers, which turn Python functions into jaxprs.

A *trace* interprets ops and a *tracer* represents a value of a trace. ``JaxprTrace`` records equations; ``EvalTrace``
evaluates. The traces of ``jvp``, ``vmap`` and others are in ``transforms``. A tracer refers to its trace and so knows
whether it has ended: a leaked tracer is reported when it is used, with the source line that computed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn, Self

import numpy as np

from meshwright.core import pytree, source
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.caches import on_clear
from meshwright.core.config import config
from meshwright.core.dtypes import as_dtype, canonical, float0, in_dtype, keeps_wide
from meshwright.core.slots import Slot
from meshwright.errors import (
    ArgumentTypeError,
    ConcretizationTypeError,
    DTypeError,
    ImmutableArrayError,
    ShapeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
    WideIntegerError,
)
from meshwright.ir.explicit import AGAIN, is_explicit
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns, sub_jaxprs
from meshwright.ir.not_arrays import no_array, refuse_masked
from meshwright.ir.op import Op
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.varying import axes_of

#: array types of other libraries that ops accept, and their conversions; registered by ``interop``
FOREIGN: dict[type, Callable[[Any], Any]] = {}


# --- avals of values ----------------------------------------------------------------------------------------
@cache
def _scalar_aval(kind: type, wide: bool) -> ShapedArray:
    return ShapedArray((), canonical(as_dtype(kind)), weak_type=kind is not bool)


def typeof(x: Any) -> ShapedArray:
    """The type of an array, tracer, NumPy array or Python number: its shape, dtype and weak type and, inside a
    ``shard_map``, the manual axes over which it varies (``vma``).

    Raises:
      ArgumentTypeError: ``x`` cannot be converted to an array.

    Example:
      >>> mw.typeof(mnp.ones((2, 3))), mw.typeof(1).weak_type
      (ShapedArray(float32[2,3]), True)
    """
    kind = type(x)
    if issubclass(kind, Typed):  # not by the attribute, which wrappers pass on: such an operand would be a constant
        aval: ShapedArray = x.aval
        if aval.__class__ is ShapedArray:
            return aval
    if kind in (bool, int, float, complex):
        if kind is int and not -(2**31) <= x < 2**31:
            _check_int(x)
        return _scalar_aval(kind, keeps_wide())  # type: ignore[arg-type]
    if kind in FOREIGN:
        return typeof(FOREIGN[kind](x))
    if isinstance(x, (np.ndarray, np.generic)):
        refuse_masked(x)
        try:
            return ShapedArray(x.shape, canonical(as_dtype(x.dtype)))
        except DTypeError:
            if x.dtype == float0:
                return ShapedArray(x.shape, float0)
            raise ArgumentTypeError(
                f"NumPy value of dtype {x.dtype} cannot become an array: only numbers and bools can"
            ) from None
    for base in (bool, int, float, complex):
        if isinstance(x, base):
            return _scalar_aval(base, keeps_wide())
    raise no_array(x)


def _check_int(x: int) -> None:
    limit = 64 if config.enable_x64 else 32
    if not -(2 ** (limit - 1)) <= x < 2 ** (limit - 1):
        remedy = "" if limit == 64 else "; pass a NumPy value with an explicit dtype or enable_x64"
        raise WideIntegerError(f"Python integer {x} does not fit in int{limit}{remedy}")


# --- tracers ------------------------------------------------------------------------------------------------
class ArrayMethods(Typed):
    """Base of arrays and tracers, for their common operators and methods; ``meshwright.numpy`` installs these."""

    __slots__ = ()
    __array_priority__ = 100

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    def __setitem__(self, index: Any, value: Any) -> None:
        raise ImmutableArrayError(
            "arrays are immutable, x[index] = value cannot work; write x = x.at[index].set(value) "
            "(or .add, .multiply, .min, .max)"
        )

    def __delitem__(self, index: Any) -> None:
        raise ImmutableArrayError(
            "arrays are immutable, del x[index] cannot work; join the parts that stay with meshwright.numpy.concatenate"
        )


#: attributes that only concrete arrays have, and what to use instead
_NEEDS_VALUE = {
    **dict.fromkeys(
        ("__dlpack__", "__dlpack_device__", "unsafe_buffer_pointer", "tobytes", "copy_to_host_async"),
        "use the functions of meshwright.numpy, or pure_callback to call Python on the value",
    ),
    **dict.fromkeys(
        ("addressable_data", "addressable_shards", "delete", "devices", "global_shards", "is_deleted",
         "is_fully_addressable", "is_fully_replicated", "is_ready"),
        "ask the arrays that go into the traced function, or come out of it",
    ),
}  # fmt: skip


def _refusal(error: type[Exception], what: str, remedy: str) -> Any:
    """A method that raises ``error``, since ``what`` needs a concrete value."""
    return lambda self: self.refuse(error, what, remedy)


#: conversions of a tracer to a Python or NumPy value: what needs them, and what to use instead
_CONVERSIONS = {
    "__index__": (
        "using a value as a Python index or size",
        "make the argument static (static_argnums), or index an array with it",
    ),
    "__int__": ("int()", "use .astype(int), or make the argument static"),
    "__float__": (
        "float(), or a function of Python's math,",
        "use .astype(float) and meshwright.numpy, or make the argument static",
    ),
    "__complex__": ("complex()", "use .astype(complex), or make the argument static"),
    "__array__": ("a NumPy function or np.asarray", "use the function of the same name in meshwright.numpy"),
    "item": (".item()", "return the value from the traced function instead"),
    "tolist": (".tolist()", "return the value from the traced function instead"),
}


def _refusing(name: str, error: type[Exception] = ConcretizationTypeError) -> Any:
    what, remedy = _CONVERSIONS[name]

    def refuse(self: Tracer, *args: Any, **kwargs: Any) -> NoReturn:
        """Always raises: a tracer has no concrete value."""
        self.refuse(error, what, remedy)

    refuse.__name__ = name
    return refuse


class Tracer(ArrayMethods):
    """A value inside a function that is being transformed.

    It cannot be converted to a Python or NumPy value, since transformations could not see what is computed from that.
    The exception is ``bool`` where the value is known, as under ``grad``: Python control flow has no derivative.
    """

    __slots__ = ("__weakref__", "aval", "owner")
    aval: ShapedArray
    owner: Trace

    def concrete(self) -> Any:
        """The concrete array behind this tracer, or ``None``. For control-flow decisions, not for computing with it."""
        return None

    def origin(self) -> str:
        """The source location or argument that the value came from, for messages."""
        return ""

    def refuse(self, error: type[Exception], what: str, remedy: str) -> NoReturn:
        """Raise ``error``, since ``what`` needs a concrete value."""
        check_alive(self)
        origin = self.origin()
        known = "" if self.concrete() is None else "; its value is known here, but its derivative would be lost"
        raise error(
            f"{what} needs a concrete value, but this is a traced one of type {self.aval}"
            f"{' from ' + origin if origin else ''}{known}; {remedy}"
        )

    def __bool__(self) -> bool:
        check_alive(self)
        if self.size != 1:
            raise ShapeError(
                f"bool() needs an array of one element, this one has type {self.aval}; use .any() or .all()"
            )
        value = self.concrete()
        if value is None:
            self.refuse(
                TracerBoolConversionError,
                "Python control flow (if, while, and, or, not, assert)",
                "use meshwright.numpy.where or lax.cond / lax.while_loop, or make the argument static (static_argnums)",
            )
        return bool(value)

    __index__: Callable[[Tracer], int] = _refusing("__index__", TracerIntegerConversionError)
    __int__: Callable[[Tracer], int] = _refusing("__int__")
    __float__: Callable[[Tracer], float] = _refusing("__float__")
    __complex__: Callable[[Tracer], complex] = _refusing("__complex__")
    __array__: Callable[..., np.ndarray] = _refusing("__array__", TracerArrayConversionError)
    item: Callable[..., Any] = _refusing("item")
    tolist: Callable[..., Any] = _refusing("tolist")

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        self.refuse(
            ConcretizationTypeError,
            f"format {spec!r}",
            "print it with debug.print, or format the value outside of the traced function",
        )

    def __getattr__(self, name: str) -> Any:
        if name in _NEEDS_VALUE:
            self.refuse(ConcretizationTypeError, f".{name}", _NEEDS_VALUE[name])
        raise AttributeError(f"a traced array has no attribute {name!r}", name=name, obj=self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.refuse(ConcretizationTypeError, "pickling", "return the value from the traced function, and pickle that")

    def __hash__(self) -> int:
        raise ArgumentTypeError("traced arrays are not hashable: they cannot be static arguments or dict keys")

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.aval}>"

    def block_until_ready(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    __copy__ = lambda self: self  # noqa: E731


class Trace:
    """Interprets ops. As a context it ends where the transformation does; values that leave it are refused."""

    __slots__ = ("__weakref__", "alive")

    def __init__(self) -> None:
        self.alive = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.alive = False

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        """Apply ``op``; returns its result, or a list of them with ``multiple_results``."""
        raise NotImplementedError(type(self).__name__)


def check_alive(x: Any) -> None:
    """Raise ``UnexpectedTracerError``, naming where the value was computed, if ``x`` is a tracer of an ended trace."""
    if isinstance(x, Tracer) and not x.owner.alive:
        origin = x.origin()
        raise UnexpectedTracerError(
            f"a traced value of type {x.aval}{' from ' + origin if origin else ''} was used after the traced "
            "function had returned: it must have been saved in a global, an attribute or a closure. Return it "
            "from the function instead"
        )


def array_leaves(out: Any, complaint: Callable[[str], str]) -> tuple[list[Any], Any]:
    """The leaves and structure of a traced function's output.

    Raises:
      ArgumentTypeError: a leaf is not an array; ``complaint`` makes the message from its path.
      UnexpectedTracerError: a leaf is a tracer of a finished trace.
    """
    leaves, tree = pytree.flatten(out)
    for x, path in zip(leaves, pytree.paths(out)):
        check_alive(x)
        try:
            typeof(x)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{complaint(path)}: {error}") from None
    return leaves, tree


class EvalTrace(Trace):
    """Evaluates ops eagerly. ``meshwright.runtime.eager`` supplies the evaluator, since ``ir`` may not import it."""

    __slots__ = ()

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        return EVALUATE.value(op, args)


EVALUATE: Slot[Callable[[Op, Sequence[Any]], Any]] = Slot("the evaluation of ops", "meshwright.runtime.eager")
EVAL = EvalTrace()
type(STATE).trace = EVAL


# --- recording ----------------------------------------------------------------------------------------------
_infer_cache: dict[Any, Any] = {}
_MOST_INFERRED = 100_000
on_clear(_infer_cache.clear)


def infer_cached(op: Op, avals: tuple[ShapedArray, ...]) -> Any:
    """The types of ``op``'s results; cached except for ops that hold jaxprs, so that the cache keeps none alive."""
    if STATE.decided is not None and is_explicit(avals):
        return op.typed(*avals)
    key = (op, avals, STATE.checked, config.tracing)
    inferred = None if op.holds_jaxprs else _infer_cache.get(key)
    if inferred is None:
        op.check_keys(avals)
        inferred = (op.typed if STATE.checked or is_explicit(avals) else op.infer)(*avals)
        if not op.holds_jaxprs:
            if len(_infer_cache) >= _MOST_INFERRED:
                _infer_cache.clear()
            _infer_cache[key] = inferred
    return inferred


class JaxprTracer(Tracer):
    """A variable of the jaxpr that its trace records."""

    __slots__ = ("source", "variable")
    owner: JaxprTrace

    def __init__(self, trace: JaxprTrace, var: Var, location: source.SourceLocation) -> None:
        self.owner = trace
        self.aval = var.aval
        self.variable = var
        self.source = location

    def origin(self) -> str:
        if self.source is not source.UNKNOWN:
            return str(self.source)
        names = self.owner.argument_names()
        return next((f"argument {name}" for var, name in zip(self.owner.invars, names) if var is self.variable), "")


class JaxprTrace(Trace):
    """Records every op as an equation; arrays and tracers from outside become constants, scalars literals.

    ``argument_names`` returns the user's names of the parameters; it is called only for error messages.
    """

    __slots__ = ("argument_names", "consts", "constvars", "eqns", "invars", "note")

    def __init__(self, argument_names: Callable[[], Sequence[str]] = tuple) -> None:
        super().__init__()
        self.argument_names = argument_names
        self.eqns: list[JaxprEqn] = []
        self.invars: list[Var] = []
        self.consts: dict[int, Any] = {}
        self.constvars: dict[int, Var] = {}
        #: the note of recorded equations, set by passes
        self.note: Any = None

    def new_arg(self, aval: ShapedArray) -> JaxprTracer:
        """Append a parameter to the jaxpr and return its tracer."""
        var = Var(aval)
        self.invars.append(var)
        return JaxprTracer(self, var, source.UNKNOWN)

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        if STATE.folding and not any(isinstance(x, Tracer) for x in args) and not _over_devices(op):
            with set_trace(EVAL):
                return EVAL.process(op, args)
        if op.holds_jaxprs and (body := op.inlined) is not None:
            with set_trace(self):
                return eval_jaxpr(body, body.consts, *args)
        invars: list[Var | Literal] = []
        avals = []
        for x in args:
            if type(x) is JaxprTracer and x.owner is self:
                invars.append(x.variable)
                avals.append(x.aval)
            else:
                atom = self._constant(x)
                invars.append(atom)
                avals.append(atom.aval)
        out = infer_cached(op, tuple(avals))
        location = source.current()
        if op.multiple_results:
            outvars = [Var(a) for a in out]
            self.eqns.append(JaxprEqn(op, invars, outvars, location, self.note))
            return [JaxprTracer(self, v, location) for v in outvars]
        var = Var(out)
        self.eqns.append(JaxprEqn(op, invars, [var], location, self.note))
        return JaxprTracer(self, var, location)

    def atom(self, x: Any) -> Var | Literal:
        """The variable or literal that represents ``x`` in this jaxpr."""
        if type(x) is JaxprTracer and x.owner is self:
            return x.variable
        return self._constant(x)

    def _constant(self, x: Any) -> Var | Literal:
        if isinstance(x, (int, float, complex)) and not isinstance(x, np.generic):
            return Literal(x, typeof(x))
        if isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0:
            aval = typeof(x)
            return Literal(np.asarray(x, aval.dtype)[()], aval)
        key = id(x)
        var = self.constvars.get(key)
        if var is None:
            if isinstance(x, Tracer):
                check_alive(x)
            var = self.constvars[key] = Var(typeof(x))
            self.consts[key] = x
        return var

    def finish(self, outs: Sequence[Any], debug_name: str = "") -> ClosedJaxpr:
        """The recorded jaxpr with ``outs`` as results; its constants may be tracers of an outer trace."""
        outvars = [self.atom(x) for x in outs]
        self.alive = False
        jaxpr = Jaxpr(list(self.constvars.values()), self.invars, outvars, self.eqns, debug_name)
        return ClosedJaxpr(jaxpr, [in_dtype(x, v.aval.dtype) for x, v in zip(self.consts.values(), jaxpr.constvars)])


def _over_devices(op: Op) -> bool:
    """Whether the op, or one inside of it, is over named axes."""
    return op.over_devices or any(e.op.over_devices for inner in sub_jaxprs(op) for e in all_eqns(inner))


def trace_to_jaxpr(
    fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], debug_name: str = ""
) -> ClosedJaxpr:
    """Trace ``fun``, which maps flat arrays to a flat list of arrays, to a jaxpr with parameters of types ``avals``."""
    trace = JaxprTrace()
    args = [trace.new_arg(a) for a in avals]
    with trace:
        with set_trace(trace):
            outs = fun(*args)
        return trace.finish(outs, debug_name)


def eval_jaxpr(jaxpr: Jaxpr | ClosedJaxpr, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Evaluate a jaxpr's equations under the current trace.

    Equivalent to :class:`meshwright.ir.rewrite.Interpreter`, but in its own loop for speed: transformations spend most
    of their time here. Where arguments of a ``shard_map`` vary over other axes than the jaxpr says, casts are put where
    these types need them (:mod:`meshwright.ir.varying`).
    """
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts))
    env.update(zip(jaxpr.invars, args))
    trace = STATE.trace
    again = bool(STATE.checked) and any(axes_of(x) != v.aval.vma for v, x in env.items())

    def read(atom: Var | Literal) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    before, STATE.decided = STATE.decided, AGAIN
    try:
        for eqn in jaxpr.eqns:
            with source.at(eqn.source):
                operands = [read(a) for a in eqn.invars]
                outs = eqn.op.bind(*operands) if again else trace.process(eqn.op, operands)
            env.update(zip(eqn.outvars, outs if eqn.op.multiple_results else [outs]))
    finally:
        STATE.decided = before
    return [read(a) for a in jaxpr.outvars]
