"""Dtypes: names, canonical widths and the type promotion lattice.

Promotion follows JAX's documented lattice (https://docs.jax.dev/en/latest/type_promotion.html): a least upper
bound in a partial order of the array dtypes and the three *weak* Python scalar kinds ``int``, ``float`` and
``complex``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.source import warn
from meshwright.errors import DTypeError, DTypeWarning, TypePromotionError

_EXTENDED = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn", "int2", "uint2", "int4", "uint4",
)  # fmt: skip

bool_ = np.dtype(np.bool_)
int4, uint4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e8m0fnu = np.dtype(ml_dtypes.float8_e8m0fnu)
float8_e4m3fn, float8_e5m2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

_BY_NAME: dict[str, np.dtype] = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENDED if hasattr(ml_dtypes, name)
}

#: the name used in jaxprs (``f32``), by dtype
_SHORT: dict[np.dtype, str] = {
    bool_: "bool", int8: "i8", int16: "i16", int32: "i32", int64: "i64", uint8: "u8", uint16: "u16",
    uint32: "u32", uint64: "u64", float16: "f16", float32: "f32", float64: "f64", complex64: "c64",
    complex128: "c128", bfloat16: "bf16",
}  # fmt: skip
for _name, _dtype in _BY_NAME.items():
    _SHORT.setdefault(
        _dtype,
        {"int4": "i4", "uint4": "u4", "int2": "i2", "uint2": "u2"}.get(
            _name, _name.replace("float", "f").replace("_", "")
        ),
    )

#: dtypes of NumPy itself (unpickled ones may be different objects)
NUMPY_DTYPES = frozenset(
    {bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, complex64, complex128}
)

_FLOATS = {float16, float32, float64, bfloat16} | {d for n, d in _BY_NAME.items() if n.startswith("float")}
_SIGNED = {int8, int16, int32, int64} | {d for n, d in _BY_NAME.items() if n.startswith("int")}
_UNSIGNED = {uint8, uint16, uint32, uint64} | {d for n, d in _BY_NAME.items() if n.startswith("uint")}
_COMPLEX = {complex64, complex128}
_BELOW_A_BYTE = {
    _BY_NAME[name]: bits
    for name, bits in {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}.items()
    if name in _BY_NAME
}
_NARROW = {int64: int32, uint64: uint32, float64: float32, complex128: complex64}


def short_name(dtype: np.dtype) -> str:
    """The name used in jaxprs, such as ``f32`` for float32."""
    return dtype.name if is_key(dtype) else "float0" if dtype == float0 else _SHORT[dtype]


@cache
def _as_dtype(spec: Any) -> np.dtype:
    dtype: np.dtype = _BY_NAME[spec] if isinstance(spec, str) and spec in _BY_NAME else np.dtype(spec)
    if dtype not in _SHORT:
        raise TypeError
    return dtype


def as_dtype(spec: Any) -> np.dtype:
    """The dtype for ``spec`` (a dtype, scalar type or name), at full width.

    Raises:
      DTypeError: not a dtype of arrays.
    """
    dtype: np.dtype = spec if is_key(spec) else getattr(spec, "dtype", spec)
    if is_key(dtype) or (isinstance(spec, np.dtype) and spec in _SHORT):
        return dtype
    try:
        return _as_dtype(getattr(spec, "dtype", spec) if not isinstance(spec, type) else spec)
    except TypeError:
        why = f": {_NO_VALUES}" if isinstance(dtype, np.dtype) and dtype == float0 else ""
        raise DTypeError(
            f"expected a number or bool dtype (such as 'float32', np.int32, bfloat16), got {spec!r}{why}"
        ) from None


#: dtype of derivatives with respect to integers and bools, which carry no information and take no bytes
float0 = np.dtype([("float0", np.void, 0)])
_NO_VALUES = "derivatives with respect to integers and bools are float0, which have no values to compute with"


def is_float0(dtype: Any) -> bool:
    return not is_key(dtype) and dtype == float0


def wide_types(wide: bool = True) -> AbstractContextManager[None]:
    """Keep 64-bit types in the ``with`` block, regardless of ``enable_x64``, for programs that state the width of every
    value; or, with False, follow ``enable_x64`` again within such a block."""
    return config.within("wide_types", wide)


def precision_of(is_wide: bool) -> AbstractContextManager[None]:
    """The context of a program that states the width of every value, or of one that follows ``enable_x64``."""
    return wide_types() if is_wide else nullcontext()


def keeps_wide() -> bool:
    """Whether 64-bit types are kept in this context."""
    return config.enable_x64 or config.wide_types


def is_representable(shape: Sequence[int], dtype: np.dtype) -> bool:
    """Whether NumPy can represent an array of this shape: at most 64 dimensions, and a size in bytes below 2**63."""
    return len(shape) <= 64 and min(shape, default=0) >= 0 and math.prod(filter(None, shape)) * dtype.itemsize < 2**63


def canonical(dtype: np.dtype) -> np.dtype:
    """``dtype``, narrowed to 32 bits unless ``enable_x64`` is on."""
    return dtype if keeps_wide() else narrowed(dtype)


def narrowed(dtype: np.dtype) -> np.dtype:
    """``dtype`` with at most 32 bits, or two of 32."""
    return _NARROW.get(dtype, dtype)


def in_dtype(x: Any, dtype: np.dtype) -> Any:
    """``x`` in ``dtype``, if it is one of NumPy's arrays: a constant of a jaxpr, which is of its variable's type in any
    setting of ``enable_x64``."""
    return x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype != dtype else x


def is_wide(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is one of those that ``enable_x64`` affects."""
    return dtype in _NARROW


