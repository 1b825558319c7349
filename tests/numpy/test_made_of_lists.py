"""Arrays of lists with NumPy values in them, of integers that need all bits; and masked arrays, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

MASKED = np.ma.masked_array(np.array([1.0, 2.0, 3.0], np.float32), [False, True, False])
FLAGS = np.ma.masked_array(np.array([True, False, True]), [False, True, False])
X = mnp.arange(3.0)

LISTS: list[Any] = [
    [np.int8(1), 2], [np.float16(1), 2.5], [np.float32(1), 2], [1, np.float64(2)], [np.uint8(1), np.int8(2)],
    [[np.int16(1)], [2]], [np.array([1, 2], np.int8), [3, 4]], [np.bool_(True), 2], [True, np.int8(3)],
    [np.array(2, np.uint16), 3.5], [1, 2.5, 1j], [np.complex64(1), 2], [], [np.float32(1)], (np.int8(1), (3)),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(LISTS)))
def test_lists_have_the_dtype_of_their_elements(index: int) -> None:
    for dtype in (None, "float32", "int32") if index not in (10, 11) else (None,):
        ours, theirs = mnp.array(LISTS[index], dtype), jnp.array(LISTS[index], dtype)
        assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(ours, theirs)


def test_integers_are_read_in_the_dtype_asked_for() -> None:
    with mw.enable_x64(True):
        big = [0, 5, 2**63, 2**64 - 2, 2**64 - 1]
        assert mnp.array(big, "uint64").tolist() == big
    assert mnp.array([1, 2**32 - 1], "uint32").tolist() == [1, 2**32 - 1]
    for wrong in ([300], [-1], [np.uint8(1), 256]):
        with pytest.raises(mw.errors.ArgumentError, match="out of bounds"):
            mnp.array(wrong, "uint8")


ENTRANCES: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda m, b: mnp.asarray(m),
    "array": lambda m, b: mnp.array(m, "float32"),
    "a scalar": lambda m, b: mnp.asarray(np.ma.masked),
    "in a list": lambda m, b: mnp.array([m, m]),
    "function": lambda m, b: mnp.sin(m),
    "operator": lambda m, b: X + m,
    "reduction": lambda m, b: mnp.sum(m),
    "joined": lambda m, b: mnp.concatenate([m, m]),
    "lax": lambda m, b: lax.add(m, m),
    "where": lambda m, b: mnp.where(b, X, X),
    "jit": lambda m, b: mw.jit(lambda x: x)(m),
    "constant of jit": lambda m, b: mw.jit(lambda x: x + m)(X),
    "grad": lambda m, b: mw.grad(lambda x: x.sum())(m),
    "vmap": lambda m, b: mw.vmap(lambda x: x)(m),
    "device_put": lambda m, b: mw.device_put(m),
    "device_put to a mesh": lambda m, b: mw.device_put(m, mw.NamedSharding(mw.make_mesh((1,), ("x",)), mw.P("x"))),
    "index": lambda m, b: X[np.ma.masked_array([0, 1], [True, False])],
    "mask": lambda m, b: X[b],
    "at": lambda m, b: X.at[np.ma.masked_array([0, 1], [True, False])].set(0.0),
    "written": lambda m, b: X.at[:].set(m),
    "take": lambda m, b: mnp.take(X, np.ma.masked_array([0, 1], [True, False])),
    "full": lambda m, b: mnp.full((3,), m),
    "like": lambda m, b: mnp.zeros_like(m),
    "typeof": lambda m, b: mw.typeof(m),
    "callback": lambda m, b: mw.pure_callback(lambda x: m, mw.ShapeDtypeStruct((3,), np.float32), X),
    "bits": lambda m, b: lax.bitcast_convert_type(m, np.int32),
    "of zeros": lambda m, b: mnp.full_like(X, m),
}


@pytest.mark.parametrize("name", ENTRANCES)
def test_masked_arrays_are_refused_at_every_entrance(name: str, refuses: Any) -> None:
    with refuses(Exception, "mask"):
        ENTRANCES[name](MASKED, FLAGS)
