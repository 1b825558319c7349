"""Mutable array references (``new_ref``, as in ``jax``), made pure by tracing.

A reference is a Python object that holds its latest value, so reads and writes in the function that created it leave
only values in a program. A body of control flow that uses an outer reference is traced with the reference's value as an
extra input and output, and so is a jitted function. ``grad`` and ``vmap`` evaluate what does not depend on their
arguments outside, so there outer references are read as they are. What depends on what is differentiated is not written
into them, and nothing under ``vmap``, where each element would write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from meshwright.api.shape_dtype import shape_of
from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import only_default
from meshwright.core.window_index import has_windows
from meshwright.errors import ArgumentError, ArgumentTypeError, DeletedArrayError, DTypeError, UnexpectedTracerError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import Tracer
from meshwright.ir.tracing import typeof as type_of_value
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.runtime.array import Array
from meshwright.runtime.values import as_result
from meshwright.transforms.batching import BatchTrace

#: the references that calls of this thread are given, which their functions must not close over
_LENT: ContextVar[tuple[Ref, ...]] = ContextVar("lent references", default=())


class Ref:
    """A reference to an array of one shape and dtype: ``ref[i]`` reads, ``ref[i] = x`` writes, with NumPy's indices.

    See :func:`new_ref`.
    """

    __slots__ = ("__weakref__", "_owned", "_states", "_type")
    __iter__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self._type = type_of_value(value)
        #: the traces in which it is used, outermost first, and its value in each
        self._states: list[tuple[Any, Any]] = [(STATE.trace, value)]
        #: the value that nothing else has, if there is one
        self._owned: Any = None

    shape = property(lambda self: self._type.shape)
    dtype = property(lambda self: self._type.dtype)
    ndim = property(lambda self: self._type.ndim)
    size = property(lambda self: self._type.size)
    sharding = property(lambda self: self.held.sharding)

    def unsafe_buffer_pointer(self) -> int:
        """The address of the buffer that it holds now."""
        return int(self.held.unsafe_buffer_pointer())

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ArgumentTypeError(f"a reference to {self._type} is no array; read it with ref[...]")

    def __len__(self) -> int:
        return len(self.held)

    def __copy__(self) -> Ref:
        return self

    def __reduce__(self) -> Any:
        return Ref, (self.value,)

    def __repr__(self) -> str:
        inside = bool(self._states) and isinstance(self._states[-1][1], Tracer)
        return f"Ref({self._type})" if inside or not self._states else f"Ref{str(repr(self._states[-1][1]))[5:]}"

    def __getitem__(self, index: Any) -> Any:
        read = self.held[index]
        if is_shared(read, self.held):
            self._owned = None
        return read

    def __setitem__(self, index: Any, value: Any) -> None:
        self.value = self.held.at[index].set(self._fitting(value), mode=_mode(index))

    def addupdate(self, value: Any, index: Any = ...) -> None:
        """``ref[index] += value``; repeated indices accumulate."""
        self.value = self.held.at[index].add(self._fitting(value), mode=_mode(index))

    @property
    def held(self) -> Any:
        """:attr:`value`, for those who do not keep it."""
        self.check()
        value = self._states[-1][1]
        if type(value) is Array and value.is_deleted():
            raise DeletedArrayError(
                f"the value of a reference to {self._type} is gone: an array that shares its memory (read from it, or "
                "given to it) was donated or deleted, or a program failed that updates it in place; donate copies, and "
                "make another reference with new_ref"
            )
        return value

    @property
    def value(self) -> Any:
        """The current value of the whole array, for others to keep.

        Raises:
          DeletedArrayError: the reference was frozen.
          ForeignReferenceError: the reference belongs to another trace.
        """
        self._owned = None
        return self.held

    @value.setter
    def value(self, new: Any) -> None:
        self._owned = None
        self.check()
        if self._type.weak_type and not type_of_value(new).weak_type:
            new = ConvertElementType(self.dtype, True).bind(new)
        home, trace = self._states[-1][0], STATE.trace
        while trace is not home:
            if isinstance(trace, BatchTrace) or (isinstance(new, Tracer) and new.owner is trace):
                raise DependentValueError(self)
            trace = trace.parent  # type: ignore[attr-defined]
        self._states[-1] = home, new

    def holds(self, value: Any) -> bool:
        return bool(self._states) and self._states[-1][1] is value

    def gives(self, value: Any) -> bool:
        """Whether ``value`` is that of the reference, and nothing else has it; no longer, then."""
        if self._owned is not value:
            return False
        self._owned = None  # of two threads, one
        return True

    def settle(self, is_new: bool, others: Iterable[Any]) -> None:
        """After a program had the value, or computed it (``is_new``): note whether one of ``others`` is the same."""
        value = self.held
        if any(is_shared(value, x) for x in others):
            self._owned = None
        elif is_new:
            self._owned = value

    def check(self) -> None:
        if not self._states:
            raise DeletedArrayError(f"this reference to {self._type} was frozen; make another with new_ref")
        if any(ref is self for ref in _LENT.get()):
            raise ArgumentError(
                f"a reference to {self._type} is an argument of a function that also closes over it; use the argument"
            )
        if not self.is_here():
            raise ForeignReferenceError(self)

    def is_here(self) -> bool:
        """Whether the reference was created in, or passed into, the current trace, or one that evaluates for it."""
        trace: Any = STATE.trace
        while self._states and trace is not None:
            if self._states[-1][0] is trace:
                return True
            trace = getattr(trace, "parent", None)
        return False

    def enter(self, value: Any) -> None:
        """Begin to use the reference in the current trace, with this value."""
        self._states.append((STATE.trace, value))

    def leave(self) -> Any:
        """The reference's value at the end of the trace it entered last."""
        return self._states.pop()[1]

    def freeze(self) -> Any:
        value = self.value
        self._states = []
        return value

    def _fitting(self, value: Any) -> Any:
        aval = type_of_value(value)
        kinds = [(self.dtype, False), (aval.dtype, aval.weak_type)]
        if aval.dtype != self.dtype and (not aval.weak_type or dtypes.promote(kinds)[0] != self.dtype):
            raise DTypeError(f"{aval} is written into a reference to {self._type}; convert it with .astype")
        return value


