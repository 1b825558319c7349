"""Records the graph of operations that a per-device jaxpr is lowered to.

Ops emit themselves with :class:`meshwright.ir.op.Builder`; the builder here records nodes instead of StableHLO. Equal
operations on equal operands become one node, and every operation is simplified when it is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.source import UNKNOWN
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.rewrite import Interpreter
from meshwright.sharding import AbstractMesh
from meshwright.spmd.memory.compilers import CPU, Compiler
from meshwright.spmd.memory.graph import COLLECTIVES, ELEMENTWISE, FOLDED, Graph, Node, captured
from meshwright.spmd.memory.orders import in_orders, ordered
from meshwright.spmd.memory.parts import sliced
from meshwright.spmd.memory.prune import CHOICES
from meshwright.spmd.memory.simplify import scalar_value, scaled_once, simplified, splat

_INT32, _UINT32 = ShapedArray((), dtypes.int32), ShapedArray((), dtypes.uint32)
_EFFECTS = ("infeed", "outfeed", "send", "recv")
#: the bytes of an array of constants up to which equal ones are found
_HASHED = 2**22
#: the most parts of an all-to-all. The number must divide that of devices
_PARTS = 4


def record(jaxpr: ClosedJaxpr, mesh: AbstractMesh, compiler: Compiler = CPU) -> Graph:
    """The graph of a per-device program; its constants are constants of the compiled program."""
    return Recorder(mesh, compiler).graph(jaxpr)


class Recorder(Interpreter[Node]):
    """Implements :class:`meshwright.ir.op.Builder` with nodes as values."""

    def __init__(self, mesh: AbstractMesh, compiler: Compiler = CPU) -> None:
        self.mesh, self.compiler = mesh, compiler
        self.platform = compiler.platform
        self.in_avals: Sequence[ShapedArray] = ()
        self.out_avals: Sequence[ShapedArray] = ()
        self.annotations: Any = None  # a device's program states no shardings
        self._source = UNKNOWN
        self._known: dict[Any, Node] = {}
        self._effects: list[Node] = []
        self._around = 0  # the operations that are being brought into the form that the compiler gives them

    # --- what ops use ---------------------------------------------------------------------------------------
    def op(
        self,
        name: str,
        operands: Sequence[Any],
        out_avals: Sequence[ShapedArray],
        *,
        regions: Sequence[Any] = (),
        **attributes: Any,
    ) -> list[Any]:
        dialect, _, short = name.partition(".")
        names = [r for r in regions if isinstance(r, str)]
        if names:
            attributes["reducer"] = names[0]
        graphs = tuple(r for r in regions if isinstance(r, Graph)) if short in ("while", *CHOICES) else ()
        effect = short in _EFFECTS or str(attributes.get("has_side_effect", False)).lower() == "true"
        if "annotate_device_placement" in str(attributes.get("call_target_name", "")):
            return list(operands)
        if self.compiler.tupled and "trsm" in str(attributes.get("call_target_name", "")):
            attributes.pop("output_operand_aliases", None)  # cuBLAS writes solutions to another array
        in_parts = short == "all_to_all" and self.compiler.in_parts and attributes["split_count"] > 1
        plain = short != "custom_call" and not in_parts
        if dialect == "stablehlo" and len(out_avals) == 1 and not graphs and not effect and plain:
            return [self._make(short, operands, out_avals[0], attributes)]
        if in_parts:
            return [self._exchanged(operands[0], out_avals[0], attributes)]
        if short == "top_k" and self.compiler.sorts(operands[0].shape, attributes["k"]):
            return self._sorted(operands[0], out_avals)
        operands = in_orders(self._make, operands, attributes.get("operand_layouts", ""))
        inputs = (*operands, *captured(graphs))
        special = dialect == "chlo" and len(out_avals) == 1
        node = Node(short, inputs, tuple(out_avals), attributes, self._source, graphs, special)
        if effect:
            self._effects.append(node)
        elif graphs and not any(g.effects for g in graphs):
            node = self._known.setdefault((short, inputs, *map(_alike, graphs)), node)
        if len(out_avals) == 1:
            outs = [node]
        else:
            outs = [Node("get", (node,), (a,), {"index": i}, self._source) for i, a in enumerate(out_avals)]
        return in_orders(self._make, outs, attributes.get("result_layouts", ""))

    def _exchanged(self, x: Node, aval: ShapedArray, given: Mapping[str, Any]) -> Node:
        """An all-to-all that takes one part for each device. The parts that it returns are joined and transposed.

        With many devices, several parts are modelled as one. Then fewer buffers have the same bytes for the same time.
        """
        n, split, concat = (given[key] for key in ("split_count", "split_dimension", "concat_dimension"))
        n = next((m for m in range(_PARTS, 1, -1) if n % m == 0), n)
        rows = x.shape[split] // n
        bounds = [[[0] * len(x.shape), list(x.shape)] for _ in range(n)]
        for i, (start, limit) in enumerate(bounds):
            start[split], limit[split] = i * rows, (i + 1) * rows
        parts = tuple(sliced(self._make, x, start, limit) for start, limit in bounds)
        part = parts[0].avals[0]
        whole = Node("all_to_all", parts, (part,) * n, given, self._source)
        got = [Node("get", (whole,), (part,), {"index": i}, self._source) for i in range(n)]
        joined = self._make("concatenate", got, x.avals[0], {"dimension": split})
        if split == concat:
            return joined
        apart = (*part.shape[:split], n, *part.shape[split:])
        order = [d for d in range(len(apart)) if d != split]
        order.insert(concat, split)
        exchanged = self._make("reshape", (joined,), part.update(shape=apart), {})
        moved = part.update(shape=tuple(apart[d] for d in order))
        exchanged = self._make("transpose", (exchanged,), moved, {"permutation": tuple(order)})
        return self._make("reshape", (exchanged,), aval, {})

    def _sorted(self, x: Node, avals: Sequence[ShapedArray]) -> list[Node]:
        """The first elements of each sorted row, and their positions."""
        whole = x.avals[0]
        numbers = self._make("iota", (), whole.update(dtype=dtypes.int32), {"iota_dimension": whole.ndim - 1})
        node = Node("sort", (x, numbers), (whole, numbers.avals[0]), {"of_largest": True}, self._source)
        pairs = [Node("get", (node,), (a,), {"index": i}, self._source) for i, a in enumerate(node.avals)]
        return [sliced(self._make, part, [0] * aval.ndim, aval.shape) for part, aval in zip(pairs, avals)]

    def constant(self, value: Any, aval: ShapedArray) -> Node:
        if np.ndim(value) or (value := known_values(value)) is None:
            return self._array(aval, _digest(value), _parts(value))
        key = ("constant", value.tobytes(), aval.dtype)
        scalar = self._known.get(key)
        if scalar is None:
            given = {"value": value.item() if hasattr(value, "item") else value}
            scalar = self._known[key] = Node("constant", (), (ShapedArray((), aval.dtype),), given)
        return splat(self._make, scalar, aval)

    def _array(self, aval: ShapedArray, digest: str | None, parts: int = 2) -> Node:
        """An array of constants; equal ones, which have the same digest, are one node.

        ``parts``: of a complex array, how many of the real and the imaginary one are not one number.
        """
        known = {"parts": parts} if parts < 2 else {}
        if digest is None:
            return Node("constant", (), (aval,), known, self._source)
        node = Node("constant", (), (aval,), {"digest": digest, **known}, self._source)
        return self._known.setdefault(("array", digest, aval), node)

    def broadcast(self, value: Any, aval: ShapedArray, dims: Sequence[int]) -> Node:
        return self._make("broadcast_in_dim", (value,), aval, {"broadcast_dimensions": tuple(dims)})

    def reducer(self, name: str, avals: Sequence[ShapedArray]) -> Any:
        return name

    def jaxpr_region(self, jaxpr: Jaxpr | ClosedJaxpr, captured: Sequence[Any] | None = None) -> Any:
        closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr)
        return Recorder(self.mesh, self.compiler).graph(closed, captured)

    def region(self, make: Callable[..., Sequence[Any]], captured: Sequence[Any]) -> Any:
        inner = Recorder(self.mesh, self.compiler)
        inner.in_avals, inner.out_avals, inner._source = self.in_avals, self.out_avals, self._source
        parameters = tuple(Node("parameter", (), node.avals, {"outside": node}) for node in captured)
        results = make(inner, *parameters)
        return Graph(parameters, tuple(results), tuple(inner._effects))

    def host_callback(self, function: Any) -> int:
        return 0

    def call(
        self, name: str, jaxpr: ClosedJaxpr, operands: Sequence[Any], mark: str | None = None, apart: bool = False
    ) -> list[Any]:
        saved = self.in_avals, self.out_avals, self._source
        if apart and self.compiler.calls:
            return self.op("stablehlo.call", (), jaxpr.out_avals, regions=[self.jaxpr_region(jaxpr, operands)])
        outs = self.run(jaxpr, operands)
        self.in_avals, self.out_avals, self._source = saved
        return self.op("stablehlo.optimization_barrier", outs, jaxpr.out_avals) if apart else outs

    def replica_groups(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(axes)

    def source_target_pairs(self, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        return (tuple(axes), tuple(map(tuple, perm)))

    def axis_index(self, axes: Sequence[str]) -> Node:
        """This device's position along ``axes``, a table lookup by its number."""
        me = self._make("convert", (self._make("replica_id", (), _UINT32, {}),), _INT32, {})
        key = ("table", tuple(axes))
        table = self._known.get(key)
        if table is None:
            aval = ShapedArray((self.mesh.size,), dtypes.int32)
            table = self._known[key] = Node("constant", (), (aval,), {"table": key}, self._source)
        row = self._make("dynamic_slice", (table, me), _INT32.update(shape=(1,)), {})
        return self._make("reshape", (row,), _INT32, {})

    # --- nodes ----------------------------------------------------------------------------------------------
    def _make(self, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node:
        operands = tuple(operands)
        key = (op, operands, aval.shape, aval.dtype, tuple(hashable(v) for v in given.values()))
        node = self._known.get(key)
        if node is None:
            node = self._folded(op, operands, aval, given) or simplified(self._make, op, operands, aval, given)
            if node is None and op == "multiply" and self.compiler.joins_factors:
                node = scaled_once(self._make, operands, aval)
            if node is None:
                self._around += 1
                node = ordered(self._make, op, operands, aval, given, self.compiler)
                self._around -= 1
            if node is None:
                node = Node(op, operands, (aval,), given, self._source, inserted=self._around > 0)
            if op not in COLLECTIVES:
                self._known[key] = node
        return node

    def _folded(self, op: str, operands: Sequence[Node], aval: ShapedArray, given: Mapping[str, Any]) -> Node | None:
        """A constant, if all operands are constants. An operation that repeats constants is kept."""
        folds = op in FOLDED and all(x.op == "constant" or x.is_splat() for x in operands)
        if not folds or not any(x.op == "constant" and x.shape for x in operands):
            return None
        from_ = [x.attributes.get("digest") or (scalar_value(x) if x.is_splat() else None) for x in operands]
        known = None not in from_
        text = repr((op, aval.shape, from_, sorted((k, hashable(v)) for k, v in given.items())))
        parts = operands[0].attributes.get("parts", 2) if len(operands) == 1 and op not in ELEMENTWISE else 2
        return self._array(aval, hashlib.blake2b(text.encode()).hexdigest() if known else None, parts)

    # --- programs -------------------------------------------------------------------------------------------
    def graph(self, jaxpr: ClosedJaxpr, captured: Sequence[Node] | None = None) -> Graph:
        """The graph of a program on parameters, or on ``captured`` values from outside."""
        parameters = tuple(Node("parameter", (), (v.aval,), var=v) for v in jaxpr.jaxpr.invars)
        outer = dict(zip(parameters, captured)) if captured is not None else {}
        for parameter, node in outer.items():
            parameter.attributes = {"outside": node}
        results = self.run(jaxpr, parameters)
        return Graph(parameters, tuple(results), tuple(self._effects))

    def equation(self, eqn: JaxprEqn, args: list[Node]) -> Sequence[Node]:
        self._source = eqn.source
        self.in_avals = [a.aval for a in eqn.invars]
        self.out_avals = [v.aval for v in eqn.outvars]
        out: Any = eqn.op.emit(self, *args)
        nodes: Sequence[Node] = out if eqn.op.multiple_results else [out]
        for var, node in zip(eqn.outvars, nodes):
            node.var = node.var or var
        return nodes


def _digest(value: Any) -> str | None:
    """A digest of an array of constants, if its elements are known."""
    known = known_values(value) if getattr(value, "nbytes", 0) <= _HASHED else None
    return None if known is None else hashlib.blake2b(np.ascontiguousarray(known).view(np.uint8).data).hexdigest()


def _parts(value: Any) -> int:
    """How many of the real and the imaginary part of an array of constants are not one number; 2 if it is not known.

    Zeros of both signs are not one number.
    """
    known = known_values(value) if getattr(value, "dtype", np.dtype(bool)).kind == "c" else None
    if known is None or not known.size:
        return 2
    parts = (np.ascontiguousarray(part).reshape(-1) for part in (known.real, known.imag))
    bits = (part.view(f"u{part.dtype.itemsize}") for part in parts)
    return sum(bool((part != part[0]).any()) for part in bits)


def _alike(graph: Graph) -> Any:
    """A key that is equal for two programs that do the same. It has each operation, and the numbers of its operands.

    Collectives are never equal, nor are constants whose values are not known.
    """
    order = graph.post_order()
    number = {node: i for i, node in enumerate(order)}
    lines = [
        (
            node.op,
            tuple(number[x] for x in node.operands),
            tuple((aval.shape, aval.dtype) for aval in node.avals),
            tuple(sorted((name, hashable(value)) for name, value in node.attributes.items() if name != "outside")),
            node.attributes.get("outside"),
            node if node.op in COLLECTIVES or (node.op == "constant" and not node.attributes) else None,
            tuple(map(_alike, node.regions)),
        )
        for node in order
    ]
    ends = (tuple(number[node] for node in nodes) for nodes in (graph.parameters, graph.results, graph.effects))
    return tuple(lines), *ends


def hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return tuple(map(hashable, value)) if isinstance(value, list) else value
