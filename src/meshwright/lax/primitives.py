"""``lax.*_p`` and ``jax.extend.core.primitives``: ops under JAX's names, for interpreters of jaxprs.

Where JAX's parameters are not those of the op, a function takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright import lax
from meshwright.errors import ArgumentError
from meshwright.ir.op import REGISTRY
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ops import register_all
from meshwright.ops.op_primitives import FUNCTIONS, JAX_NAMES, OpPrimitive, primitive_named

register_all()

#: primitives that are functions of several ops here
_COMPOSED = (
    "approx_top_k", "call", "closed_call", "eq_to", "le_to", "lt_to", "rng_uniform", "round", "scatter-sub", "split",
    "stack", "tile", "unstack",
)  # fmt: skip
#: names that do not follow from the primitive's
_SPELLED = {"remat2": "remat_p", "custom_linear_solve": "linear_solve_p", "map": "map_op_p"}


def _none_of(name: str, params: dict[str, Any]) -> None:
    if given := [n for n, value in params.items() if value is not None]:
        raise ArgumentError(f"{name}_p.bind: {given[0]}={params[given[0]]!r} is not supported; leave it out")


def _dot(x: Any, y: Any, *, dimension_numbers: Any, **options: Any) -> Any:
    return lax.dot_general(x, y, dimension_numbers, **options)


def _ragged_dot(x: Any, y: Any, sizes: Any, *, ragged_dot_dimension_numbers: Any, **options: Any) -> Any:
    return lax.ragged_dot_general(x, y, sizes, ragged_dot_dimension_numbers, **options)


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any = None) -> Any:
    return lax.slice(x, start_indices, limit_indices, strides)


def _gather(x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **options: Any) -> Any:
    return lax.gather(x, indices, dimension_numbers, slice_sizes, **options)


def _scatter(name: str) -> Callable[..., Any]:
    def bind(
        x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, update_jaxpr: Any = None,
        update_consts: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        return getattr(lax, name)(x, indices, updates, dimension_numbers, **options)

    return bind


def _convolution(x: Any, y: Any, *, window_strides: Any, padding: Any, out_sharding: Any = None, **options: Any) -> Any:
    _none_of("conv_general_dilated", {"out_sharding": out_sharding})
    return lax.conv_general_dilated(x, y, window_strides, padding, **options)


def _reshape(x: Any, *, new_sizes: Any, dimensions: Any = None, sharding: Any = None) -> Any:
    return lax.reshape(x, new_sizes, dimensions, out_sharding=sharding)


def _broadcast(x: Any, *, shape: Any, broadcast_dimensions: Any, sharding: Any = None) -> Any:
    return lax.broadcast_in_dim(x, shape, broadcast_dimensions, out_sharding=sharding)


def _iota(*, dtype: Any, shape: Any, dimension: int, sharding: Any = None) -> Any:
    return lax.broadcasted_iota(dtype, shape, dimension, out_sharding=sharding)


def _reduced(name: str) -> Callable[..., Any]:
    def bind(x: Any, *, axes: Any, axis_index_groups: Any = None) -> Any:
        return getattr(lax, name)(x, axes, axis_index_groups=axis_index_groups)

    return bind


def _gathered(
    x: Any, *, all_gather_dimension: int, axis_name: Any, axis_index_groups: Any = None, axis_size: Any = None,
    tiled: bool = False,
) -> Any:  # fmt: skip
    return lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=all_gather_dimension, tiled=tiled)


def _exchanged(
    x: Any, *, split_axis: int, concat_axis: int, axis_name: Any, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    options = {"axis_index_groups": axis_index_groups, "tiled": tiled}
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, **options)


def _rows_exchanged(*args: Any, axis_name: Any, axis_index_groups: Any = None) -> Any:
    return lax.ragged_all_to_all(*args, axis_name=axis_name, axis_index_groups=axis_index_groups)


def _permuted(x: Any, *, axis_name: Any, perm: Any) -> Any:
    return lax.ppermute(x, axis_name, perm)


def _fft(x: Any, *, fft_type: Any, fft_lengths: Any) -> Any:
    return lax.fft(x, fft_type, fft_lengths)


def _top(x: Any, *, k: int, axis: int = -1) -> Any:
    return lax.top_k(x, k, axis=axis)


def _called(fun: Callable[..., Any], *args: Any) -> Any:
    """What ``call_p`` does: ``fun`` takes and returns flat values. Calls that a jaxpr keeps are those of ``jit_p``."""
    return getattr(fun, "call_wrapped", fun)(*args)


def _approximate_top(x: Any, *, k: int, is_max_k: bool, **options: Any) -> Any:
    return (lax.approx_max_k if is_max_k else lax.approx_min_k)(x, k, **options)


def _in_total_order(direction: str) -> Callable[..., Any]:
    return lambda x, y: REGISTRY["compare_total"](direction).bind(x, y)  # type: ignore[call-arg]


FUNCTIONS.update(
    {
        "all_gather": _gathered,
        "all_to_all": _exchanged,
        "approx_top_k": _approximate_top,
        "axis_index": lambda *, axis_name: lax.axis_index(axis_name),
        "broadcast_in_dim": _broadcast,
        "call": _called,
        "closed_call": lambda *args, call_jaxpr: eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args),
        "conv_general_dilated": _convolution,
        "dot_general": _dot,
        "eq_to": _in_total_order("EQ"),
        "fft": _fft,
        "gather": _gather,
        "iota": _iota,
        "le_to": _in_total_order("LE"),
        "lt_to": _in_total_order("LT"),
        "ppermute": _permuted,
        "ragged_all_to_all": _rows_exchanged,
        "ragged_dot_general": _ragged_dot,
        "reshape": _reshape,
        "rng_uniform": lambda a, b, *, shape: lax.rng_uniform(a, b, shape),
        "round": lambda x, *, rounding_method: lax.round(x, rounding_method),
        "slice": _slice,
        "split": lambda x, *, sizes, axis: lax.split(x, sizes, axis),
        "stack": lambda *xs, axis: lax.stack(xs, axis),
        "tile": lambda x, *, reps: lax.tile(x, reps),
        "top_k": _top,
        "unstack": lambda x, *, axis: lax.unstack(x, axis),
        **{name: _reduced(name) for name in ("pmax", "pmin", "psum")},
        **{f"scatter-{kind}": _scatter(f"scatter_{kind}") for kind in ("add", "max", "min", "mul", "sub")},
        "scatter": _scatter("scatter"),
    }
)


def _spelled(name: str) -> str:
    return _SPELLED.get(name, f"{name.replace('-', '_')}_p")


def _by_variable() -> dict[str, str]:
    """JAX's names of all primitives, by the names of their variables; those of ops that users have added, too."""
    return {_spelled(JAX_NAMES.get(n, n)): JAX_NAMES.get(n, n) for n in REGISTRY} | {_spelled(n): n for n in _COMPOSED}


_NAMES = _by_variable()


def named(name: str) -> OpPrimitive | None:
    """The primitive whose variable in JAX is called ``name``, if there is one."""
    found = _NAMES.get(name) or _by_variable().get(name)
    return None if found is None else primitive_named(found)


def names() -> list[str]:
    """The names of all variables."""
    return sorted(_by_variable())
