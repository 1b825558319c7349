"""User kernels for XLA's foreign function interface, as functions of arrays.

The interface follows ``jax.ffi``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.api.callbacks import declared_results, flat_arrays
from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.expected import as_integer, refused
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.control.ffi_call import METHODS, FfiCall, Order
from meshwright.runtime.pjrt import foreign

_NUMBERS = "a number, string, array of numbers, bool, or a tuple or dict of such"
_PLATFORMS = {"cpu": "cpu", "host": "cpu", "cuda": "CUDA", "gpu": "CUDA", "rocm": "ROCM"}


def ffi_call(
    target_name: str, result_shape_dtypes: Any, *, has_side_effect: bool = False, vmap_method: str | None = None,
    input_layouts: Sequence[Any] | None = None, output_layouts: Any = None,
    input_output_aliases: Mapping[int, int] | None = None, custom_call_api_version: int = 4,
    legacy_backend_config: str | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function of arrays that calls the kernel registered as ``target_name``; keyword arguments are its attributes.

    On a mesh every device calls the kernel on whole arrays, in a ``shard_map`` on its parts. To partition it, call it
    there or in a function with ``custom_partitioning``. It has no derivative; define one with ``custom_vjp``.

    Attributes are typed: Python integers are ``int64`` and floats ``float64``; NumPy scalars keep their dtype.

    Args:
      result_shape_dtypes: the types of the results: anything with ``shape`` and ``dtype``, or a sequence of such.
      has_side_effect: call the kernel even if its results are unused.
      vmap_method: how ``vmap`` calls it: ``"sequential"`` (also None) in a loop, ``"sequential_unrolled"``, or once,
        with a leading dimension of size 1 on arguments that are not mapped (``"expand_dims"``) or with these repeated
        (``"broadcast_all"``).
      input_layouts, output_layouts: for each array, its dimensions from the slowest to the fastest; None: in order.
      input_output_aliases: maps operand numbers to the numbers of results that reuse their memory.
      custom_call_api_version: 4 is the typed interface; earlier versions take ``legacy_backend_config``, a string.

    Raises:
      ArgumentError: an unknown method, version or layout, or aliases of arrays of different types. ArgumentTypeError:
        (also when called) results that are not types, attributes that are neither numbers nor strings.
      CompileError: (when run) the kernel is not registered.

    Example:
      >>> out, status = mw.ffi.ffi_call(
      ...     "lapack_spotrf_ffi", (mw.ShapeDtypeStruct((2, 2), "float32"), mw.ShapeDtypeStruct((), "int32")),
      ...     input_output_aliases={0: 0})(mnp.eye(2) * 4, uplo=np.uint8(ord("L")))
      >>> out
      Array([[2., 0.],
             [0., 2.]], dtype=float32)
    """
    where = f"ffi_call {target_name}"
    if vmap_method is not None and vmap_method not in METHODS:
        raise ArgumentError(
            f"{where}: vmap_method must be one of {', '.join(map(repr, METHODS))} or None, got {vmap_method!r}"
        )
    version = as_integer(f"{where}: custom_call_api_version", custom_call_api_version, 1)
    if version > 4 or (version == 4 and legacy_backend_config is not None):
        raise ArgumentError(
            f"{where}: custom_call_api_version must be 1 to 4, and below 4 with a legacy_backend_config, got {version}"
        )
    results, tree = declared_results(result_shape_dtypes, where)
    several = isinstance(result_shape_dtypes, Sequence)
    listed = output_layouts if several or output_layouts is None else [output_layouts]
    out_orders = _orders(listed, results, f"{where}: output_layouts")

    def call(*args: Any, **attributes: Any) -> Any:
        leaves, _ = flat_arrays(args, {}, where)
        operands = tuple(typeof(x).strong() for x in leaves)
        in_orders = _orders(input_layouts, operands, f"{where}: input_layouts")
        aliases = _aliases(input_output_aliases or {}, operands, results, where)
        config = _config(attributes, version, legacy_backend_config, where)
        op = FfiCall(
            target_name, operands, results, config, in_orders, out_orders, aliases, bool(has_side_effect), vmap_method,
            version,
        )  # fmt: skip
        outs = op.bind(*leaves)
        return pytree.unflatten(tree, outs)

    return call


def _orders(layouts: Sequence[Any] | None, avals: Sequence[ShapedArray], where: str) -> tuple[Order, ...]:
    """The order of the dimensions of each array."""
    given = [None] * len(avals) if layouts is None else list(layouts)
    if len(given) != len(avals):
        raise ArgumentError(f"{where}: expected one for each of {len(avals)} arrays, got {len(given)}")
    return tuple(_order(x, a, where) for x, a in zip(given, avals))


def _order(layout: Any, aval: ShapedArray, where: str) -> Order:
    if layout is None:
        return tuple(range(aval.ndim))
    order = tuple(getattr(layout, "major_to_minor", layout))
    if sorted(order) != list(range(aval.ndim)):
        raise ArgumentError(f"{where}: expected the dimensions of {aval} in some order, or None, got {layout!r}")
    return order


