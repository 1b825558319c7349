"""Weak types of results are JAX's: of functions of one or two numbers or arrays, which may be empty."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import CONTROL, INDEXED, SHAPED
from fuzz_programs import (
    ALONG,
    BINARY,
    CUMULATIVE,
    LAX,
    LAX_CUMULATIVE,
    MATRIX,
    NN,
    REDUCE,
    UNARY,
    namespace,
)
from library_forms import LIBRARY, LOWER

import meshwright as mw
import meshwright.lax as mlax
import meshwright.nn as mnn
import meshwright.numpy as mnp

PAIRS = ("{x}, {x}", "{x}, 2.", "{x}, 2", "2, {x}", ".5, {x}", "{x}, b", "{x}, s", "s, {x}")
TEXTS = [
    *(f"np.{name}({{x}})" for name in (*UNARY, *MATRIX)),
    *(f"np.{name}({pair})" for name in BINARY for pair in PAIRS),
    *(f"np.{name}({{x}}, axis={{axis}})" for name in (*REDUCE, *CUMULATIVE)),
    *(f"nn.{name}({{x}}{more})" for names, more in ((NN, ""), (ALONG, ", axis={axis}")) for name in names),
    *(f"lax.{name}({{x}}{more})" for names, more in ((LAX, ""), (LAX_CUMULATIVE, ", axis=0")) for name in names),
    *INDEXED, *SHAPED, *CONTROL, *LIBRARY, *LOWER,
    *(f"np.linalg.{name}({{x}})" for name in ("cholesky", "qr", "svd", "eigh", "eig", "slogdet", "det", "inv", "cond")),
    *("np.linalg.solve({x}, {x})", "np.linalg.solve({x}, s * np.ones((2, 2)))", "np.linalg.lstsq({x}, {x})"),
    *(f"lax.linalg.{name}({{x}})" for name in ("lu", "hessenberg", "schur", "eig", "cholesky")),
    "np.einsum('ii', {x})", "nn.squareplus({x}, s)", "nn.squareplus(s, {x})",
    "{x}.at[np.array([0, 1, 1])].apply(np.sin)",
    *(f"np.einsum({of})" for of in ("'...i->i...', {x}", "'...i,...i->...i', {x}, s")),
    "np.diagonal({x}, 1)", "np.diagonal({x}[1:])",
    "np.correlate({x}, {x})", "np.cross({x}.ravel()[:2], {x}.ravel()[:2])",
    "np.round({x}, -1)", "np.round({x}, 0)",
    "lax.pad({x}, {x}.reshape(-1)[0], [(1, 0, 0)] * {x}.ndim)",
    "lax.pad({x}, np.zeros((), {x}.dtype), [(1, 0, 0)] * {x}.ndim)",
]  # fmt: skip
FORMS = [text.format(x="x", y="x", axis=-1) for text in TEXTS]


def _types(lib, np_, lax, nn, value, shape):
    """What each form makes of weakly typed ``value`` in ``shape``; None where it is refused."""
    weak = np_.asarray(value)
    x = np_.broadcast_to(weak, shape) if shape else weak
    scope = {**namespace(lib, np_, lax, nn), "s": np_.asarray(value), "b": np_.ones(shape, bool)}

    def type_of(form):
        try:
            out = []
            lib.make_jaxpr(lambda x: out.extend(map(lib.typeof, lib.tree.leaves(eval(form, {**scope, "x": x})))))(x)
            return [(a.shape, a.dtype, a.dtype == bool or bool(a.weak_type)) for a in out]
        except Exception:
            return None

    return {form: type_of(form) for form in FORMS}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (2, 0)])
@pytest.mark.parametrize("value", [2, 1.5, 2j, True, np.uint8(1)])
def test_as_jax_has_them(value, shape, x64):
    with warnings.catch_warnings(), jax.enable_x64(x64), mw.enable_x64(x64):
        warnings.simplefilter("ignore")
        ours = _types(mw, mnp, mlax, mnn, value, shape)
        theirs = _types(jax, jnp, jax.lax, jax.nn, value, shape)
    different = {f: (ours[f], t) for f, t in theirs.items() if t is not None and ours[f] is not None and ours[f] != t}
    different.pop("np.power(x, s)", None)  # whose type JAX makes depend on whether the exponent is known
    if shape == ():
        different.pop("np.angle(x)", None)  # which JAX makes of the default type
    assert not different
    assert sum(t is not None for t in theirs.values()) > 40
