"""Jaxpr to StableHLO. The emitter knows no op by name: each op's ``emit`` uses a :class:`ModuleBuilder`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from meshwright.core.avals import ShapedArray
from meshwright.core.collector import collector_paused
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, joined
from meshwright.errors import RuleError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.rewrite import Interpreter
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.sharding.tables import Digit, digits
from meshwright.stablehlo.annotations import Gspmd, Notation, Shardy
from meshwright.stablehlo.context import attribute, constant_attribute, context, location, tensor_type

_create = ir.Operation.create


#: the collectives, and whether they have the attribute ``use_global_device_ids``
_COLLECTIVES = {
    "stablehlo.all_gather": True,
    "stablehlo.all_reduce": True,
    "stablehlo.all_to_all": False,
    "stablehlo.collective_permute": False,
    "stablehlo.ragged_all_to_all": False,
    "stablehlo.reduce_scatter": True,
}
_CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 1>"
_AMONG_PARTITIONS = {"channel_handle": _CHANNEL, "use_global_device_ids": "unit"}


def _called(target: str, replica_groups: np.ndarray, channel_handle: str = "") -> dict[str, Any]:
    """The attributes of a custom call in which StableHLO writes a collective that only HLO has."""
    # XLA (jaxlib 0.10.2) fails on a call without a channel; 0 is none.
    config = {"replica_groups": replica_groups, "channel_id": 1 if channel_handle else 0}
    return {"call_target_name": f'"{target}"', "api_version": "4 : i32", "backend_config": config}


@dataclass(frozen=True)
class LoweringOptions:
    """The properties of a module other than its ops.

    ``arg_shardings`` and ``result_shardings`` are stated in Shardy's dialect if ``shardy``, else in GSPMD's notation;
    ``donated`` are argument numbers; ``groups`` returns the device numbers, one row per group, of collectives along
    axes. ``scope`` is a prefix of the names of all ops (``jit(f)``); ``arg_names`` and ``result_names`` are the user's.
    Some ops are emitted differently depending on the ``platform``, by default the configured one.
    """

    name: str = "main"
    arg_shardings: Sequence[Annotation | None] | None = None
    result_shardings: Sequence[Annotation | None] | None = None
    shardy: bool = False
    arg_names: Sequence[str] = ()
    result_names: Sequence[str] = ()
    scope: str = ""
    donated: Mapping[int, int | None] = field(default_factory=dict)
    groups: Callable[[tuple[str, ...]], np.ndarray] | None = None
    num_partitions: int = 1
    num_replicas: int = 1
    platform: str = ""


class ModuleBuilder(Interpreter[Any]):
    """Implements :class:`meshwright.ir.op.Builder` on MLIR."""

    def __init__(self, options: LoweringOptions) -> None:
        self.options = options
        self.platform = options.platform or config.platform
        self.in_avals: Sequence[ShapedArray] = ()
        self.out_avals: Sequence[ShapedArray] = ()
        self.ip: ir.InsertionPoint | None = None
        self.loc = ir.Location.unknown(context())
        #: the full name and the line of the equation that is being emitted
        self.path, self.source = options.scope, UNKNOWN
        #: the same of the equation whose inner jaxpr is being emitted
        self.around = self.path, self.source
        #: the functions by jaxpr, and the manual axes around their calls where the notation depends on them
        self.functions: dict[tuple[ClosedJaxpr, tuple[str, ...]], str] = {}
        #: Python functions that the program calls, by number
        self.callbacks: list[Callable[..., Any]] = []
        self.names: set[str] = {"main"}
        self.annotations: Notation = (Shardy if options.shardy else Gspmd)(self)
        self.module: ir.Module | None = None

    # --- the builder interface ------------------------------------------------------------------------------
    def op(
        self,
        name: str,
        operands: Sequence[Any],
        out_avals: Sequence[ShapedArray],
        *,
        regions: Sequence[Callable[[ir.Region], None]] = (),
        **attributes: Any,
    ) -> list[Any]:
        if name in _COLLECTIVES and self.among_partitions:
            attributes |= _AMONG_PARTITIONS if _COLLECTIVES[name] else {"channel_handle": _CHANNEL}
        if name == "stablehlo.ragged_all_to_all":
            name, attributes = "stablehlo.custom_call", _called("ragged_all_to_all", **attributes)
        operation = _create(
            name,
            results=[tensor_type(a) for a in out_avals],
            operands=operands,
            attributes={k: attribute(v) for k, v in attributes.items()} if attributes else None,
            regions=len(regions),
            loc=self.loc,
            ip=self.ip,
        )
        for region, fill in zip(operation.regions, regions):
            fill(region)
        return list(operation.results)

    def constant(self, value: Any, aval: ShapedArray) -> Any:
        return _create(
            "stablehlo.constant",
            results=[tensor_type(aval)],
            attributes={"value": constant_attribute(value, aval)},
            loc=self.loc,
            ip=self.ip,
        ).results[0]

    def broadcast(self, value: Any, aval: ShapedArray, dims: Sequence[int]) -> Any:
        return self.op("stablehlo.broadcast_in_dim", [value], [aval], broadcast_dimensions=tuple(dims))[0]

    def reducer(self, name: str, avals: Sequence[ShapedArray]) -> Any:
        types = [tensor_type(a) for a in avals]

        def fill(region: ir.Region) -> None:
            block = region.blocks.append(*types, *types, arg_locs=[self.loc] * (2 * len(types)))
            ip = ir.InsertionPoint(block)
            result = _create(name, results=types, operands=list(block.arguments), loc=self.loc, ip=ip).results
            _create("stablehlo.return", operands=list(result), loc=self.loc, ip=ip)

        return fill

    def jaxpr_region(
        self, jaxpr: Jaxpr | ClosedJaxpr, captured: Sequence[Any] | None = None, end: str = "stablehlo.return"
    ) -> Any:
        closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr)

        def fill(region: ir.Region) -> None:
            types = [tensor_type(a) for a in closed.in_avals] if captured is None else []
            block = region.blocks.append(*types, arg_locs=[self.loc] * len(types))
            with self._inside():
                self.ip = ir.InsertionPoint(block)
                outs = self.body(closed, list(block.arguments) if captured is None else captured)
                _create(end, operands=outs, loc=self.loc, ip=self.ip)

        return fill

    def region(self, make: Callable[..., Sequence[Any]], captured: Sequence[Any]) -> Any:
        def fill(region: ir.Region) -> None:
            with self._inside():
                self.ip = ir.InsertionPoint(region.blocks.append())
                outs = make(self, *captured)
                _create("stablehlo.return", operands=list(outs), loc=self.loc, ip=self.ip)

        return fill

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Restores the state of the current equation after the ``with`` block."""
        saved = self.ip, self.in_avals, self.out_avals, self.loc, self.path, self.source
        try:
            yield
        finally:
            self.ip, self.in_avals, self.out_avals, self.loc, self.path, self.source = saved

    def host_callback(self, function: Callable[..., Any]) -> int:
        self.callbacks.append(function)
        return len(self.callbacks) - 1

    def call(
        self, name: str, jaxpr: ClosedJaxpr, operands: Sequence[Any], mark: str | None = None, apart: bool = False
    ) -> list[Any]:
        key = jaxpr, self.annotations.manual
        symbol = self.functions.get(key)
        if symbol is None:
            symbol = self.functions[key] = self.unique_name(name)
            with self._inside():
                self.path = ""  # XLA prefixes the names inside with the name of the call
                self._function(symbol, jaxpr, "private")
        attributes: dict[str, Any] = {"callee": ir.FlatSymbolRefAttr.get(symbol, context())}
        marks = ({mark: name} if mark is not None else {}) | ({"inlineable": "false"} if apart else {})
        if marks:
            text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in marks.items())
            attributes["mhlo.frontend_attributes"] = ir.Attribute.parse(f"{{{text}}}", context())
        return list(
            _create(
                "func.call",
                results=[tensor_type(a) for a in jaxpr.out_avals],
                operands=operands,
                attributes=attributes,
                loc=self.loc,
                ip=self.ip,
            ).results
        )

    # --- collectives ----------------------------------------------------------------------------------------
    @property
    def among_partitions(self) -> bool:
        """Whether groups are of partitions: collectives are in manual regions of a program for all devices."""
        return self.options.num_partitions > 1 and self.options.num_replicas == 1

    def _device_grid(self, axes: Sequence[str]) -> np.ndarray:
        """Device numbers, one row per group along ``axes``.

        Raises:
          RuleError: there is no mesh.
        """
        if self.options.groups is None:
            raise RuleError("a collective outside a mesh cannot be lowered; use it inside vmap or shard_map")
        return self.options.groups(tuple(axes))

    def replica_groups(self, axes: Sequence[str]) -> Any:
        """Groups of devices along ``axes``."""
        return self._device_grid(axes).astype(np.int64)

    def source_target_pairs(self, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        """``perm`` in every group along ``axes``, as device numbers."""
        groups = self._device_grid(axes)
        return np.array([[g[s], g[t]] for g in groups for s, t in perm], np.int64).reshape(-1, 2)

    def axis_index(self, axes: Sequence[str]) -> Any:
        """This device's position along ``axes``, from its number."""
        groups = self._device_grid(axes)
        table = np.zeros(groups.size, np.int32)
        table[groups.reshape(-1)] = np.tile(np.arange(groups.shape[1], dtype=np.int32), groups.shape[0])
        scalar = ShapedArray((), np.dtype(np.int32))
        uint = ShapedArray((), np.dtype(np.uint32))
        number = "stablehlo.partition_id" if self.among_partitions else "stablehlo.replica_id"
        me = self.op(number, [], [uint])[0]
        me = self.op("stablehlo.convert", [me], [scalar])[0]
        found = digits(table.tolist()) if self.platform == "tpu" else None  # whose slices are kernels, unlike scalars
        if found is not None:
            return self._from_digits(me, found, scalar)
        aval = ShapedArray((table.size,), table.dtype)
        row = self.op(
            "stablehlo.dynamic_slice",
            [self.constant(table, aval), me],
            [aval.update(shape=(1,))],
            slice_sizes=(1,),
        )[0]
        return self.op("stablehlo.reshape", [row], [scalar])[0]

    def _from_digits(self, me: Any, found: Sequence[Digit], scalar: ShapedArray) -> Any:
        position = None
        for digit in found:
            value = me
            for name, by in (("divide", digit.stride), ("remainder", digit.span), ("multiply", digit.weight)):
                value = self.op(f"stablehlo.{name}", [value, self.constant(by, scalar)], [scalar])[0]
            position = value if position is None else self.op("stablehlo.add", [position, value], [scalar])[0]
        return self.constant(0, scalar) if position is None else position

    # --- programs -------------------------------------------------------------------------------------------
    def body(self, jaxpr: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Emit the equations of ``jaxpr`` at the insertion point."""
        saved, self.around = self.around, (self.path, self.source)
        outs = self.run(jaxpr, args)
        self.around = saved
        return outs

    def begin(self, eqn: JaxprEqn) -> None:
        scope, enclosing = self.around
        self.source = eqn.source if eqn.source.is_known else enclosing
        self.path = joined(scope, eqn.source.name_stack, eqn.op.scope_name)
        self.loc = location(self.source, self.path)
        self.in_avals = [a.aval for a in eqn.invars]
        self.out_avals = [v.aval for v in eqn.outvars]

    def equation(self, eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
        out: Any = eqn.op.emit(self, *args)
        return out if eqn.op.multiple_results else [out]

    def unique_name(self, name: str) -> str:
        """A symbol that the module does not have yet."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "fn"
        symbol, n = base, 0
        while symbol in self.names:
            symbol, n = f"{base}_{n}", n + 1
        self.names.add(symbol)
        return symbol

    def _function(self, symbol: str, jaxpr: ClosedJaxpr, visibility: str) -> Any:
        assert self.module is not None
        ins = [tensor_type(a) for a in jaxpr.in_avals]
        outs = [tensor_type(a) for a in jaxpr.out_avals]
        names = self.options.arg_names if visibility == "public" else ()
        with context(), location(self.source, self.path or symbol) as loc:
            function = func_dialect.FuncOp(
                symbol, (ins, outs), visibility=visibility, ip=ir.InsertionPoint(self.module.body)
            )
            block = function.add_entry_block([location(UNKNOWN, n) for n in names] or [loc] * len(ins))
            self.ip, self.loc = ir.InsertionPoint(block), loc
            results = self.body(jaxpr, list(block.arguments))
            _create("func.return", operands=results, loc=self.loc, ip=self.ip)
        return function

    def build(self, jaxpr: ClosedJaxpr) -> ir.Module:
        """The module whose public function is ``jaxpr``."""
        options = self.options
        with context() as ctx, ir.Location.unknown():
            self.module = ir.Module.create()
            operation = self.module.operation
            i32 = ir.IntegerType.get_signless(32)
            operation.attributes["sym_name"] = ir.StringAttr.get(options.name.replace("<", "").replace(">", ""))
            operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(i32, options.num_partitions)
            operation.attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(i32, options.num_replicas)
            function = self._function("main", jaxpr, "public")
            function.arg_attrs = ir.ArrayAttr.get(
                [ir.DictAttr.get(self._arg_attributes(i) | self._memory(a), ctx) for i, a in enumerate(jaxpr.in_avals)]
            )
            function.result_attrs = ir.ArrayAttr.get(
                [
                    ir.DictAttr.get(self._result_attributes(i) | self._memory(a), ctx)
                    for i, a in enumerate(jaxpr.out_avals)
                ]
            )
        return self.module

    def _memory(self, aval: ShapedArray) -> dict[str, ir.Attribute]:
        """The memory of an argument or result, if it is not the device's own; CPUs have only one."""
        kept = aval.memory is not None and self.platform != "cpu"
        return {"mhlo.memory_kind": ir.StringAttr.get(aval.memory)} if kept else {}

    def _arg_attributes(self, i: int) -> dict[str, ir.Attribute]:
        options = self.options
        attributes = self._stated(options.arg_shardings, i)
        if i in options.donated:
            target = options.donated[i]
            if target is None:
                attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)
            else:
                attributes["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), target)
        return attributes

    def _result_attributes(self, i: int) -> dict[str, ir.Attribute]:
        options = self.options
        attributes: dict[str, ir.Attribute] = {}
        if options.result_names:
            attributes["jax.result_info"] = ir.StringAttr.get(options.result_names[i])
        return attributes | self._stated(options.result_shardings, i)

    def _stated(self, shardings: Sequence[Annotation | None] | None, i: int) -> dict[str, ir.Attribute]:
        sharding = None if shardings is None else shardings[i]
        return {} if sharding is None else self.annotations.of_end(sharding)


def lower_to_stablehlo(jaxpr: ClosedJaxpr, options: LoweringOptions | None = None) -> ir.Module:
    """The StableHLO module of a closed jaxpr.

    Raises:
      RuleError: an op cannot be expressed in StableHLO.
    """
    return lower_with_callbacks(jaxpr, options)[0]


@collector_paused()
def lower_with_callbacks(
    jaxpr: ClosedJaxpr, options: LoweringOptions | None = None
) -> tuple[ir.Module, list[Callable[..., Any]]]:
    """The module as in :func:`lower_to_stablehlo`, and the Python functions that it calls by number."""
    builder = ModuleBuilder(options or LoweringOptions())
    return builder.build(jaxpr), builder.callbacks
