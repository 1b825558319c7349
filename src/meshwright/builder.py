"""Builds programs op by op, as ``XlaBuilder`` and ``torch_xla.core.xla_builder`` do.

>>> b = mw.builder.Builder("products")
>>> p = b.parameter(0, "f32[4,4]")
>>> b.set_sharding(p, "{devices=[2,2]<=[4]}")
>>> y = b.op("dot_general", p, p, dimension_numbers=(((1,), (0,)), ((), ())))
>>> program = b.build(y)
>>> program.partition().num_devices
4

The result is a program as from :func:`meshwright.load`, which can be run, printed, partitioned, explained and verified.

With collectives among groups of devices, one builds the program of each device. :meth:`Builder.build` then returns the
program of all devices, whose arguments and results have the device as dimension 0:

>>> b = mw.builder.Builder("total", num_devices=4)
>>> x = b.parameter(0, "f32[2]")
>>> program = b.build(b.op("all_reduce", x, replica_groups=[[0, 1], [2, 3]]))
>>> program(mnp.arange(8.0).reshape(4, 2))
Array([[ 2.,  4.],
       [ 2.,  4.],
       [10., 12.],
       [10., 12.]], dtype=float32)
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from meshwright.api.load import ImportedProgram
from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.dtypes import canonical, wide_types
from meshwright.core.expected import as_integer
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, ShardingError
from meshwright.ir.jaxpr import ClosedJaxpr, Var, all_eqns
from meshwright.ir.op import REGISTRY, Op
from meshwright.ir.program import Argument
from meshwright.ir.reading import binary_op_name
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace, JaxprTracer, typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.elementwise.monoid import MONOIDS
from meshwright.ops.imported.device_collective import DeviceOp
from meshwright.ops.imported.grouped import COLLECTIVES
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation, annotated_rank
from meshwright.sharding import HloSharding, NamedSharding, named_to_hlo, parse_hlo_sharding
from meshwright.sharding.device_groups import Groups, as_groups
from meshwright.stablehlo.parsed import ParsedProgram
from meshwright.stablehlo.per_device import is_for_all_devices, of_all_devices

__all__ = ["Builder", "Region", "Value", "type_of"]

_TYPE = re.compile(r"\s*(\w+)\s*\[\s*((?:\d+\s*(?:,\s*\d+\s*)*)?)\]\s*(?:\{[\d,]*\})?\s*")
#: HLO's names of dtypes where they differ from those in jaxprs
_HLO_DTYPES = {"pred": "bool", "s2": "i2", "s4": "i4", "s8": "i8", "s16": "i16", "s32": "i32", "s64": "i64"}
#: ops with attributes, by HLO's names
_HLO_NAMES = {
    "bitcast_convert": "bitcast_convert_type",
    "convert": "convert_element_type",
    "convolution": "conv_general_dilated",
    "replica_id": "partition_id",
    "reverse": "rev",
    "Sharding": "sharding_annotation",
}


class Value(Typed):
    """A value of a program that is being built, with its ``shape``, ``dtype`` and ``sharding`` (None: open)."""

    __slots__ = ("_atom", "_trace", "aval", "builder", "sharding")

    def __init__(self, builder: Builder, atom: Any, aval: ShapedArray) -> None:
        self.builder = builder
        self._trace = builder._traces[-1]
        self._atom = atom
        self.aval = aval
        self.sharding: Annotation | None = None

    def __repr__(self) -> str:
        return f"Value({self.aval}{f', sharding={self.sharding}' if self.sharding is not None else ''})"


@dataclasses.dataclass(frozen=True)
class Region:
    """A function of values that an op applies: the body of a loop, or the binary function of a reduction."""

    jaxpr: ClosedJaxpr


class Builder:
    """Builds a program op by op, in the order of calls; ``name`` is that of the program.

    With ``num_devices`` it is the program of each of that many devices. Without, a program with collectives is for the
    devices that these name.
    """

    def __init__(self, name: str = "program", num_devices: int | None = None) -> None:
        self.name = name
        self.num_devices = None if num_devices is None else as_integer("Builder: num_devices", num_devices, 1)
        #: the groups and pairs of devices of collectives, each with the name of the attribute
        self._groups: list[tuple[str, Groups]] = []
        self._traces = [JaxprTrace()]
        self._parameters: dict[int, tuple[Value, str, bool]] = {}
        self._following: Annotation | NamedSharding | None = None

    # --- values ---------------------------------------------------------------------------------------------
    def parameter(self, number: int, type: Any, name: str | None = None, *, donated: bool = False) -> Value:
        """Add parameter ``number`` of the program; the memory of a ``donated`` one may be used for results.

        ``type`` is a text (``"f32[4,4]"``, as in jaxprs or HLO), or has ``shape`` and ``dtype``.

        Raises:
          ArgumentError: the number is taken, ``type`` is invalid, or this is in a region.
        """
        if number in self._parameters or not isinstance(number, int) or number < 0:
            taken = ", ".join(map(str, sorted(self._parameters))) or "none"
            raise ArgumentError(
                f"Builder.parameter: number {number!r} is taken or none; give another than {taken}, from 0 on"
            )
        if len(self._traces) > 1:
            raise ArgumentError("Builder.parameter: a region has the parameters that its types say")
        aval = type_of(type)
        value = Value(self, self._traces[0].new_arg(aval), aval)
        self._parameters[number] = value, name or f"p{number}", donated
        return self._marked(value)

    def constant(self, value: Any, type: Any = None) -> Value:
        """Add a constant: an array or number, broadcast to ``type`` if that is given.

        Without a type, arrays keep their dtype, and lists and numbers get the default one (32 bits, or 64 with
        ``enable_x64``).

        Raises:
          ArgumentError: ``value`` cannot be broadcast to ``type``.
        """
        array = value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)
        if type is not None:
            aval = type_of(type)
            if array.shape not in ((), aval.shape):
                raise ArgumentError(
                    f"Builder.constant: an array of shape {array.shape} does not fill {aval}; give as many elements"
                )
            array = np.broadcast_to(array.astype(aval.dtype), aval.shape)
        elif array is not value:
            array = array.astype(canonical(array.dtype))
        with wide_types():
            aval = typeof(np.asarray(array))
        return self._marked(Value(self, np.asarray(array), aval))

    # --- ops ------------------------------------------------------------------------------------------------
    def op(self, name: str, *operands: Any, **attributes: Any) -> Any:
        """Add an op; returns its value, or a list of values if ops of its kind have several (``reduce``, ``while``).

        ``name`` is the op's name in jaxprs (``"dot_general"``) or in HLO (``"multiply"``), ``operands`` are values and
        numbers, and ``attributes`` are the op's parameters as in jaxprs, with regions from :meth:`region`.

        Collectives are among the devices of each of ``replica_groups`` (``[]``: one group of all devices):
        ``all_reduce(computation=)``, ``all_gather(dimension=)``, ``reduce_scatter(dimension=, computation=)``,
        ``all_to_all(split_dimension=, concat_dimension=)``, ``collective_broadcast()``, and
        ``collective_permute(source_target_pairs=)``. A ``computation`` is the name of a binary op, or a region that
        applies one; the default is ``"add"``. ``partition_id`` is the device's number.

        Raises:
          ArgumentError: there is no such op, operands or attributes are wrong, or values are of another builder or
            region.
          ShardingError: groups repeat a device, or name one that does not exist.
          ShapeError, DTypeError, ...: the op does not support the operands.
        """
        if (short := _short(name)) in COLLECTIVES:
            return self._marked(self._value(self._collective(short, operands, attributes)))
        op = _op(name, attributes)
        _check_count(op, operands)
        like = next((x.dtype for x in operands if isinstance(x, Value)), None)
        atoms = [self._operand(op.name, i, x, like) for i, x in enumerate(operands)]
        with set_trace(self._traces[-1]), wide_types():
            result = op.bind(*atoms)
        if op.multiple_results:
            return [self._marked(self._value(x)) for x in result]
        value = self._value(result)
        if isinstance(op, ShardingAnnotation):
            value.sharding = op.sharding
            return value
        return self._marked(value)

    def _collective(self, name: str, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
        """Bind a collective among groups of devices."""
        bind, table, own = COLLECTIVES[name]
        needed = [table, *(n for n, default in own.items() if default is None)]
        _check_attributes(name, attributes, needed, [table, *own])
        if len(operands) != 1:
            raise ArgumentError(f"Builder.op: {name} takes 1 operand, got {len(operands)}")
        given = {**own, **attributes}
        groups = as_groups(f"Builder.op: {table}", given.pop(table), self.num_devices)
        count = len(groups[0]) if groups and table == "replica_groups" else self._devices([(table, groups)])
        if not count:
            raise ArgumentError(
                f"Builder.op: {name} is among all devices ({table}=[]), and nothing says how many there are; give "
                "Builder(name, num_devices=...), or the groups"
            )
        reduction = {"computation": _reduction(name, given.pop("computation"))} if "computation" in given else {}
        dimensions = {n: as_integer(f"Builder.op: {name}: {n}", d) for n, d in given.items()}
        x = self._operand(name, 0, operands[0])
        with set_trace(self._traces[-1]), wide_types():
            result = bind(x, groups, count, **dimensions, **reduction)
        self._groups.append((table, groups))
        return result

    def _devices(self, named: Sequence[tuple[str, Groups]]) -> int:
        """The number of devices, by default of those that groups and pairs name."""
        numbers = (d for _, groups in named for group in groups for d in group)
        return self.num_devices or max(numbers, default=-1) + 1

    def _value(self, tracer: JaxprTracer) -> Value:
        return Value(self, tracer, tracer.aval)

    def _operand(self, op: str, number: int, x: Any, like: np.dtype | None = None) -> Any:
        """An operand in the jaxpr. Python numbers get the dtype of the first value, if it can represent them."""
        if not isinstance(x, Value):
            if isinstance(x, (bool, int, float, complex)):
                fits = like is not None and np.can_cast(type(x), like, "same_kind")
                return np.asarray(x, like if fits else canonical(np.asarray(x).dtype))[()]
            if isinstance(x, np.generic):
                return x
            raise ArgumentTypeError(
                f"Builder.op: operand {number} of {op} is a {type(x).__name__}; expected a value of this builder or a "
                "number (constant(...) makes values of arrays)"
            )
        if x._trace is not self._traces[-1] and not isinstance(x._atom, np.ndarray):
            raise ArgumentError(
                f"Builder.op: operand {number} of {op}, {x}, belongs to another builder or region; a region takes what "
                "it needs as parameters"
            )
        return x._atom

    @contextmanager
    def _inside(self) -> Iterator[JaxprTrace]:
        self._traces.append(JaxprTrace())
        following, self._following = self._following, None
        try:
            yield self._traces[-1]
        finally:
            self._traces.pop()
            self._following = following

    def region(self, fun: Callable[..., Any], *types: Any) -> Region:
        """A region that computes ``fun``, which takes a value of each of ``types`` and returns one or several values.

        Example:
          >>> b = mw.builder.Builder()
          >>> x = b.parameter(0, "f32[3]")
          >>> combine = b.region(lambda s, v: b.op("add", s, v), "f32[]", "f32[]")
          >>> y = b.op("reduce", x, b.constant(0.0), axes=(0,), computation=combine)
          >>> float(b.build(y)(mnp.array([1.0, 2.0, 4.0])))
          7.0
        """
        with self._inside() as trace:
            avals = [type_of(t) for t in types]
            result = fun(*(Value(self, trace.new_arg(a), a) for a in avals))
            outs = list(result) if isinstance(result, (tuple, list)) else [result]
            atoms = [self._operand("the region's results", i, x) for i, x in enumerate(outs)]
            return Region(trace.finish(atoms, getattr(fun, "__name__", "")))

    # --- shardings ------------------------------------------------------------------------------------------
    def set_sharding(self, value: Any, sharding: Any = None) -> None:
        """Annotate a value: ``set_sharding(value, sharding)``; or all following ones: ``set_sharding(sharding)``.

        A sharding is a text as in HLO (``"{devices=[2,2]<=[4]}"``), an ``HloSharding`` or a ``NamedSharding``, of which
        only the tiles matter. ``set_sharding(None)`` ends the annotation, like :meth:`clear_sharding`.

        Raises:
          ShardingError: the sharding has another number of dimensions than the value.
        """
        if not isinstance(value, Value):
            if sharding is not None:
                raise ArgumentTypeError(f"Builder.set_sharding: expected a value of a builder, got {value!r}")
            self._following = value if value is None or isinstance(value, NamedSharding) else _annotation(value, None)
            return
        annotation = _annotation(sharding, value.aval.ndim)
        if all(value is not known for known, _, _ in self._parameters.values()):
            with set_trace(value._trace), wide_types():
                value._atom = ShardingAnnotation(annotation).bind(value._atom)
        value.sharding = annotation

    def clear_sharding(self) -> None:
        """Do not annotate the following values any more."""
        self._following = None

    @contextmanager
    def sharding(self, sharding: Any) -> Iterator[None]:
        """Annotate all values that are added in the ``with`` block."""
        before = self._following
        self.set_sharding(sharding)
        try:
            yield
        finally:
            self._following = before

    def _marked(self, value: Value) -> Value:
        if self._following is not None:
            self.set_sharding(value, self._following)
        return value

    # --- programs -------------------------------------------------------------------------------------------
    def build(self, *results: Value | Sequence[Value]) -> ImportedProgram:
        """The program that returns ``results``. The builder can be used further, and built again.

        With collectives, the result is the program of all devices, with the device as dimension 0 of arguments and
        results.

        Raises:
          ArgumentError: there are no results, a parameter is missing, or groups leave out a device.
          ShardingError: there are both collectives among groups of devices and values with shardings.
        """
        outs = [v for r in results for v in ([r] if isinstance(r, Value) else r)]
        if not outs:
            raise ArgumentError(
                "Builder.build: expected the values that the program gives, got none; pass them, as in build(y)"
            )
        missing = sorted(set(range(len(self._parameters))) - self._parameters.keys())
        if missing:
            raise ArgumentError(f"Builder.build: there is no parameter {missing[0]}; number them 0, 1, 2, ...")
        ordered = [self._parameters[i] for i in range(len(self._parameters))]
        parameters = tuple(Argument(name, v.aval, v.sharding, donated) for v, name, donated in ordered)
        jaxpr = self._finished(outs, [v._atom.variable for v, _, _ in ordered])
        shardings = tuple(v.sharding for v in outs)
        program = ParsedProgram(self.name, jaxpr, parameters, shardings, None, {})
        if self.num_devices is not None or any(isinstance(e.op, DeviceOp) for e in all_eqns(jaxpr.jaxpr)):
            program = self._of_all_devices(program)
        return ImportedProgram(program)

    def _of_all_devices(self, program: ParsedProgram) -> ParsedProgram:
        """The program of all devices, from the program of each."""
        devices = self._devices(self._groups)
        if not devices:
            raise ArgumentError("Builder.build: nothing says how many devices there are; give Builder(num_devices=...)")
        for table, groups in self._groups:
            if groups and table == "replica_groups" and (named := sum(map(len, groups))) != devices:
                raise ArgumentError(
                    f"Builder.build: replica_groups {list(map(list, groups))} have {named} of {devices} devices; "
                    "expected each in one group"
                )
        if is_for_all_devices(program, devices):
            raise ShardingError(
                "Builder.build: a program with collectives among devices is what one device runs, and has no values "
                "that are split; leave out the shardings, or the collectives, which partition() finds"
            )
        return of_all_devices(program, devices)

    def _finished(self, outs: Sequence[Value], invars: Sequence[Var]) -> ClosedJaxpr:
        trace = self._traces[0]
        with wide_types():
            closed = trace.finish([self._operand("the results", i, v) for i, v in enumerate(outs)], self.name)
        return closed.replace(jaxpr=closed.jaxpr.replace(invars=list(invars)))

    def __repr__(self) -> str:
        return (
            f"Builder({self.name!r}, {counted(len(self._parameters), 'parameter')}, "
            f"{counted(len(self._traces[0].eqns), 'op')})"
        )


# --- types, names, attributes -------------------------------------------------------------------------------
@cache
def _dtypes_by_name() -> dict[str, np.dtype]:
    short = {name: dtype for dtype, name in dtypes._SHORT.items()}
    return {**short, **{hlo: short[name] for hlo, name in _HLO_DTYPES.items() if name in short}}


def type_of(spec: Any) -> ShapedArray:
    """The type given by a text such as ``"f32[4,4]"`` or ``"s32[]"``, or by an object with ``shape`` and ``dtype``.

    Raises:
      ArgumentError: it is not a type.
    """
    if isinstance(spec, ShapedArray):
        return spec
    if isinstance(spec, str):
        match = _TYPE.fullmatch(spec)
        dtype = _dtypes_by_name().get(match[1]) if match else None
        if match is None or dtype is None:
            raise ArgumentError(f"Builder: {spec!r} is no type of an array; write 'f32[4,4]', 's32[]', 'pred[3]'")
        return ShapedArray(tuple(int(n) for n in match[2].split(",") if n.strip()), dtype)
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        return ShapedArray(tuple(spec.shape), np.dtype(spec.dtype))
    raise ArgumentError(f"Builder: expected a type such as 'f32[4,4]', or something of a shape and dtype, got {spec!r}")


@cache
def ops_by_name() -> dict[str, type[Op]]:
    """Ops by their names in jaxprs, and those without attributes also by the name of their HLO operation."""
    by_name = {hlo: REGISTRY[name] for hlo, name in _HLO_NAMES.items() if name in REGISTRY}
    for cls in (*REGISTRY.values(), ShardingAnnotation):
        hlo = getattr(cls, "hlo", "")
        plain = not dataclasses.fields(cls) and not hlo.endswith("compare") if isinstance(hlo, str) else False
        if plain and hlo:
            by_name.setdefault(hlo.partition(".")[2], cls)
    return {**by_name, **REGISTRY, ShardingAnnotation.name: ShardingAnnotation}


def _short(name: str) -> str:
    return name.replace("-", "_").removeprefix("stablehlo.")


def _op(name: str, attributes: dict[str, Any]) -> Op:
    """The op of a name, with attributes in any form that a user may write."""
    known = ops_by_name()
    cls = known.get(name) or known.get(_short(name))
    if cls is None:
        near = difflib.get_close_matches(name, [*known, *COLLECTIVES], 3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ArgumentError(f"Builder.op: there is no op {name!r}{hint}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    needed = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    _check_attributes(cls.name, attributes, needed, list(fields))
    return cls(**{n: _attribute(cls, fields[n], v) for n, v in attributes.items()})


def _check_attributes(op: str, attributes: dict[str, Any], needed: Sequence[str], known: Sequence[str]) -> None:
    """Raise ``ArgumentError`` if a required attribute is missing, or an attribute is unknown."""
    unknown, missing = sorted(attributes.keys() - set(known)), [n for n in needed if n not in attributes]
    if unknown or missing:
        what = f"has no attribute {unknown[0]!r}" if unknown else f"needs the attribute {missing[0]!r}"
        listed = ", ".join(n if n in needed else f"{n} (optional)" for n in known) or "none"
        raise ArgumentError(f"Builder.op: {op} {what}; its attributes are: {listed}")


def _reduction(op: str, computation: Any) -> str:
    """The kind of reduction given by a region or the name of a binary op."""
    name = binary_op_name(computation.jaxpr) if isinstance(computation, Region) else computation
    if isinstance(name, str) and name and (cls := ops_by_name().get(name)):
        name = cls.name
    if name not in MONOIDS or (kind := MONOIDS[name].kind) not in ALL_REDUCE:
        names = ", ".join(n for n, m in MONOIDS.items() if m.kind in ALL_REDUCE)
        raise ArgumentError(
            f"Builder.op: {op} reduces by {computation!r}; expected a region of one of {names}, or its name"
        )
    return kind


def _attribute(cls: type[Op], field: Any, value: Any) -> Any:
    if cls is ShardingAnnotation and field.name == "sharding":
        return _annotation(value, None)
    if "dtype" in str(field.type) and value is not None:
        return dtypes.as_dtype(value)
    return _frozen(value)


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, and regions to their jaxprs, recursively."""
    if isinstance(value, Region):
        return value.jaxpr
    if type(value) in (list, tuple):
        return tuple(map(_frozen, value))
    return value


