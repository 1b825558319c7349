"""Exported programs are read as they were written, or refused."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import export
from meshwright.errors import ArgumentError, ArgumentTypeError, ImportProgramError, ShapeError

WRITTEN = bytes(export.export(mw.jit(lambda x: x * x))(np.ones(3, np.float32)).serialize())
START = WRITTEN.index(b"{")
HEAD, ARTIFACT = WRITTEN[START:].split(b"\n", 1)


def with_head(**changes: object) -> bytes:
    """The program with other words about it; None leaves one out."""
    head = {k: v for k, v in {**json.loads(HEAD), **changes}.items() if v is not None}
    return WRITTEN[:START] + json.dumps(head).encode() + b"\n" + ARTIFACT


DAMAGED = {
    "no checksum": with_head(sha256=None),
    "null checksum": with_head().replace(json.loads(HEAD)["sha256"].encode(), b"").replace(b'""', b"null"),
    "empty checksum": with_head(sha256=""),
    "another checksum": with_head(sha256="0" * 64),
    "another name": with_head(name="g"),
    "a longer artifact": WRITTEN + b"\0",
    "a shorter artifact": WRITTEN[:-1],
    "no artifact": WRITTEN[:START] + HEAD + b"\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_programs_are_refused(name: str) -> None:
    with pytest.raises(ImportProgramError, match="deserialize: "):
        export.deserialize(DAMAGED[name])


def test_a_whole_program_is_read() -> None:
    np.testing.assert_array_equal(export.deserialize(with_head()).call(np.full(3, 2.0, np.float32)), np.full(3, 4.0))


def test_programs_that_call_python_are_not_exported() -> None:
    """They were, and failed where they were called."""
    for f in (
        lambda x: mw.pure_callback(np.sin, x, x),
        lambda x: mw.lax.fori_loop(0, 2, lambda i, x: (mw.debug.print("{}", x), x)[1], x),
    ):
        with pytest.raises(NotImplementedError, match="calls a Python function"):
            export.export(mw.jit(f))(1.0)


def test_functions_of_the_library_are_exported_as_if_jitted() -> None:
    exported = export.export(mnp.sin)(np.arange(4, dtype="float32"))
    assert str(exported.in_avals) == "(ShapedArray(float32[4]),)"
    np.testing.assert_allclose(exported.call(np.ones(4, "float32")), np.sin(np.ones(4)), rtol=1e-6)
    with pytest.raises(TypeError, match="jit"):
        export.export(lambda x: x)  # type: ignore[arg-type,unused-ignore]


def test_structs_like_arrays() -> None:
    mesh = mw.make_mesh((2,), ("x",))
    placed = mw.device_put(np.arange(4), mw.NamedSharding(mesh, mw.P("x")))
    found = mw.ShapeDtypeStruct.like(placed)
    assert (found.shape, found.dtype, found.sharding) == ((4,), np.int32, placed.sharding)
    assert mw.ShapeDtypeStruct.like(mnp.arange(3.0)).sharding is None
    assert mw.ShapeDtypeStruct.like(mnp.asarray(2)).weak_type and not mw.ShapeDtypeStruct.like(np.int8(2)).weak_type


class Pair(NamedTuple):
    first: object
    second: object


@mw.tree_util.register_pytree_node_class
class Scaled:
    def __init__(self, values: object, unit: str) -> None:
        self.values, self.unit = values, unit

    def tree_flatten(self) -> tuple[tuple[object], str]:
        return (self.values,), self.unit

    @classmethod
    def tree_unflatten(cls, unit: str, children: tuple[object]) -> Scaled:
        return cls(*children, unit)


def test_classes_that_are_registered_for_it_are_written() -> None:
    program = export.export(mw.jit(lambda p: Pair(p.second, p.first.values)))(Pair(Scaled(np.ones(2), "m"), 1.0))
    with pytest.raises(ArgumentError, match="register_pytree_node_serialization"):
        program.serialize()
    export.register_namedtuple_serialization(Pair, serialized_name="test.Pair")
    export.register_pytree_node_serialization(
        Scaled, serialized_name="test.Scaled", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
    )
    written = program.serialize()
    out = export.deserialize(written).call(Pair(Scaled(np.ones(2, np.float32), "m"), np.float32(1)))
    assert type(out) is Pair and out.second.tolist() == [1, 1]
    with pytest.raises(ImportProgramError, match="damaged"):  # not of a class that is to be registered
        export.deserialize(written.replace(b"test.Scaled", b"test.Scalef"))
    with pytest.raises(ArgumentError, match="registered for serialization already"):
        export.register_namedtuple_serialization(Pair, serialized_name="another")
    with pytest.raises(ArgumentTypeError, match="no container"):
        export.register_pytree_node_serialization(
            object, serialized_name="o", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
        )


def test_the_check_of_the_platform_is_left_out() -> None:
    checks = [export.DisabledSafetyCheck.platform()]
    program = export.export(mw.jit(mnp.sin), platforms=["tpu"], disabled_checks=checks)(np.ones(2, np.float32))
    read = export.deserialize(program.serialize())
    assert read.disabled_safety_checks == tuple(checks) and read.call(mnp.zeros(2)).tolist() == [0, 0]
    assert read.module_kept_var_idx == (0,) and read.ordered_effects == ()


def test_random_keys_are_arguments_and_results() -> None:
    def draw(key: object, x: object) -> tuple[object, object]:
        key, drawn = mw.random.split(key)
        return key, x * mw.random.normal(drawn, (2,))

    key, x = mw.random.key(0), mnp.ones(2)
    program = export.export(mw.jit(draw))(key, x)
    for exported in (program, export.deserialize(program.serialize())):
        assert [str(a.dtype) for a in exported.in_avals] == ["key<fry>", "float32"]
        for got, want in zip(exported.call(key, x), draw(key, x)):
            assert got.dtype == want.dtype and bool((got == want).all())
        with pytest.raises(ShapeError, match="exported for other types"):
            exported.call(mw.random.key(0, impl="rbg"), x)
    np.testing.assert_array_equal(mw.grad(lambda x: program.call(key, x)[1].sum())(x), draw(key, x)[1])
