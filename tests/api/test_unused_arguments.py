"""Arguments that no result depends on: no parameters, not transferred, not donated; unless ``keep_unused``."""

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4,), ("x",))
ROWS = NamedSharding(MESH, P("x"))
A, B = np.arange(8, dtype=np.float32), np.ones((3, 2), np.float32)


@mw.jit
def inner(x, y):
    _ = mnp.sin(y)
    return 2 * x


def f(x, unused, y, also):
    _ = unused * 2
    return inner(x, also) + y["b"]


def args(sharding=None):
    x = mw.device_put(A, sharding)
    return x, B, {"a": B, "b": A}, np.float32(1)


@pytest.mark.parametrize("sharding", [None, ROWS], ids=["one device", "mesh"])
def test_what_is_compiled_takes_what_is_used(sharding):
    step = mw.jit(f)
    lowered = step.lower(*args(sharding))
    assert "%arg1" in lowered.as_text() and "%arg2" not in lowered.as_text()
    assert [a.name for a in lowered.program.arguments] == ["x", "y['b']"]
    given, _ = lowered.args_info
    assert given[1].shape == (3, 2) and given[2]["a"].shape == (3, 2) and lowered.in_tree.num_leaves == 5
    compiled = lowered.compile()
    (x, unused, y, also), _ = compiled.input_shardings
    assert [unused, also, y["a"]] == [None] * 3 and x is not None and y["b"] is not None
    (formats, avals) = compiled.input_formats[0], compiled.in_avals[0]
    assert formats[1].sharding is None and formats[0].sharding is not None and avals[1].shape == (3, 2)
    expected = 3 * A
    for run in (step, step, compiled, *([lowered.partition()] if sharding else [])):
        np.testing.assert_array_equal(run(*args(sharding)), expected)
    with pytest.raises(mw.errors.ShapeError, match="unused"):
        compiled(args()[0], A, *args()[2:])  # the type is part of what it was compiled for
    if sharding is not None:
        assert lowered.partition().verify(*args()) is not None
        assert lowered.partition().names == ["x", "y['b']"]


def test_kept_where_asked_for():
    kept = mw.jit(f, keep_unused=True).lower(*args())
    assert "%arg4" in kept.as_text() and kept.compile().input_shardings[0][1] is not None


def test_unused_arguments_are_neither_placed_nor_donated():
    x, y = mw.device_put(A, ROWS), mw.device_put(A, mw.devices()[1])
    assert mw.jit(lambda x, y: y + 1)(x, y).devices() == {mw.devices()[1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = mw.jit(lambda x, y: y + 1, donate_argnums=(0, 1))(x, mw.device_put(A))
    assert not x.is_deleted() and out.tolist() == (A + 1).tolist()
    for nothing in (lambda x: (), lambda x: 3):
        assert mw.tree.leaves(mw.jit(nothing, donate_argnums=0)(x)) in ([], [3]) and not x.is_deleted()


def test_effects_use_their_operands(capsys):
    def told(x, y, z):
        mw.debug.print("{}", y)
        return x

    assert "%arg2" not in mw.jit(told).lower(A, A, A).as_text()
    mw.jit(told)(np.int32(1), np.int32(5), A)
    assert capsys.readouterr().out == "5\n"


def test_exported_programs_keep_their_arguments():
    exported = mw.export.export(mw.jit(f))(*args())
    assert len(exported.in_avals) == 5
    np.testing.assert_array_equal(exported.call(*args()), 3 * A)


def test_functions_that_are_called_often_are_pruned_once():
    def twice(g):
        return lambda x, u: g(x, u) + g(2 * x, u)

    function = mw.jit(lambda x, u: mnp.sin(x))
    for _ in range(10):
        function = mw.jit(twice(function))
    text = function.lower(A, A).as_text()
    assert text.count("func.func") <= 12 and "%arg1" not in text


def test_forwarded_arguments_compile_nothing():
    """A flag that XLA does not know is an error as soon as anything is compiled."""
    forward = mw.jit(lambda x, y: {"y": y, "x": [x]}, compiler_options={"xla_no_such_flag": True})
    split = mw.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mw.make_mesh((4,), ("i",)), P("i")))
    out = forward(split, np.float32(2))
    assert out["x"][0].sharding == split.sharding and float(out["y"]) == 2
    np.testing.assert_array_equal(out["x"][0], split)
    with pytest.raises(mw.errors.CompileError, match="xla_no_such_flag"):
        mw.jit(lambda x: x + 1, compiler_options={"xla_no_such_flag": True})(split)
