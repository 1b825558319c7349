"""Lowering rules that write MLIR, as in JAX. The operations that a rule writes are read as a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.dtypes import as_dtype, canonical
from meshwright.core.naming import name_of
from meshwright.errors import ImportProgramError, RuleError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.state import outside
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.control.call import Jit
from meshwright.ops.control.callback import IoCallback, PureCallback
from meshwright.stablehlo.context import constant_attribute, context, element_type, tensor_type
from meshwright.stablehlo.sources import read_module

#: prefix of the custom calls that stand for functions of arrays
_FUNCTION = "meshwright.function."


def aval_to_ir_type(*ctx_and_aval: Any) -> ir.Type:
    """The MLIR type for an aval: ``aval_to_ir_type(ctx, aval)``, where ``ctx`` may be omitted."""
    return tensor_type(ctx_and_aval[-1])


def dtype_to_ir_type(dtype: Any) -> ir.Type:
    """The MLIR element type of a dtype."""
    return element_type(as_dtype(dtype))


def ir_constant(val: Any, *, const_lowering: None = None, aval: ShapedArray | None = None) -> ir.Value:
    """A constant, by default of the value's own type."""
    array = np.asarray(val)
    aval = ShapedArray(array.shape, canonical(array.dtype)) if aval is None else aval
    return ir.Operation.create(
        "stablehlo.constant", results=[tensor_type(aval)], attributes={"value": constant_attribute(array, aval)}
    ).results[0]


def emit_python_callback(
    ctx: LoweringRuleContext, callback: Callable[..., Sequence[Any]], token: None, operands: Sequence[ir.Value],
    operand_avals: Sequence[ShapedArray], result_avals: Sequence[ShapedArray], *, has_side_effect: bool,
    returns_token: bool = True, partitioned: bool = False, sharding: None = None,
) -> tuple[list[Any], None, None]:  # fmt: skip
    """Write a call of a Python function, which takes and returns flat lists of arrays.

    Returns the results as MLIR values, and None twice, for a token and for what would keep the function alive: the
    program does. Calls are in no order.

    Raises:
      RuleError: a ``token``, ``partitioned`` or a ``sharding`` is given.
    """
    if token is not None or partitioned or sharding is not None:
        raise RuleError(
            f"{ctx.primitive}: emit_python_callback calls once, with whole operands, and in no order: leave out token, "
            "partitioned and sharding, or use io_callback(..., ordered=True) in mlir.lower_fun"
        )
    op = (IoCallback if has_side_effect else PureCallback)(callback, name_of(callback), tuple(result_avals))
    return ctx.replace(avals_in=list(operand_avals)).call(op.bind, operands, {}), None, None


class LoweringRuleContext:
    """The context of a lowering rule: the ``primitive``, its operand and result types, and the ``platforms``."""

    def __init__(self, primitive: Any, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> None:
        self.primitive = primitive
        self.avals_in, self.avals_out = ins, outs
        self.platforms = (config.platform,)
        self.module_context = self
        self.context = context()
        #: the functions that the rule calls, by the numbers in the names of the custom calls
        self.functions: list[ClosedJaxpr] = []

    def add_keepalive(self, keepalive: Any) -> None:
        """Nothing to do: what a program calls lives as long as the program."""

    def replace(self, **changes: Any) -> LoweringRuleContext:
        """A copy with changed attributes."""
        new = copy(self)
        vars(new).update(changes)
        return new

    def call(self, fun: Callable[..., list[Any]], values: Sequence[ir.Value], params: Mapping[str, Any]) -> list[Any]:
        """Call a function of arrays of types ``avals_in`` on MLIR values; returns its results as MLIR values."""
        jaxpr = trace_to_jaxpr(lambda *args: fun(*args, **params), self.avals_in, f"{self.primitive}")
        self.functions.append(jaxpr)
        name = ir.StringAttr.get(f"{_FUNCTION}{len(self.functions) - 1}")
        types = [tensor_type(a) for a in jaxpr.out_avals]
        attributes = {"call_target_name": name}
        return list(ir.Operation.create("stablehlo.custom_call", types, list(values), attributes).results)

    def with_functions(self, jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        """The jaxpr that has been read, with the custom calls replaced by calls of the functions."""

        def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
            prefix, found, number = eqn.op.unknown_call.strip('"').partition(_FUNCTION)
            if prefix or not found:
                return ()
            called = self.functions[int(number)]
            return [eqn.replace(op=Jit(called.jaxpr.debug_name, called))]

        return replaced_in_all(jaxpr, lambda _: rule) if self.functions else jaxpr


def jaxpr_of_rule(
    rule: Callable[..., Any],
    primitive: Any,
    params: Mapping[str, Any],
    ins: Sequence[ShapedArray],
    outs: Sequence[ShapedArray],
) -> ClosedJaxpr:
    """The jaxpr of the operations that ``rule(ctx, *values, **params)`` writes for operands of types ``ins``.

    Raises:
      RuleError: the operations are malformed or contain collectives, or the rule does not return MLIR values.
    """
    ctx = LoweringRuleContext(primitive, ins, outs)
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            types = [tensor_type(a) for a in ins], [tensor_type(a) for a in outs]
            block = func_dialect.FuncOp("main", types).add_entry_block()
        with ir.InsertionPoint(block):
            results = rule(ctx, *block.arguments, **params)
            values = list(_values(results))
            if not all(isinstance(v, ir.Value) for v in values):
                raise RuleError(
                    f"{primitive}: its lowering rule returns {results!r}, expected values of MLIR; if it computes with "
                    "arrays, register mlir.lower_fun(rule, multiple_results=...)"
                )
            func_dialect.ReturnOp(values)
        try:
            module.operation.verify()
            with outside():
                program = read_module(module, f"<lowering of {primitive}>")
        except (ir.MLIRError, ImportProgramError) as error:
            raise RuleError(f"{primitive}: what its lowering rule writes cannot be used: {error}") from None
    if program.is_stacked:
        raise RuleError(
            f"{primitive}: its lowering rule writes collectives, over axes that are not known; use lax.psum and "
            "others in mlir.lower_fun"
        )
    return ctx.with_functions(program.jaxpr)


def _values(results: Any) -> Any:
    """The values that a rule has returned, from values, operations, and sequences of these."""
    if isinstance(results, (list, tuple, ir.OpResultList)):
        for each in results:
            yield from _values(each)
    elif isinstance(results, (ir.OpView, ir.Operation)):
        yield from results.results
    else:
        yield results
