"""Symbolic sizes, and exported programs that have them, beside JAX."""

from __future__ import annotations

import jax
import jax.export
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import export
from meshwright.errors import ArgumentError, ArgumentTypeError, ImportProgramError, ShapeError

EXPRESSIONS = [
    "b", "b + 0", "2*c + 1 + b", "b*c + b", "b^2 - b", "-b", "b - b + 3", "floordiv(b, 2)", "mod(b + c, 3)",
    "max(b, 3)", "min(b, c) - 1", "4*b - 2*(b + c)", "(b + 1)*(c + 1)", "floordiv(4*b, 2)", "mod(4*b, 2)",
]  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_have_their_values(text):
    (size,) = export.symbolic_shape(text)
    python = text.replace("^", "**")
    functions = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min}
    for sizes in ({"b": 2, "c": 3}, {"b": 7, "c": 4}):
        assert (size.evaluate(sizes) if export.is_symbolic_dim(size) else size) == eval(python, {**functions, **sizes})
    assert export.symbolic_shape(str(size)) == (size,)


def test_printed_as_in_jax():
    for text in ("b, 2*b, b + 1, 3", "2*c + 1 + b", "b*c + b", "floordiv(b, 2)", "mod(b, 3)"):
        assert str(export.symbolic_shape(text)) == str(jax.export.symbolic_shape(text))
    assert repr(mw.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")) == (
        "ShapeDtypeStruct(shape=(b, 3), dtype=float32)"
    )


def test_arithmetic_and_comparisons():
    b, c = export.symbolic_shape("b, c")
    assert 2 * b == b + b and hash(2 * b) == hash(b + b) and b - b == 0 and (4 * b) // 2 == 2 * b and (4 * b) % 2 == 0
    assert 2 * b >= b and b > 0 and not b < 1 and b + c >= 2 and bool(b)
    for undecided in (lambda: b > 5, lambda: b >= c, lambda: int(b), lambda: range(b)):
        with pytest.raises(mw.errors.InconclusiveDimensionOperation, match="b"):
            undecided()


@pytest.mark.parametrize("text", ["b +", "b.c", "f(b)", "b, ...", "1.5", "b @ c", "'b'"])
def test_texts_that_do_not_parse(text):
    with pytest.raises(ShapeError, match="symbolic sizes"):
        export.symbolic_shape(text)
    with pytest.raises(ShapeError, match="b => 2"):
        export.symbolic_shape("b", constraints=["b => 2"])


def f(n, x, y):
    return n.concatenate([x, x]), {"product": x @ y.T}, x.sum() / x.shape[0], n.ones(x.shape[0] // 2)


SPECS = ("b, d", "2*b + 1, _"), ("b >= 2", "mod(d, 3) == 0")


def arrays(b, d, c=None):
    wide = 2 * b + 1 if c is None else c
    return tuple(np.arange(float(r * d), dtype=np.float32).reshape(r, d) for r in (b, wide))


def exported():
    args = arrays(2, 3)
    specs, constraints = (SPECS[0][0], "2*b + 1, d"), SPECS[1]
    return export.export(mw.jit(lambda x, y: f(mnp, x, y)))(*export.symbolic_args_specs(args, specs, constraints))


def test_programs_are_called_with_several_sizes():
    program = exported()
    for b, d in ((2, 3), (5, 6), (2, 3)):
        got, want = program.call(*arrays(b, d)), f(np, *arrays(b, d))
        for x, y in zip(mw.tree.leaves(got), mw.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)
    assert program.sizes == [{"b": 2, "d": 3}, {"b": 5, "d": 6}]
    x, y = map(mnp.asarray, arrays(3, 3))
    np.testing.assert_allclose(mw.grad(lambda x: program.call(x, y)[2])(x), np.full((3, 3), 1 / 3), rtol=1e-6)
    np.testing.assert_allclose(mw.jit(program.call)(x, y)[0], np.concatenate([x, x]))


def test_what_was_made_is_serialized():
    program = exported()
    with pytest.raises(ArgumentError, match="say which to write"):
        program.serialize()
    want = program.call(*arrays(2, 3))
    program.at(b=4, d=3)
    read = export.deserialize(program.serialize())
    got = read.call(*arrays(2, 3))
    assert all(map(np.array_equal, mw.tree.leaves(got), mw.tree.leaves(want)))
    assert read.call(*arrays(4, 3))[0].shape == (8, 3) and str(read.in_avals) == str(program.in_avals)
    with pytest.raises(ArgumentError, match=r"was serialized for sizes b = 2, d = 3; b = 4, d = 3, and is asked for"):
        read.call(*arrays(5, 3))
    with pytest.raises(ShapeError, match=r"mod\(d, 3\) == 0"):
        read.call(*arrays(4, 4))
    damaged = bytes(program.serialize())[:-1]
    with pytest.raises(ImportProgramError, match="damaged"):
        export.deserialize(damaged)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (arrays(1, 3), "b >= 2 does not hold, where b = 1, d = 3"),
        (arrays(2, 4), r"mod\(d, 3\) == 0 does not hold"),
        (arrays(2, 3, 6), r"size 0 of argument\[1\] is 6, expected '2\*b \+ 1' = 5"),
        ((np.ones(3, np.float32), np.ones((5, 3), np.float32)), r"argument\[0\] is f32\[3\], expected shape \(b, d\)"),
        ((np.ones((2, 3), np.int32), np.ones((5, 3), np.float32)), "expected .* dtype float32"),
    ],
)
def test_sizes_that_do_not_fit(args, said):
    with pytest.raises(ShapeError, match=said):
        exported().call(*args)
    theirs = jax.export.export(jax.jit(lambda x, y: x[:1]))(
        *jax.export.symbolic_args_specs(arrays(2, 3), ("b, d", "2*b + 1, d"), SPECS[1])
    )
    with pytest.raises(ValueError):
        theirs.call(*args)


