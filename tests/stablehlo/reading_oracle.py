"""Compare a program as read and run here with XLA's own run of the very same text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import all_eqns
from meshwright.runtime.array import Array, default_sharding
from meshwright.runtime.pjrt.buffers import execute
from meshwright.runtime.pjrt.compiler import compile_module
from meshwright.runtime.values import buffer_of
from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.stablehlo.read_attributes import Attributes


def xla_run(text: str, args: Sequence[Any]) -> list[np.ndarray]:
    """XLA's results for a module on one device, shardings left out."""
    text = re.sub(r"mhlo.num_partitions = \d+ : i32", "mhlo.num_partitions = 1 : i32", text)
    text = re.sub(r',? ?mhlo.sharding = "[^"]*"', "", text).replace("{, ", "{")
    module = ir.Module.parse(text, new_context())
    outs = execute(compile_module(module_bytecode(module), "oracle"), [buffer_of(x) for x in args])
    avals = [_aval(t) for t in _result_types(module)]
    return [np.asarray(Array(a, b, default_sharding(), False)) for a, b in zip(avals, outs)]


def _result_types(module: ir.Module) -> Any:
    entry = next(o for o in module.body.operations if o.operation.attributes["sym_name"].value == "main")
    return ir.FunctionType(entry.operation.attributes["function_type"].value).results


def _aval(type_: Any) -> ShapedArray:
    return Attributes("oracle").type(type_)


def flat(outs: Any) -> list[np.ndarray]:
    """Results as a list of NumPy arrays."""
    return [np.asarray(x) for x in (outs if isinstance(outs, tuple) else (outs,))]


def assert_same(got: Sequence[np.ndarray], want: Sequence[np.ndarray], rtol: float = 1e-5) -> None:
    """Equal types and, up to ``rtol`` of the largest magnitude, values; NaN and infinities in the same places."""
    assert len(got) == len(want)
    for i, (x, y) in enumerate(zip(got, want)):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), f"result {i}"
        if x.dtype.kind not in "fcV":
            np.testing.assert_array_equal(x, y, err_msg=f"result {i}")
            continue
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        x, y = x.astype(wide), y.astype(wide)
        scale = np.max(np.abs(y[np.isfinite(y)]), initial=0)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * scale, err_msg=f"result {i}")


def opaque_ops(program: Any) -> list[str]:
    """The operations that were kept as they are."""
    return [e.op.target for e in all_eqns(program.jaxpr.jaxpr) if e.op.name == "opaque"]


def check_text(text: str, *args: Any, opaque: Sequence[str] = (), rtol: float = 1e-5) -> Any:
    """Read ``text``, run it against XLA; write it again, read that and run it. Returns the program."""
    program = mw.load(text)
    want = xla_run(text, args)
    assert_same(flat(program(*args)), want, rtol)
    assert opaque_ops(program) == list(opaque)
    again = mw.load(program.as_text("stablehlo"))
    assert [str(a) for a in again.in_avals] == [str(a) for a in program.in_avals]
    assert_same(flat(again(*args)), want, rtol)
    return program


def check_function(fun: Callable[..., Any], *args: Any, opaque: Sequence[str] = (), rtol: float = 1e-5) -> Any:
    """:func:`check_text` of what ``jax`` makes of a function; and what XLA's compiler makes of it computes the same."""
    lowered = jax.jit(fun, keep_unused=True).lower(*args)
    program = check_text(lowered.as_text(), *args, opaque=opaque, rtol=rtol)
    compiled = lowered.compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    assert_same(flat(mw.load(module.as_serialized_hlo_module_proto())(*args)), flat(compiled(*args)), rtol)
    return program