def _check_count(op: Op, operands: Sequence[Any]) -> None:
    """Raise ``ArgumentError`` unless the op takes this number of operands."""
    parameters = inspect.signature(op.infer).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    most = len(parameters)
    least = sum(p.default is p.empty for p in parameters)
    if not least <= len(operands) <= most:
        names = ", ".join(p.name for p in parameters)
        raise ArgumentError(f"Builder.op: {op.name} takes {counted(most, 'operand')} ({names}), got {len(operands)}")


def _annotation(sharding: Any, ndim: int | None) -> Annotation:
    """A user's sharding as an annotation; of this number of dimensions, if it is known."""
    if isinstance(sharding, NamedSharding) and ndim is not None:
        return named_to_hlo(sharding, ndim)
    hlo = parse_hlo_sharding(sharding) if isinstance(sharding, str) else sharding
    if not isinstance(hlo, HloSharding):
        raise ArgumentTypeError(
            f"Builder: expected a sharding as in HLO ('{{devices=[2,2]<=[4]}}'), an HloSharding or NamedSharding, got "
            f"{sharding!r}"
        )
    rank = annotated_rank(hlo)
    if ndim is not None and rank not in (None, ndim):
        raise ShardingError(
            f"Builder: sharding {hlo} is for {counted(rank, 'dimension')}, the value has {ndim}; give one for each, or "
            "end the marking of what follows with clear_sharding()"
        )
    return hlo