def is_python_type(spec: Any) -> bool:
    """Whether a user's dtype is a Python type, which means the widest available dtype. (NumPy's dtypes compare equal to
    Python types.)"""
    return isinstance(spec, type) and spec in (int, float, complex)


def requested(spec: Any, where: str) -> np.dtype:
    """The canonical dtype for a user's ``dtype=`` argument; warns if it is narrowed."""
    dtype = as_dtype(spec)
    found = canonical(dtype)
    if found != dtype and not is_python_type(spec):
        warn(f"{where}: dtype {dtype} needs config.update('enable_x64', True); using {found}", DTypeWarning)
    return found


is_float: Callable[[np.dtype], bool] = frozenset(_FLOATS).__contains__
is_complex: Callable[[np.dtype], bool] = frozenset(_COMPLEX).__contains__
is_inexact: Callable[[np.dtype], bool] = frozenset(_FLOATS | _COMPLEX).__contains__
is_signed: Callable[[np.dtype], bool] = frozenset(_SIGNED).__contains__
is_unsigned: Callable[[np.dtype], bool] = frozenset(_UNSIGNED).__contains__
is_integer: Callable[[np.dtype], bool] = frozenset(_SIGNED | _UNSIGNED).__contains__


def is_bool(dtype: np.dtype) -> bool:
    return dtype == bool_


def of_numbers(dtype: np.dtype) -> np.dtype:
    """``dtype``, which must not be that of random keys.

    Raises:
      DTypeError: it is.
    """
    if is_key(dtype):
        raise DTypeError(f"{dtype} is the dtype of random keys, not of numbers; random.key_data gives their words")
    return dtype


def constant(value: Any, dtype: np.dtype) -> np.ndarray:
    """A number as a rank-0 array.

    Raises:
      DTypeError: ``dtype`` is that of random keys.
    """
    try:
        return np.array(value, dtype)
    except TypeError:
        of_numbers(dtype)
        raise


def bit_width(dtype: np.dtype) -> int:
    """Bits of one element as XLA stores it (a bool takes 8).

    Raises:
      DTypeError: ``dtype`` is that of random keys, whose width is not defined.
    """
    of_numbers(dtype)
    return _BELOW_A_BYTE.get(dtype, dtype.itemsize * 8)


def signed_bits(dtype: np.dtype) -> np.dtype:
    """The signed integer dtype with the same width, for bitcasts of floats."""
    return as_dtype(f"int{bit_width(dtype)}")