def _mode(index: Any) -> str | None:
    """How positions that are not inside are written: windows are moved, as when they are read."""
    return "clip" if has_windows(index) else None


class ForeignReferenceError(UnexpectedTracerError):
    """A reference from outside the current trace was used."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(
            f"a reference to {ref._type} is used in a function that a transformation traces (make_jaxpr, shard_map, "
            "...), but was made outside of it; make it inside, or pass its value in and the new one out"
        )
        self.ref = ref


class DependentValueError(ArgumentError):
    """An outer reference was written under ``vmap``, or with a value that depends on what is differentiated."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(
            f"a reference to {ref._type} from outside is written under vmap, or under grad or jvp with a value that "
            "depends on their arguments, but has one value, without a derivative; pass the reference to vmap as an "
            "argument, write lax.stop_gradient of the value under grad, or return the value"
        )


def is_shared(x: Any, y: Any) -> bool:
    """Whether two values are the same, or arrays in the same memory."""
    return x is y or (type(x) is Array and type(y) is Array and x._buffer is not None and x._buffer is y._buffer)


@dataclass(frozen=True)
class AbstractRef:
    """The type of references to arrays of the type ``inner_aval``; of one kind, in the device's memory."""

    inner_aval: ShapedArray
    memory_space: None = None
    kind: None = None

    shape = property(lambda self: self.inner_aval.shape)
    dtype = property(lambda self: self.inner_aval.dtype)
    ndim = property(lambda self: self.inner_aval.ndim)
    size = property(lambda self: self.inner_aval.size)
    weak_type = property(lambda self: self.inner_aval.weak_type)
    sharding = property(lambda self: self.inner_aval.sharding)

    def __repr__(self) -> str:
        return f"Ref{{{self.inner_aval.str_short()}}}"


