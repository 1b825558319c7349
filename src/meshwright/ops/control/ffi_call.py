"""A user kernel called through XLA's foreign function interface.

The compiler does not know what it computes: it has no derivative, and runs on whole operands on every device, or in a
``shard_map`` on each device's part. The interface follows ``jax.ffi``; it is emitted as StableHLO's ``custom_call``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Op, Tangent
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.control.scan import Scan
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, move_dim, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: dimensions from the slowest to the fastest
Order = tuple[int, ...]
#: ``vmap_method``
METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


@dataclass(frozen=True)
class FfiCall(Op):
    """A call of the kernel ``target``, for operands and results with these types and dimension orders. ``config`` holds
    its attributes, as MLIR text; ``aliases`` tells which results share the memory of which operands."""

    target: str
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]
    config: str = "{}"
    in_orders: tuple[Order, ...] = ()
    out_orders: tuple[Order, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    side_effect: bool = False
    vmap_method: str | None = None
    version: int = 4
    name: ClassVar[str] = "ffi_call"
    multiple_results: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = (
        "operands", "results", "in_orders", "out_orders", "aliases", "side_effect", "vmap_method", "version",
    )  # fmt: skip

    @property
    def has_effects(self) -> bool:
        return self.side_effect

    @property
    def of_operands(self) -> bool:
        return not self.side_effect

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        got = [(a.shape, a.dtype) for a in avals]
        if got != [(a.shape, a.dtype) for a in self.operands]:
            raise ShapeError(
                f"ffi_call {self.target}: the kernel is called with ({', '.join(map(str, self.operands))}), got "
                f"({', '.join(map(str, avals))})"
            )
        return self.results

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        raise DifferentiationError(
            f"ffi_call {self.target}: the derivative of a kernel is not known; give it one with custom_jvp or "
            "custom_vjp, or take it out of the derivative with stop_gradient on its arguments"
        )

    # --- batching -------------------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        moved: list[Any] = [x if d is None else move_dim(x, d, 0) for x, d in zip(args, dims)]
        mapped = [d is not None for d in dims]
        if self.vmap_method in ("expand_dims", "broadcast_all", "legacy_vectorized"):
            outs = self._at_once(axis.size, moved, mapped)
        elif self.vmap_method == "sequential_unrolled" or not axis.size:
            outs = self._unrolled(axis.size, moved, mapped)
        else:
            outs = self._looped(axis.size, moved, mapped)
        return outs, [0] * len(self.results)

    def _at_once(self, size: int, args: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
        """One call, with a leading dimension added to operands and results."""
        sizes = {"expand_dims": 1, "broadcast_all": size}
        given = [x if m else _with_leading(x, sizes.get(str(self.vmap_method))) for x, m in zip(args, mapped)]
        more = [typeof(x).ndim > a.ndim for x, a in zip(given, self.operands)]
        op = replace(
            self,
            operands=tuple(typeof(x).strong() for x in given),
            results=tuple(a.update(shape=(size, *a.shape)) for a in self.results),
            in_orders=tuple(_above(o) if m else o for o, m in zip(self.in_orders, more)),
            out_orders=tuple(map(_above, self.out_orders)),
        )
        return list(op.bind(*given))

    def _unrolled(self, size: int, args: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
        if not size:
            return [broadcast_in_dim(0, (0, *a.shape), ()).astype(a.dtype) for a in self.results]
        calls = [self.bind(*(_row(x, i) if m else x for x, m in zip(args, mapped))) for i in range(size)]
        return [concatenate([expand_dims(y, [0]) for y in ys], 0) for ys in zip(*calls)]

    def _looped(self, size: int, args: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
        return in_turn(self, self.target, size, args, mapped)

    # --- lowering -------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.custom_call", operands, b.out_avals,
            call_target_name=f'"{self.target}"', api_version=f"{self.version} : i32", backend_config=self.config,
            has_side_effect=self.side_effect, operand_layouts=_layouts(self.in_orders),
            result_layouts=_layouts(self.out_orders), output_operand_aliases=self._aliases(),
        )  # fmt: skip

    def _aliases(self) -> str:
        entries = (
            f"#stablehlo.output_operand_alias<output_tuple_indices = [{o if len(self.results) > 1 else ''}], "
            f"operand_index = {i}, operand_tuple_indices = []>"
            for i, o in self.aliases
        )
        return f"[{', '.join(entries)}]"


def in_turn(op: Op, name: str, size: int, args: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    """An op on each of ``size`` entries of its ``mapped`` operands, one after the other."""
    whole = [x for x, m in zip(args, mapped) if not m]
    rows = [x for x, m in zip(args, mapped) if m]

    def body(*values: Any) -> list[Any]:
        fixed, changing = iter(values[: len(whole)]), iter(values[len(whole) :])
        return list(op.bind(*(next(changing if m else fixed) for m in mapped)))

    avals = [*map(typeof, whole), *(_row_type(typeof(x)) for x in rows)]
    return list(Scan(trace_to_jaxpr(body, avals, name), size, 0, len(whole)).bind(*whole, *rows))


def _layouts(orders: Sequence[Order]) -> str:
    """Dimension orders in XLA's form, from the fastest dimension to the slowest."""
    return f"[{', '.join(f'dense<{list(o)[::-1] if o else str()}> : tensor<{len(o)}xindex>' for o in orders)}]"


def _above(order: Order) -> Order:
    """The order with a new leading dimension, which is the slowest."""
    return (0, *(d + 1 for d in order))


def _with_leading(x: Any, size: int | None) -> Any:
    """``x`` broadcast along a new leading dimension of ``size``; unchanged if that is None."""
    if size is None:
        return x
    shape = typeof(x).shape
    return broadcast_in_dim(x, (size, *shape), range(1, len(shape) + 1))


def _row(x: Any, i: int) -> Any:
    return squeeze(slice_in_dim(x, i, i + 1), [0])


def _row_type(aval: ShapedArray) -> ShapedArray:
    return aval.update(shape=aval.shape[1:])
