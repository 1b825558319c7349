"""Libraries of layers: their frames are not the user's, and they look at the current trace."""

from __future__ import annotations

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import custom_derivatives
from meshwright.core import source
from meshwright.errors import UnexpectedTracerError
from meshwright.extend import source_info_util
from meshwright.extend.core import primitives, set_current_trace, take_current_trace


@pytest.fixture
def layer(tmp_path, monkeypatch):
    """A layer, defined in a file of a library."""
    monkeypatch.setattr(source, "_excluded", source._excluded)
    path = tmp_path / "library" / "layers.py"
    path.parent.mkdir()
    path.write_text("def layer(x):\n    return x * 2.0\n")
    namespace = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    yield namespace["layer"], str(path.parent)
    source._is_skipped.clear()


def test_locations_are_those_of_the_callers_of_an_excluded_library(layer):
    apply, folder = layer
    at = lambda: mw.make_jaxpr(lambda x: apply(x))(1.0).eqns[0].source  # noqa: E731
    assert at().file.endswith("layers.py")
    assert source_info_util.summarize(at(), 2).splitlines()[0] == "layers.py:2 (layer)"
    source_info_util.register_exclusion(folder)
    assert at().file == __file__


def test_errors_still_show_the_frames_of_an_excluded_library(layer):
    apply, folder = layer
    source_info_util.register_exclusion(folder)
    with pytest.raises(TypeError) as caught:
        mw.jit(apply)(mw.random.key(0))
    assert any(str(entry.path).endswith("layers.py") for entry in caught.traceback)


def test_a_trace_is_taken_and_made_current_again():
    def f(x):
        with take_current_trace() as trace:
            n = mnp.sum(mnp.arange(4))
            with set_current_trace(trace):
                y = x * int(n)
        return y + 1

    assert [eqn.primitive.name for eqn in mw.make_jaxpr(f)(2.0).eqns] == ["mul", "add"]
    assert mw.grad(f)(2.0) == 6


def test_the_trace_is_current_again_after_an_error():
    def f(x):
        try:
            with take_current_trace():
                raise KeyError
        except KeyError:
            return x + 1

    assert len(mw.make_jaxpr(f)(2.0).eqns) == 1


def test_traced_values_are_refused_where_the_trace_was_taken():
    def f(x):
        with take_current_trace():
            return x + 1

    with pytest.raises((UnexpectedTracerError, TypeError, ValueError)):
        mw.jit(f)(2.0)


def test_primitives_of_functions_with_rules_are_those_of_equations():
    f = mw.custom_jvp(lambda x: x * 2)
    f.defjvps(lambda t, ans, x: 2 * t)
    g = mw.custom_vjp(lambda x: x * 2)
    g.defvjp(lambda x: (x * 2, None), lambda _, ct: (2 * ct,))
    found = [eqn.primitive for eqn in mw.make_jaxpr(lambda x: g(f(x)))(1.0).eqns]
    assert found == [custom_derivatives.custom_jvp_call_p, custom_derivatives.custom_vjp_call_p]
    assert found[0] is primitives.custom_jvp_call_p
