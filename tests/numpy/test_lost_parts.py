"""What a dtype does not hold is never dropped without a word: imaginary parts, integers of many bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentTypeError, IntegerRangeError

Z = np.array([1 + 2j], np.complex64)
X = mnp.zeros(2)
MASK = np.array([True, False])

#: conversions of arrays, of which NumPy and JAX warn
WARNED: dict[str, Callable[[], Any]] = {
    "convert_element_type": lambda: lax.convert_element_type(mnp.asarray(Z), "float32"),
    "to integers": lambda: lax.convert_element_type(Z, "int32"),
    "traced": lambda: mw.make_jaxpr(lambda z: lax.convert_element_type(z, "float32"))(Z),
    "astype": lambda: mnp.asarray(Z).astype("float32"),
    "array of NumPy's": lambda: mnp.array(Z, "float32"),
    "array of ours": lambda: mnp.array(mnp.asarray(Z), "float32"),
    "full": lambda: mnp.full((1,), Z, "float32"),
    "scalar type": lambda: mnp.float32(mnp.asarray(Z)),
    "stack": lambda: mnp.stack([Z], dtype="float32"),
    "sum": lambda: mnp.sum(Z, dtype="float32"),
    "cumsum": lambda: mnp.cumsum(Z, dtype="float32"),
    "nanmean": lambda: mnp.nanmean(Z, dtype="float32"),
    "fill_diagonal": lambda: mnp.fill_diagonal(mnp.zeros((2, 2)), 1j, inplace=False),
    "place": lambda: mnp.place(X, MASK, mnp.array([1j]), inplace=False),
}
#: what Python itself refuses
REFUSED: dict[str, Callable[[], Any]] = {
    "convert_element_type": lambda: lax.convert_element_type(1j, "float32"),
    "to integers": lambda: lax.convert_element_type(1j, "int32"),
    "traced": lambda: mw.make_jaxpr(lambda: lax.convert_element_type(1j, "float32"))(),
    "lax.full": lambda: lax.full((2,), 1j, "float32"),
    "lax.full_like": lambda: lax.full_like(X, 1j),
    "full": lambda: mnp.full((2,), 1j, "float32"),
    "initial": lambda: mnp.sum(X, initial=1j),
    "fill_value": lambda: X.at[5].get(mode="fill", fill_value=1j),
    "float": lambda: float(mnp.asarray(Z)),
    "int": lambda: int(mnp.asarray(Z)),
    "reduce": lambda: lax.reduce(X, 1j, lax.add, (0,)),
    "reduce integers": lambda: lax.reduce(np.arange(2), 1.5, lax.add, (0,)),
}


@pytest.mark.parametrize("name", WARNED)
def test_imaginary_parts_are_dropped_with_a_warning(name: str) -> None:
    with pytest.warns(np.exceptions.ComplexWarning) as record:
        WARNED[name]()
    assert record[0].filename == __file__


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_of_another_kind_are_refused(name: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[name]()


def test_derivatives_of_complex_numbers_made_of_real_ones_warn_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    mw.grad(lambda x: (x.astype("complex64") * 1j).imag)(2.0)
    assert not recwarn.list


@pytest.mark.parametrize("traced", [False, True])
def test_constants_of_32_bits_are_unsigned_integers(traced: bool) -> None:
    def make() -> Any:
        filled = mnp.full((1,), 0x9E3779B9, "uint32"), mnp.full_like(mnp.zeros(1, "uint32"), 0x9E3779B9)
        return *filled, lax.full((1,), 0x9E3779B9, "uint32"), lax.convert_element_type(0x9E3779B9, "uint32")[None]

    for made in (mw.jit(make) if traced else make)():
        assert made.tolist() == [0x9E3779B9] and made.dtype == "uint32"


def test_integers_that_no_dtype_here_holds_are_refused() -> None:
    for dtype in ("uint32", "int8"):
        with pytest.raises(IntegerRangeError, match="does not fit"):
            lax.convert_element_type(2**40, dtype)
    with pytest.raises(IntegerRangeError):
        mnp.zeros(1, bool).at[0].set(2**40)  # was False
    with pytest.raises(ArgumentTypeError):
        lax.convert_element_type("1", "float32")


#: values written into an array whose dtype is not what the two promote to
NARROWED: dict[str, Callable[[], Any]] = {
    "fractions into integers": lambda: mnp.arange(3).at[0].set(1.5),
    "an array of floats": lambda: mnp.arange(3).at[:2].set(mnp.ones(2)),
    "a sum": lambda: mw.jit(lambda x: x.at[0].add(0.5))(mnp.arange(3)),
    "wide into narrow": lambda: X.astype("bfloat16").at[0].multiply(mnp.float32(2)),
}


@pytest.mark.parametrize("name", NARROWED)
def test_values_that_the_array_does_not_hold_are_written_with_a_warning(name: str) -> None:
    with pytest.warns(FutureWarning, match="does not hold them all") as record:  # JAX's category
        NARROWED[name]()
    assert record[0].filename == __file__


def test_values_that_the_array_holds_are_written_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    keys = mw.random.split(mw.random.key(0), 3)
    for x, value in (X, 2), (X, True), (X, np.arange(2)), (X.astype("bfloat16"), 1.5), (MASK, False):
        mnp.asarray(x).at[:].set(value)
    keys.at[0].set(keys[1])
    assert not recwarn.list
