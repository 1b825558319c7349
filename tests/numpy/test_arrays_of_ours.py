"""Results are arrays of ours: never the NumPy array that came in, where there is nothing left to do."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, random

F, I, B, C = (
    np.arange(4.0, dtype=np.float32),
    np.arange(4, dtype=np.int32),
    np.array([True, False]),
    np.ones(3, "complex64"),
)

#: calls of every function that has nothing to do for some argument
NOTHING_TO_DO = {
    "power 1": lambda: mnp.power(F, 1), "integer_pow 1": lambda: lax.integer_pow(F, 1),
    **{f"astype {x.dtype}": lambda x=x: mnp.astype(x, x.dtype) for x in (F, I, B, C)},
    **{f"convert_element_type {x.dtype}": lambda x=x: lax.convert_element_type(x, x.dtype) for x in (F, I, B, C)},
    **{n: lambda n=n: getattr(mnp, n)(F) for n in (
        "positive", "real", "conj", "squeeze", "ravel", "atleast_1d", "asarray", "array", "copy", "transpose", "flip",
        "sort", "unique", "nan_to_num", "real_if_close", "ascontiguousarray", "stack", "hstack",
    ) if hasattr(mnp, n)},
    **{f"{n} of integers": lambda n=n: getattr(mnp, n)(I) for n in (
        "round", "rint", "floor", "ceil", "trunc", "fix", "conj", "real", "nan_to_num", "positive", "bitwise_count",
    ) if hasattr(mnp, n)},
    "reshape": lambda: mnp.reshape(F, (4,)),
    "broadcast_to": lambda: mnp.broadcast_to(F, (4,)), "moveaxis": lambda: mnp.moveaxis(F, 0, 0),
    "swapaxes": lambda: mnp.swapaxes(F, 0, 0), "expand_dims": lambda: mnp.expand_dims(F, ()),
    "roll": lambda: mnp.roll(F, 0), "pad": lambda: mnp.pad(F, 0), "tile": lambda: mnp.tile(F, 1),
    "repeat": lambda: mnp.repeat(F, 1), "rot90": lambda: mnp.rot90(np.ones((2, 2)), 0), "diff": lambda: mnp.diff(F, 0),
    "clip": lambda: mnp.clip(F), "sum": lambda: mnp.sum(F, ()), "cumsum": lambda: mnp.cumsum(F[:1]),
    "broadcast_arrays": lambda: mnp.broadcast_arrays(F, F), "meshgrid": lambda: mnp.meshgrid(F),
    "split": lambda: mnp.split(F, 1), "where": lambda: mnp.where(True, F, F),
    "trim_zeros": lambda: mnp.trim_zeros(F[1:]),
    "matrix_power": lambda: mnp.linalg.matrix_power(np.eye(2), 1), "multi_dot": lambda: mnp.linalg.multi_dot([F, F]),
    "reduce_precision": lambda: lax.reduce_precision(F, 8, 23), "jit": lambda: mw.jit(lambda x: x)(F),
    "cond": lambda: lax.cond(True, lambda x: x, lambda x: x, F), "map": lambda: lax.map(lambda x: x, F),
    "scan of nothing": lambda: lax.scan(lambda c, x: (c, x), F, F[:0]),
    "fori_loop of nothing": lambda: lax.fori_loop(0, 0, lambda i, x: x, F),
    "while_loop of nothing": lambda: lax.while_loop(lambda x: False, lambda x: x, F),
    "device_put": lambda: mw.device_put(F, may_alias=False),
    "permutation": lambda: random.permutation(random.key(0), F[:1]),
}  # fmt: skip

#: the same of ``lax``, whose functions are the ops themselves: each of an array and of a number
OF_LAX = {
    "associative_scan": lambda x: lax.associative_scan(lax.add, x[:1]), "broadcast": lambda x: lax.broadcast(x, ()),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, np.shape(x), range(np.ndim(x))),
    "broadcast_like": lambda x: lax.broadcast_like(x, x), "broadcast_to_rank": lambda x: lax.broadcast_to_rank(x, 0),
    "collapse": lambda x: lax.collapse(x, 0, 1), "concatenate": lambda x: lax.concatenate([x], 0),
    "convert_element_type": lambda x: lax.convert_element_type(x, mw.typeof(x).dtype),
    "expand_dims": lambda x: lax.expand_dims(x, ()), "index_in_dim": lambda x: lax.index_in_dim(x[:1], 0),
    "pad": lambda x: lax.pad(x, np.float32(0), [(0, 0, 0)] * np.ndim(x)),
    "reduce": lambda x: lax.reduce((x, x), (0.0, 0.0), lambda a, b: a, ()),
    **{f"reduce_{n}": lambda x, n=n: getattr(lax, f"reduce_{n}")(x, ()) for n in ("max", "min", "prod", "sum")},
    **{f"reduce_{n}": lambda x, n=n: getattr(lax, f"reduce_{n}")(B, ()) for n in ("and", "or", "xor")},
    "reshape": lambda x: lax.reshape(x, np.shape(x)), "rev": lambda x: lax.rev(x, ()),
    "slice": lambda x: lax.slice(x, (0,) * np.ndim(x), np.shape(x)),
    "slice_in_dim": lambda x: lax.slice_in_dim(x, 0, None), "split": lambda x: lax.split(x, [4]),
    "squeeze": lambda x: lax.squeeze(x, ()), "stack": lambda x: lax.stack([x]),
    "stop_gradient": lambda x: lax.stop_gradient({"a": x, "b": I}), "tile": lambda x: lax.tile(x, (1,) * np.ndim(x)),
    "transpose": lambda x: lax.transpose(x, range(np.ndim(x))), "unstack": lambda x: lax.unstack(x),
}  # fmt: skip
NEED_A_DIMENSION = (
    "associative_scan", "collapse", "concatenate", "index_in_dim", "slice_in_dim", "split", "unstack",
)  # fmt: skip


def are_ours(out: object) -> bool:
    """Whether all of a result are arrays, with memory of their own."""
    leaves = mw.tree.leaves(out)
    shared = [x for x in leaves for given in (F, I, B, C) if np.shares_memory(np.asarray(x), given)]
    return bool(leaves) and all(isinstance(x, mw.Array) for x in leaves) and not shared


@pytest.mark.parametrize("name", NOTHING_TO_DO)
def test_results_are_arrays_of_ours(name: str) -> None:
    assert are_ours(NOTHING_TO_DO[name]())


@pytest.mark.parametrize("name", OF_LAX)
def test_results_of_lax_are_arrays_of_ours(name: str) -> None:
    assert are_ours(OF_LAX[name](F))
    if name not in NEED_A_DIMENSION:
        assert are_ours(OF_LAX[name](2.0))
    assert are_ours(mw.jit(lambda: OF_LAX[name](F))())


def test_every_function_of_lax_that_may_have_nothing_to_do_has_a_case() -> None:
    made = {n for n, f in [*vars(lax).items()] if getattr(f, "__code__", None) is lax.squeeze.__code__}
    assert made == set(OF_LAX)
