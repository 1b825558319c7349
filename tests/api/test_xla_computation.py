"""``xla_computation``: the text that one of several devices runs, with axis environments, parts and tuples."""

import inspect
import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax

ENV = [("i", 4), ("j", 2)]
OVER_I = "{{0,2,4,6},{1,3,5,7}}"
OVER_J = "{{0,1},{2,3},{4,5},{6,7}}"
X = np.ones((4, 4), np.float32)


def text(fun, *args, **options):
    return mw.xla_computation(fun, **options)(*args).as_hlo_text()


def test_arguments_stand_in_the_order_that_people_know():
    names = list(inspect.signature(mw.xla_computation).parameters)
    assert names == [
        "fun", "static_argnums", "axis_env", "in_parts", "out_parts", "backend", "tuple_args",
        "instantiate_const_outputs", "return_shape", "donate_argnums",
    ]  # fmt: skip


def test_the_result_says_what_people_ask_of_it():
    def f(x, n):
        return mnp.sin(x) * n

    computation = mw.xla_computation(f, (1,))(X, 3)
    found = computation.as_hlo_text()
    assert computation.name() == "xla_computation_f" and found.startswith("HloModule xla_computation_f")
    assert re.search(r"ROOT \S+ = \(f32\[4,4\]\{1,0\}\) tuple\(", found)
    assert computation.as_hlo_dot_graph().startswith("digraph")
    shape = computation.program_shape()
    assert [s.dimensions() for s in shape.parameter_shapes()] == [(4, 4)]
    assert [s.dimensions() for s in shape.result_shape().tuple_shapes()] == [(4, 4)]
    again = mw.load(computation.as_serialized_hlo_module_proto())
    np.testing.assert_allclose(again(X), np.sin(X) * 3, rtol=1e-6)


def test_sums_over_axes_have_the_groups_of_the_environment():
    def g(x):
        return lax.psum(x, "i"), lax.psum(x, "j"), lax.psum(x, ("i", "j")), lax.psum(1, ("j", "i"))

    found = text(g, 5.0, axis_env=ENV)
    groups = set(re.findall(r"all-reduce\(.*replica_groups=({{.*?}})", found))
    assert groups == {OVER_I, OVER_J, "{{0,1,2,3,4,5,6,7}}"}
    assert "s32[] constant(8)" in found


COLLECTIVES = {
    "pmax": (lambda x: lax.pmax(x, "i"), "all-reduce", OVER_I),
    "pmin": (lambda x: lax.pmin(x, "j"), "all-reduce", OVER_J),
    "pmean": (lambda x: lax.pmean(x, "j"), "all-reduce", OVER_J),
    "all_gather": (lambda x: lax.all_gather(x, "i"), "all-gather", OVER_I),
    "all_gather_tiled": (lambda x: lax.all_gather(x, ("j", "i"), tiled=True), "all-gather", "{{0,2,4,6,1,3,5,7}}"),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "i"), "reduce-scatter", OVER_I),
    "all_to_all": (lambda x: lax.all_to_all(x, "i", 0, 1), "all-to-all", OVER_I),
    "pswapaxes": (lambda x: lax.pswapaxes(x, "i", 1), "all-to-all", OVER_I),
    "ppermute": (lambda x: lax.ppermute(x, "j", [(0, 1)]), "collective-permute", "{{0,1},{2,3},{4,5},{6,7}}"),
    "pshuffle": (lambda x: lax.pshuffle(x, "j", [1, 0]), "collective-permute", "{{1,0},{3,2},{5,4},{7,6},{0,1}"),
    "axis_index": (lambda x: x + lax.axis_index("i"), "replica-id", ""),
    "pbroadcast": (lambda x: lax.pbroadcast(x, "j", 1), "", ""),
    "groups": (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 3], [1, 2]]), "collective-permute", ""),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_follows_the_environment(name):
    fun, op, groups = COLLECTIVES[name]
    found = text(fun, X, axis_env=ENV)
    lines = [line for line in found.splitlines() if f" {op}(" in line or not op]
    assert lines, found
    if groups and op != "collective-permute":
        assert any(groups in line for line in lines), lines
    elif groups:
        want, got = (sorted(re.findall(r"{(\d+,\d+)}", t)) for t in (groups, " ".join(lines)))
        assert set(want) <= set(got), lines