def has_zero(dtype: np.dtype) -> bool:
    """Whether the dtype has a 0; ``float8_e8m0fnu`` has only powers of two."""
    return not is_key(dtype) and dtype != float8_e8m0fnu


def real_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts have this dtype (or one that it promotes to)."""
    return complex128 if dtype in (float64, complex128) else complex64


def default_float() -> np.dtype:
    return canonical(float64)


def default_int() -> np.dtype:
    return canonical(int64)


def default_complex() -> np.dtype:
    return canonical(complex128)


def _limit(dtype: np.dtype, infinity: float, end: str) -> np.ndarray:
    if of_numbers(dtype) == bool_:
        return np.array(infinity > 0)
    if is_integer(dtype):
        return np.array(getattr(ml_dtypes.iinfo(dtype), end), dtype)
    if is_complex(dtype):
        return np.array(complex(infinity, infinity), dtype)
    limit = np.array(infinity).astype(dtype)
    # Some narrow floats have no infinity.
    return limit if np.isinf(limit.astype(np.float64)) else np.array(getattr(ml_dtypes.finfo(dtype), end), dtype)


def min_value(dtype: np.dtype) -> np.ndarray:
    """The identity of ``max``: -inf for floats, the least integer, ``False``."""
    return _limit(dtype, -np.inf, "min")


def max_value(dtype: np.dtype) -> np.ndarray:
    """The identity of ``min``: inf for floats, the largest integer, ``True``."""
    return _limit(dtype, np.inf, "max")


def most_flushed(dtype: np.dtype) -> float:
    """The largest float that XLA's arithmetic flushes to 0; narrow types are computed in float32."""
    wide = np.float64 if dtype == float64 else np.float32
    return float(np.nextafter(np.finfo(wide).tiny, wide(0)))


