"""Kernels of JAX's Pallas: lowered for the hardware that they are written for, and for everything else.

JAX lowers them for one platform, and refuses CPUs unless they are interpreted. Here each becomes a composite with the
custom calls for TPUs and GPUs as attributes, as far as JAX has them, and the interpreted kernel as decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from meshwright.core.late import LateModule
from meshwright.errors import ImportProgramError
from meshwright.interop.jax.kernel_grids import Grid, Lower, divisible, read_after_written
from meshwright.ops.imported.opaque import CUSTOM_CALL
from meshwright.stablehlo.read_custom_calls import KERNELS

_MLIR: Any = LateModule("jax._src.interpreters.mlir")
_PALLAS: Any = LateModule("jax._src.pallas.pallas_call")
_INTERPRETER: Any = LateModule("jax._src.pallas.hlo_interpreter")
_SHARDINGS: Any = LateModule("jax._src.sharding_impls")

#: the platforms for which kernels are written
_PLATFORMS = ("tpu", "cuda")


def lower_kernel(
    warnings: list[str], grids: list[Grid], lower: Lower, context: Any, *operands: Any, interpret: Any, **params: Any
) -> Any:
    """A rule that lowers ``pallas_call`` in JAX's place. ``warnings`` gets a text if JAX cannot interpret the kernel,
    and ``grids`` the grid if it can be divided among devices; ``lower`` lowers the parts.

    Raises:
      ImportProgramError: JAX can neither interpret it nor lower it for any hardware.
    """
    if interpret or tuple(context.module_context.platforms) != ("cpu",):
        return _PALLAS._pallas_call_lowering(context, *operands, interpret=interpret, **params)
    calls, refused = dict[str, str](), list[str]()
    for platform in _PLATFORMS:
        try:
            calls[platform] = _call_on(context, platform, operands, params)
        except Exception as error:  # it is for other hardware, or its lowering needs what is not installed
            refused.append(f"for {platform}: {_first_line(error)}")
    name = params["name"] or params["jaxpr"].debug_info.func_name

    def interpreted(*xs: Any, **_: Any) -> Any:
        return _INTERPRETER.pallas_call_hlo_interpret(*xs, **params)

    kernels = jax.lax.composite(interpreted, KERNELS)
    attributes: dict[str, Any] = {"name": name, "platforms": " ".join(calls), **calls}
    if dims := divisible(params, context.avals_in):
        grids.append(Grid(params, context.avals_in, dims, lower))
        attributes["grid"] = -len(grids)
    for i in read_after_written(params):
        warnings.append(
            f"from_jax: the Pallas kernel {name!r} reads its input {i}, whose memory a result shares "
            "(input_output_aliases); where a step reads what another wrote before, hardware sees the new values, and "
            "JAX's interpreter, which runs it elsewhere, the old ones"
        )
    try:
        return _MLIR.lower_fun(partial(kernels, **attributes))(context, *operands)
    except Exception as error:
        if not calls:
            why = "; ".join([*refused, f"interpreted: {_first_line(error)}"])
            raise ImportProgramError(
                f"from_jax: JAX cannot lower the Pallas kernel {name!r} ({why}); use operations in its place"
            ) from error
        platform = next(iter(calls))
        warnings.append(
            f"from_jax: JAX cannot interpret the Pallas kernel {name!r} ({_first_line(error)}), so that the program "
            f"can be partitioned and compiled for {platform}, but not be run elsewhere"
        )
        return _lowered(context, platform, operands, params)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _lowered(context: Any, platform: str, operands: Sequence[Any], params: Any) -> Any:
    """The results of a kernel lowered for a platform, as if the program ran on one device; collectives in manual
    regions keep their mesh."""
    outside = context.module_context
    is_manual = isinstance(outside.axis_context, _SHARDINGS.SPMDAxisContext)
    axes = outside.axis_context if is_manual else _SHARDINGS.ShardingContext(1)
    module = outside.replace(platforms=(platform,), axis_context=axes)
    here = context.replace(module_context=module, platforms=(platform,))
    return _PALLAS._pallas_call_lowering(here, *operands, interpret=False, **params)


def _call_on(context: Any, platform: str, operands: Sequence[Any], params: Any) -> str:
    """The attributes of the custom call that JAX lowers a kernel to for a platform: a line of MLIR text for each."""
    ir = _MLIR.ir
    with ir.Location.unknown(context.module_context.context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kernel = _MLIR.func_dialect.FuncOp("kernel", ([x.type for x in operands], []))
        block = kernel.add_entry_block()
        arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            outs = _lowered(context, platform, arguments, params)
    calls = [op.operation for op in block.operations if op.operation.name == CUSTOM_CALL]
    if len(calls) != 1 or list(calls[0].operands) != arguments or list(calls[0].results) != list(outs):
        raise ImportProgramError("it is more than a call of the kernel on its operands")
    return "\n".join(f"{name}={calls[0].attributes[name]}" for name in calls[0].attributes)