def test_an_environment_holds_for_calls_and_loops_inside():
    f = mw.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c + lax.psum(x, "j"), x))
    assert f"replica_groups={OVER_J}" in text(f, X, axis_env=ENV)
    grads = text(mw.grad(lambda x: lax.psum(x**2, "i").sum()), X, axis_env=ENV)
    assert f"replica_groups={OVER_I}" in grads


def test_impossible_axes_are_refused_by_name(refuses):
    summed = lambda x: lax.psum(x, "k")  # noqa: E731
    with refuses(mw.errors.UnboundAxisError, "'k'", "'i', 'j'"):
        mw.xla_computation(summed, axis_env=ENV)(X)
    with refuses(mw.errors.ArgumentError, "axis 'i'", "size 0"):
        mw.xla_computation(summed, axis_env=[("i", 0)])
    with refuses(mw.errors.ArgumentError, "'i' twice"):
        mw.xla_computation(summed, axis_env=[("i", 2), ("i", 2)])
    with refuses(mw.errors.ArgumentError, "pairs of a name and a size", "'ij'"):
        mw.xla_computation(summed, axis_env=["ij"])
    with refuses(mw.errors.ArgumentError, "axis_index_groups", "'i'"):
        mw.xla_computation(lambda x: lax.psum(x, "i", axis_index_groups=[[0, 9]]), axis_env=ENV)(X)
    with refuses(mw.errors.DeviceError, "backend='tpu'"):
        mw.xla_computation(summed, backend="tpu")


def test_many_arguments_go_in_a_tuple():
    many = [np.float32(i) for i in range(101)]
    sizes = {}
    for tupled in (None, False, True):
        for args in (many, many[:2]):
            shape = mw.xla_computation(lambda *xs: sum(xs), tuple_args=tupled)(*args).program_shape()
            sizes[tupled, len(args)] = len(shape.parameter_shapes())
    assert sizes == {(None, 101): 1, (None, 2): 2, (False, 101): 101, (False, 2): 2, (True, 101): 1, (True, 2): 1}


def test_shapes_of_results_name_the_axes_over_which_they_differ():
    def f(x):
        return {"sum": lax.psum(x, "i"), "at": lax.axis_index(("i", "j")) + 0, "part": lax.psum_scatter(x, "j")}

    computation, shapes = mw.xla_computation(f, axis_env=ENV, return_shape=True)(np.ones((2, 3), np.float32))
    assert computation.name() == "xla_computation_f"
    assert {k: (v.shape, v.dtype.name, v.named_shape) for k, v in shapes.items()} == {
        "sum": ((2, 3), "float32", {}),
        "at": ((), "int32", {"i": 4, "j": 2}),
        "part": ((3,), "float32", {"j": 2}),
    }
    assert repr(shapes["part"]) == "ShapeDtypeStruct(shape=(3,), dtype=float32, named_shape={'j': 2})"
    assert mw.ShapeDtypeStruct((3,), "float32") != shapes["part"] == shapes["part"].update(shape=(3,))


def test_parts_become_shardings(refuses):
    def f(a, b):
        return {"y": a["x"] @ b}

    found = text(f, {"x": X}, X, in_parts=((4, 1), None), out_parts={"y": (2, 2)})
    assert "a['x'].1 = f32[4,4]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}" in found.replace("a__x__", "a['x']")
    assert "sharding={{devices=[2,2]<=[4]}}" in found
    mesh = mw.AbstractMesh((2, 2), ("x", "y"))
    found = text(lambda a: a + 1, X, in_parts=mw.NamedSharding(mesh, P("y")))
    assert "sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}" in found
    with refuses(mw.errors.ArgumentError, "4 and 8 devices"):
        text(f, {"x": X}, X, in_parts=((4, 1), (8, 1)))
    with refuses(mw.errors.ShardingError, "in_parts of a['x']", "(4,)"):
        text(f, {"x": X}, X, in_parts=((4,), None))
    with refuses(mw.errors.ArgumentError, "in_parts must be a tree prefix"):
        text(f, {"x": X}, X, in_parts=((4, 1),))


def test_donated_arguments_are_said():
    assert "input_output_alias={ {0}: (1, {}, may-alias) }" in text(lambda a, b: a + b, 1.0, 2.0, donate_argnums=1)