def holds_floats(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a float or complex type can represent every value of another one."""
    if not is_inexact(wide) or not is_inexact(narrow) or (is_complex(narrow) and not is_complex(wide)):
        return False
    a, b = (ml_dtypes.finfo(real_of(d) if is_complex(d) else d) for d in (wide, narrow))
    return bool(a.nmant >= b.nmant and a.minexp <= b.minexp and a.maxexp >= b.maxexp)


# --- promotion ----------------------------------------------------------------------------------------------
# The edges of the lattice, from each node to those directly above it. ``i*``, ``f*``, ``c*`` are the weak Python kinds.
_F8 = [s for s in _SHORT.values() if s.startswith(("f8", "f4"))]
_EDGES: dict[str, list[str]] = {
    "bool": ["i*"],
    "i*": ["u8", "i8", "u4", "i4", "u2", "i2"],
    "u2": [], "i2": [], "u4": [], "i4": [],
    "u8": ["u16", "i16"], "u16": ["u32", "i32"], "u32": ["u64", "i64"], "u64": ["f*"],
    "i8": ["i16"], "i16": ["i32"], "i32": ["i64"], "i64": ["f*"],
    "f*": ["bf16", "f16", "c*", *_F8],
    "bf16": ["f32"], "f16": ["f32"], "f32": ["f64", "c64"], "f64": ["c128"],
    "c*": ["c64"], "c64": ["c128"], "c128": [],
    **{name: [] for name in _F8},
}  # fmt: skip
_BY_SHORT = {short: dtype for dtype, short in _SHORT.items()}


def _ancestors(node: str) -> frozenset[str]:
    ancestors: set[str] = {node}
    frontier = [node]
    while frontier:
        for above in _EDGES[frontier.pop()]:
            if above not in ancestors:
                ancestors.add(above)
                frontier.append(above)
    return frozenset(ancestors)


_ABOVE = {node: _ancestors(node) for node in _EDGES}


@cache
def _join(nodes: frozenset[str]) -> str:
    common = frozenset.intersection(*(_ABOVE[n] for n in nodes))
    least = [n for n in common if all(n == m or m in _ABOVE[n] for m in common)]
    if len(least) != 1:
        raise TypePromotionError(
            f"no implicit promotion between dtypes {', '.join(sorted(nodes))}; convert one of them with .astype"
        )
    return least[0]


def _node(dtype: np.dtype, weak: bool) -> str:
    if not weak:
        return _SHORT[dtype]
    if is_integer(dtype):
        return "i*"
    if is_complex(dtype):
        return "c*"
    return "f*" if is_float(dtype) else "bool"


@lru_cache(maxsize=4096)
def _promote(types: frozenset[tuple[np.dtype, bool]], strict: bool) -> tuple[np.dtype, bool]:
    for special, why in ((is_key, "random keys are no numbers"), (is_float0, _NO_VALUES)):
        if any(special(d) for d, _ in types):
            listed = ", ".join(sorted("float0" if is_float0(d) else str(d) for d, _ in types))
            raise TypePromotionError(f"no implicit promotion between dtypes {listed}: {why}")
    nodes = frozenset(_node(d, w) for d, w in types)
    top = _join(nodes)
    if strict:
        _check_strict(nodes)
    if top in ("i*", "f*", "c*"):
        # Operands are weak or bool, or uint64 with signed integers: the widest of that kind, else the default.
        same_kind = [d for d, w in types if w and _node(d, w) == top]
        default = {"i*": int64, "f*": float64, "c*": complex128}[top]
        width = max(same_kind, key=lambda d: d.itemsize) if same_kind else default
        return width, True
    return _BY_SHORT[top], False


def inexact(dtype: np.dtype) -> np.dtype:
    """``dtype`` if it is float or complex; else float64 for 64-bit integers and float32 for others, as in JAX."""
    if is_inexact(dtype):
        return dtype
    return canonical(float64) if bit_width(dtype) == 64 else float32


def promote(types: Iterable[tuple[np.dtype, bool]]) -> tuple[np.dtype, bool]:
    """Join of ``(dtype, weak)`` pairs: the ``(dtype, weak)`` of the result of an op on them.

    Raises:
      TypePromotionError: there is no implicit promotion (for example, between float8 types).
    """
    pairs = frozenset(types)
    if len(pairs) == 1:
        (only,) = pairs
        return only
    dtype, weak = _promote(pairs, config.numpy_dtype_promotion == "strict")
    return canonical(dtype), weak


def promote_wide(types: Iterable[tuple[np.dtype, bool]]) -> np.dtype:
    """The dtype of :func:`promote`, at full width regardless of ``enable_x64``."""
    return _promote(frozenset(types), config.numpy_dtype_promotion == "strict")[0]


def join(*types: np.dtype) -> np.dtype:
    """The dtype of :func:`promote_wide`, regardless of ``numpy_dtype_promotion``."""
    return _promote(frozenset((d, False) for d in types), strict=False)[0]


def product_dtype(types: Iterable[tuple[np.dtype, bool]]) -> np.dtype:
    """The dtype of :func:`promote`, regardless of ``numpy_dtype_promotion``, for ops with operands of two dtypes."""
    return canonical(_promote(frozenset(types), strict=False)[0])


def _check_strict(nodes: frozenset[str]) -> None:
    """Raise unless there is one dtype, with only Python numbers of the same or a lower kind.

    Raises:
      TypePromotionError: names the dtypes.
    """
    kinds = ["i*", "f*", "c*"]
    strong = nodes.difference(kinds)
    weak = [kinds.index(n) for n in nodes.intersection(kinds)]
    if len(strong) > 1 or (strong and weak and max(weak) > kind_of(_BY_SHORT[next(iter(strong))])):
        raise TypePromotionError(
            f"no implicit promotion between dtypes {', '.join(sorted(nodes))} with numpy_dtype_promotion='strict'; "
            "convert one of them with .astype"
        )


def kind_of(dtype: np.dtype) -> int:
    """-1 for bools, 0 for integers, 1 for floats, 2 for complex numbers; a kind cannot represent higher ones."""
    return -1 if is_bool(dtype) else 2 if is_complex(dtype) else 1 if is_float(dtype) else 0
