"""A prompt in the middle of a program."""

from __future__ import annotations

import io

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.errors import CallbackError, ReplicationWarning


def stopping(commands, **options):
    """A function that stops, and what it shows."""
    stdin, stdout = io.StringIO("\n".join(commands)), io.StringIO()

    def inner(x, key):
        doubled = {"twice": 2 * x}
        mw.debug.breakpoint(stdin=stdin, stdout=stdout, **options)
        return doubled["twice"].sum()

    def outer(x):
        above = x + 100
        return inner(x, mw.random.key(0)) + 0 * above.sum()

    return outer, stdout


def test_variables_have_the_values_of_the_program():
    f, shown = stopping(
        ["p x", "doubled['twice'].sum()", "p key", "", "u", "p above[0]", "p doubled", "d", "l", "bt", "c", "p 5"]
    )
    assert float(mw.jit(f)(mnp.arange(3.0))) == 6
    text = shown.getvalue()
    for said in ("array([0., 1., 2.]", "6.0", "array([0, 0]", "100.0", "*** NameError", " -> ", "mw.debug.breakpoint("):
        assert said in text, (said, text)
    assert "5\n" not in text.split("(mwdb)")[-1]


def test_under_transformations_and_on_a_mesh():
    f, shown = stopping(["p x.shape"] * 2)
    assert mw.jit(mw.grad(f))(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    assert "(3,)" in shown.getvalue()
    f, shown = stopping(["p float(x[0])", "c", "p float(x[0])", "c"])
    mw.jit(mw.vmap(f))(mnp.arange(4.0).reshape(2, 2))
    assert "0.0" in shown.getvalue() and "2.0" in shown.getvalue()
    f, shown = stopping(["p x.shape"], num_frames=1)
    rows = NamedSharding(mw.make_mesh((4,), ("d",)), P("d"))
    with pytest.warns(ReplicationWarning, match="gathered"):
        assert float(mw.jit(f, in_shardings=rows)(np.ones(8, np.float32))) == 16
    assert shown.getvalue().count("(8,)") == 1


def test_outside_of_programs_and_the_end():
    f, shown = stopping(["p x"])
    f(mnp.ones(2))
    assert "Array([1., 1.]" in shown.getvalue()
    f, _ = stopping(["q"])
    with pytest.raises(CallbackError, match="ended at the prompt"):
        mw.jit(f)(mnp.ones(2))