def _aliases(
    given: Mapping[int, int], ins: Sequence[ShapedArray], outs: Sequence[ShapedArray], where: str
) -> tuple[tuple[int, int], ...]:
    for i, o in given.items():
        if not (0 <= i < len(ins) and 0 <= o < len(outs)):
            raise ArgumentError(
                f"{where}: input_output_aliases says {i}: {o}, of {len(ins)} operands and {len(outs)} results; number "
                "both from 0"
            )
        if (ins[i].shape, ins[i].dtype) != (outs[o].shape, outs[o].dtype):
            raise ShapeError(
                f"{where}: input_output_aliases puts result {o}, {outs[o]}, into the memory of operand {i}, {ins[i]}; "
                "they must be of one type"
            )
    return tuple(sorted(given.items()))


# --- attributes as MLIR text --------------------------------------------------------------------------------
def _config(attributes: Mapping[str, Any], version: int, legacy: str | None, where: str) -> str:
    if version == 4:
        return _text(dict(attributes), where)
    if attributes:
        raise ArgumentError(
            f"{where}: attributes ({', '.join(attributes)}) are for custom_call_api_version=4; pass them as text in "
            "legacy_backend_config"
        )
    return json.dumps(legacy or "")


def _text(value: Any, where: str) -> str:
    match value:
        case bool() | np.bool_():
            return "true" if value else "false"
        case str():
            return json.dumps(value)
        case int() | float():
            return _scalar(np.array(value, np.int64 if isinstance(value, int) else np.float64), where)
        case np.ndarray() if value.ndim:
            return f'dense<"0x{np.ascontiguousarray(value).tobytes().hex()}"> : {_tensor(value, where)}'
        case np.ndarray() | np.generic():
            return _scalar(np.asarray(value), where)
        case tuple() | list():
            return f"[{', '.join(_text(x, where) for x in value)}]"
        case Mapping():
            return f"{{{', '.join(f'{json.dumps(k)} = {_text(x, where)}' for k, x in value.items())}}}"
    raise refused(f"{where}: attribute", _NUMBERS, value)


def _scalar(value: np.ndarray, where: str) -> str:
    kind = _element(value, where)
    if "f" not in kind:
        return f"{value.item()} : {kind}"
    bits = int(value.view(f"u{value.dtype.itemsize}").item())
    return f"0x{bits:0{2 * value.dtype.itemsize}X} : {kind}"


def _tensor(value: np.ndarray, where: str) -> str:
    return f"tensor<{'x'.join(map(str, value.shape))}x{_element(value, where)}>"


def _element(value: np.ndarray, where: str) -> str:
    kind, bits = value.dtype.kind, value.dtype.itemsize * 8
    if kind in "iu":
        return f"{'i' if kind == 'i' else 'ui'}{bits}"
    if kind == "f" or value.dtype == dtypes.bfloat16:
        return dtypes.short_name(value.dtype)
    raise refused(f"{where}: attribute", _NUMBERS, value)


# --- registration -------------------------------------------------------------------------------------------
def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, *, traits: Any = 0) -> None:
    """Register a kernel as ``name``: ``fn`` is a ``PyCapsule``, or a dict of them by stage (``"execute"``, ...).

    Args:
      platform: ``"cpu"``, ``"cuda"`` or ``"rocm"``. api_version: 1, the typed interface, or 0, its predecessor.
      traits: 1 if the kernel may be part of a command buffer.

    Raises:
      ArgumentError: an unknown platform or version, or XLA rejects the kernel.
    """
    where = f"register_ffi_target {name}"
    if api_version not in (0, 1):
        raise ArgumentError(f"{where}: api_version must be 1 (the typed interface) or 0, got {api_version!r}")
    try:
        foreign.register_target(name, fn, _platform(platform, where), api_version, int(traits))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {error}; pass what pycapsule makes of a function of a library") from None


def register_ffi_type(name: str, type_registration: Mapping[str, Any], platform: str = "cpu") -> None:
    """Register the type of the state that kernels keep between calls: ``{"type_id": capsule}``, optionally with
    ``"type_info"``.

    Raises:
      ArgumentError: an unknown platform, or XLA rejects the type.
    """
    where = f"register_ffi_type {name}"
    try:
        foreign.register_type(name, type_registration, _platform(platform, where))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {error}; pass capsules of the type's id") from None


def _platform(platform: str, where: str) -> str:
    if platform.lower() not in _PLATFORMS:
        raise ArgumentError(f"{where}: expected a platform of {', '.join(map(repr, _PLATFORMS))}, got {platform!r}")
    return _PLATFORMS[platform.lower()]


def pycapsule(funcptr: Any) -> Any:
    """A function of a library loaded with ``ctypes``, in the form :func:`register_ffi_target` takes."""
    return foreign.capsule(funcptr)


def include_dir() -> str:
    """The folder of the headers that kernels include (``xla/ffi/api/ffi.h``)."""
    return foreign.include_dir()