def typeof(x: Any) -> Any:
    """The type of an array, tracer, NumPy array or Python number: its shape, dtype and weak type and, inside a
    ``shard_map``, the manual axes over which it varies (``vma``). Of a reference, the :class:`AbstractRef`.

    Raises:
      ArgumentTypeError: ``x`` cannot be converted to an array.

    Example:
      >>> mw.typeof(mnp.ones((2, 3))), mw.typeof(1).weak_type, mw.typeof(mw.new_ref(0.0))
      (ShapedArray(float32[2,3]), True, Ref{float32[]})
    """
    return AbstractRef(x._type) if isinstance(x, Ref) else type_of_value(x)


@contextmanager
def lent(refs: Sequence[Ref]) -> Iterator[None]:
    """A call that is given references: while it lasts, they have no value in this thread."""
    token = _LENT.set((*_LENT.get(), *refs))
    try:
        yield
    finally:
        _LENT.reset(token)


def new_ref(init_val: Any, *, memory_space: Any = None, kind: str | None = None) -> Ref:
    """A reference to an array with the initial value ``init_val``: ``ref[...]`` reads it, ``ref[i] = x`` writes it.

    Bodies of control flow and functions under ``jit``, ``checkpoint``, ``vmap`` and ``grad`` may use outer references.
    Functions also take references as arguments: ``vmap``, ``scan`` and ``shard_map`` split what they hold, ``jvp`` and
    ``linearize`` take references with tangents in their places, and ``custom_vjp`` passes them on to its rules, so that
    ``bwd`` can write a cotangent. Others are not written under ``vmap``, nor with values that depend on what is
    differentiated.

    Example:
      >>> seen = mw.new_ref(mnp.zeros(3))
      >>> @mw.jit
      ... def count(i):
      ...     seen[i] += 1
      >>> count(1)
      >>> seen[...]
      Array([0., 1., 0.], dtype=float32)
    """
    only_default("new_ref", "there is one kind, in the device's memory", memory_space=memory_space, kind=kind)
    aval = type_of_value(init_val)
    return Ref(ConvertElementType(aval.dtype, True).bind(init_val) if aval.weak_type else as_result(init_val))


def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """A reference to an array with the type of ``ty`` (a ``ShapeDtypeStruct`` or an array), to be written before it is
    read: its initial value is unspecified (zeros).

    Example:
      >>> mw.empty_ref(mw.ShapeDtypeStruct((2,), "int32"))[...].shape
      (2,)
    """
    only_default("empty_ref", "there is one kind, in the device's memory", memory_space=memory_space)
    aval = shape_of(ty)
    return Ref(as_result(broadcast_in_dim(dtypes.constant(0, aval.dtype), aval.shape, ())))


def freeze(ref: Ref) -> Any:
    """The array that ``ref`` refers to; invalidates the reference.

    Example:
      >>> mw.freeze(mw.new_ref(3.0))
      Array(3., dtype=float32, weak_type=True)
    """
    return _checked(ref, "freeze").freeze()


def free_ref(ref: Ref) -> None:
    """Invalidate the reference.

    Example:
      >>> mw.free_ref(mw.new_ref(3.0))
    """
    freeze(ref)


def get(ref: Ref, idx: Any = None) -> Any:
    """``ref[idx]``; the whole array without ``idx``."""
    return _checked(ref, "get")[... if idx is None else idx]


def set_(ref: Ref, idx: Any, value: Any) -> None:
    """``ref[idx] = value``."""
    _checked(ref, "set")[... if idx is None else idx] = value


def swap(ref: Ref, idx: Any, value: Any) -> Any:
    """Write ``value`` to ``ref[idx]`` and return the previous value."""
    before = get(ref, idx)
    set_(ref, idx, value)
    return before


def addupdate(ref: Ref, idx: Any, x: Any) -> None:
    """``ref[idx] += x``; repeated indices accumulate."""
    _checked(ref, "addupdate").addupdate(x, ... if idx is None else idx)


set_.__name__ = "set"


def _checked(ref: Any, name: str) -> Ref:
    if not isinstance(ref, Ref):
        raise ArgumentTypeError(f"ref.{name}: expected a reference, of new_ref, got {type(ref).__name__}")
    return ref