def test_sizes_that_do_not_follow_are_refused():
    b, c = export.symbolic_shape("b, c", scope=(scope := export.SymbolicScope()))
    product = export.export(mw.jit(mnp.sin))(mw.ShapeDtypeStruct((b * c,), "float32"))
    with pytest.raises(ShapeError, match="is 6, from which 'b\\*c' does not follow"):
        product.call(np.ones(6, np.float32))
    other = export.symbolic_shape("b")
    specs = mw.ShapeDtypeStruct((b,), "float32"), mw.ShapeDtypeStruct(other, "float32")
    with pytest.raises(ArgumentError, match="of several scopes"):
        export.export(mw.jit(lambda x, y: x))(*specs)
    impossible = export.symbolic_shape("b", constraints=["b >= 5", "b <= 4"])
    with pytest.raises(ArgumentError, match="no sizes below"):
        export.export(mw.jit(mnp.sin))(mw.ShapeDtypeStruct(impossible, "float32"))
    with pytest.raises(ArgumentError, match="are those of the scope"):
        export.symbolic_shape("b", scope=scope, constraints=["b > 1"])


@pytest.mark.parametrize("use", [mw.jit(mnp.sin), lambda x: mw.eval_shape(mnp.sin, x), mw.make_jaxpr(mnp.sin)])
def test_symbolic_types_are_for_export_alone(use):
    with pytest.raises(ArgumentTypeError, match="symbolic shapes are for export"):
        use(mw.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32"))


# --- types of results ---------------------------------------------------------------------------------------
RESULTS = {
    "joined": (lambda m, n: lambda x: n.concatenate([x, x]), "b, c"),
    "merged": (lambda m, n: lambda x: x.reshape(-1), "b, c"),
    "cut": (lambda m, n: lambda x: x[1:], "b, 3"),
    "product": (lambda m, n: lambda x: (x @ x.T, x.sum()), "b, c"),
    "two of it": (lambda m, n: lambda x: n.zeros((x.shape[0] + x.shape[1], 2)), "2*b, c + 1"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_symbolic_sizes(name):
    def shapes(m, n, exporter):
        f, text = RESULTS[name]
        struct = m.ShapeDtypeStruct(exporter.symbolic_shape(text), "float32")
        program = exporter.export(m.jit(f(m, n)))(struct)
        backward = program.vjp()
        return [
            [(str(a.shape), a.dtype) for a in avals]
            for avals in (program.out_avals, backward.in_avals, backward.out_avals)
        ], program.nr_devices

    assert shapes(mw, mnp, export) == shapes(jax, jax.numpy, jax.export)


def test_sizes_of_results_that_are_no_polynomials_are_not_guessed():
    struct = mw.ShapeDtypeStruct(export.symbolic_shape("b"), "float32")
    program = export.export(mw.jit(lambda x: x[::2]))(struct)
    with pytest.raises(ArgumentError, match="no polynomials of b"):
        _ = program.out_avals
    assert program.call(mnp.arange(5.0)).shape == (3,)
    late = export.export(mw.jit(lambda x: x[: x.shape[0] if x.shape[0] < 60 else 7]))(struct)
    assert str(late.out_avals[0].shape) == "(b,)"
    with pytest.raises(ArgumentError, match="not of the shapes of out_avals"):
        late.at(b=64)
    read = export.deserialize((program.at(b=4), program.serialize())[1])
    with pytest.raises(ArgumentError, match="not known"):
        _ = read.out_avals
