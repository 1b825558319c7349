"""One program, one pipeline: what ``jit`` and ``load`` give has the same stages, called and checked alike."""

import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShapeError
from meshwright.ir.program import Argument, Program

MESH = mw.make_mesh((2, 2), ("a", "b"))


def f(params, x):
    return {"y": mnp.tanh(x @ params["w"]), "n": (x * params["b"]).sum()}


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
PARAMS = {"w": np.linspace(0, 1, 18, dtype=np.float32).reshape(3, 6), "b": np.float32(3)}
SHARDINGS = {"w": mw.NamedSharding(MESH, P(None, "b")), "b": None}, mw.NamedSharding(MESH, P("a", None))


@pytest.fixture(scope="module")
def lowered():
    return mw.jit(f, in_shardings=SHARDINGS).lower(PARAMS, X)


@pytest.fixture(scope="module")
def loaded(lowered):
    return mw.load(lowered.as_text(debug_info=True))


def test_both_go_through_the_same_stages(lowered, loaded):
    traced = mw.jit(f).trace(PARAMS, X)
    for source in (traced, loaded.trace()):
        assert type(source) is mw.stages.Traced and "tanh" in str(source) and "eqns" in repr(source)
    for low in (lowered, loaded.lower(MESH)):
        assert type(low) is mw.stages.Lowered and "stablehlo.tanh" in low.as_text()
    wanted = f(PARAMS, X)
    assert mw.jit(f, in_shardings=SHARDINGS).partition(PARAMS, X).in_shardings == lowered.partition().in_shardings
    parts = lowered.partition(), loaded.partition(MESH)
    ready = lowered.compile(), loaded.compile(MESH), loaded.compile()
    for part in parts:
        assert isinstance(part.program, Program) and part.program.mesh == MESH
        assert part.program.names == ["params['b']", "params['w']", "x"]
        assert {c.kind for c in part.collectives} == {"all_reduce"}
        assert type(part.compile()) is mw.stages.Compiled
    assert [type(c) for c in ready] == [mw.stages.Compiled] * 3
    for call in (parts[0], ready[0]):
        got = call(PARAMS, X)
        assert got.keys() == wanted.keys()
        np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-6)
    for call in (parts[1], *ready[1:], loaded):
        n, y = call(PARAMS["b"], PARAMS["w"], X)
        np.testing.assert_allclose(y, wanted["y"], rtol=1e-6)
        np.testing.assert_allclose(n, wanted["n"], rtol=1e-5)


def test_every_wrong_argument_is_named_at_once(lowered, loaded):
    w, b = PARAMS["w"], PARAMS["b"]
    for call in (lowered.partition(), lowered.compile()):
        with pytest.raises(
            ShapeError,
            match=r"(?s)3 arguments are wrong:.*params\['b'\] of type f32\[\], got "
            r"f32\[2\].*params\['w'\] of type f32\[3,6\], got f32\[6,3\].*argument x of type",
        ):
            call({"w": w.T, "b": np.ones(2, np.float32)}, X.T)
        with pytest.raises(ShapeError, match=r"argument x of type f32\[4,3\], got f32\[3,4\]; it has to be"):
            call(PARAMS, X.T)
        with pytest.raises(
            ArgumentTypeError, match=r"(?s)2 arguments are wrong:.*argument params\['b'\]: .*argument x "
        ):
            call({"w": w, "b": "no"}, X.T)
        with pytest.raises(ArgumentTypeError, match="for arguments"):
            call(X, PARAMS)
    with pytest.raises(ShapeError, match=r"(?s)2 arguments are wrong.*params\['b'\] of.*params\['w'\] of"):
        loaded(np.ones(2, np.float32), w.T, X)
    with pytest.raises(ArgumentError, match="takes 3 arrays, got 2"):
        loaded(b, w)


def test_arrays_on_other_devices_are_named(lowered):
    other = mw.make_mesh((2,), ("c",))
    put = lambda x: mw.device_put(x, mw.NamedSharding(other, P()))  # noqa: E731
    with pytest.raises(MeshError, match=r"(?s)2 arguments are wrong:.*argument params\['w'\] is on.*argument x is on"):
        lowered.compile()({"w": put(PARAMS["w"]), "b": PARAMS["b"]}, put(X))


def test_donated_memory_goes_where_it_is_said_or_to_the_first_free_result():
    def g(a, b, c):
        return a + 1, b.sum(), c * 2

    program = mw.jit(g, donate_argnums=(0, 1, 2)).lower(X, X, X).program
    assert program.donated == [0, 1, 2] and program.aliases == {0: 0, 1: 2}
    arguments = (Argument("a", X_AVAL, None, True), Argument("b", X_AVAL, None, True, alias=0))
    assert Program("g", program.jaxpr, arguments, (None,) * 3).aliases == {1: 0, 0: 2}


X_AVAL = mw.ShapeDtypeStruct((4, 3), np.float32).aval


def test_stages_are_pickled_and_compile_again(lowered):
    for stage in (lowered.partition(), lowered.compile()):
        again = pickle.loads(pickle.dumps(stage))
        np.testing.assert_array_equal(again(PARAMS, X)["y"], stage(PARAMS, X)["y"])


def test_a_program_without_a_mesh_says_what_to_do():
    with pytest.raises(MeshError, match=r"no sharding of 'f' names a mesh; .* call .partition\(mesh\)"):
        mw.jit(f).lower(PARAMS, X).partition()


def test_the_current_mesh_is_the_one_that_nothing_names():
    lowered = mw.jit(lambda x: x @ x.T).lower(np.ones((8, 4), np.float32))
    mesh = mw.AbstractMesh((2, 4), ("x", "y"))
    with mw.set_mesh(mesh):
        assert lowered.partition().mesh == mesh == mw.load(lowered.as_text()).partition().mesh
        assert lowered.partition(num_devices=3).mesh.size == 3
        written_for_8 = lowered.as_text().replace("num_partitions = 1", "num_partitions = 8")
        assert mw.load(written_for_8).partition().mesh == mesh
        assert mw.load(written_for_8.replace("= 8", "= 4")).partition().mesh.axis_names == ("devices",)


@pytest.mark.parametrize("stage", ["lowered", "loaded"])
def test_a_mesh_and_another_number_of_devices_contradict(stage, request):
    program = request.getfixturevalue(stage)
    assert program.partition(MESH, num_devices=4).mesh == MESH
    with pytest.raises(MeshError, match="has 4 devices, not num_devices=5; leave one out"):
        program.partition(MESH, num_devices=5)
