"""Shardings of jitted functions: what fits works, what does not says which argument, what came and what to do."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, SingleDeviceSharding, errors
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("x", "y"))
OTHER = mw.make_mesh((2, 2), ("x", "y"))  # of other devices: fewer
X = np.arange(32, dtype=np.float32).reshape(8, 4)
ROWS = NamedSharding(MESH, P("x"))
COLUMNS = NamedSharding(MESH, P(None, "y"))


def add(left, right):
    return left + right


def on(sharding, value=X):
    return mw.device_put(value, sharding)


# --- trees of shardings -------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_in_shardings(refuses, count):
    with refuses(
        ValueError,
        "in_shardings",
        "1 entry" if count == 1 else f"{count} entries",
        "add",
        "2 positional",
        "one entry an argument",
    ):
        mw.jit(add, in_shardings=(ROWS,) * count)(X, X)


def test_arguments_by_keyword_have_no_in_shardings(refuses):
    with refuses(errors.ArgumentError, "2 entries", "1 positional", "1 by keyword"):
        mw.jit(add, in_shardings=(ROWS, ROWS))(X, right=X)
    out = mw.jit(add, in_shardings=(ROWS,))(X, right=X)
    np.testing.assert_array_equal(out, X + X)


def test_in_shardings_that_are_no_prefix_of_an_argument(refuses):
    def first(tree):
        return tree["a"]

    with refuses(errors.ArgumentError, "in_shardings", "{'b': *}", "{'a': *}", "one entry for each part"):
        mw.jit(first, in_shardings=({"b": ROWS},))({"a": X})


@pytest.mark.parametrize("out_shardings", [(ROWS,), (ROWS, ROWS, ROWS), {"a": ROWS}])
def test_out_shardings_that_are_no_prefix_of_the_output(refuses, out_shardings):
    with refuses(errors.ArgumentError, "out_shardings", "(*, *)", "one entry for each part"):
        mw.jit(lambda x: (x, x + 1), out_shardings=out_shardings)(X)


def test_one_sharding_stands_for_a_whole_tree_and_a_list_for_a_tuple():
    def both(tree, y):
        return tree["a"] * 2, tree["b"] + y

    outs = mw.jit(both, in_shardings=[ROWS, None], out_shardings=COLUMNS)({"a": X, "b": X + 1}, X)
    for got, want in zip(outs, (X * 2, X + 1 + X)):
        np.testing.assert_array_equal(got, want)
        assert got.sharding.is_equivalent_to(COLUMNS, 2)


@pytest.mark.parametrize("what", ["x", 3, MESH])
def test_something_that_is_no_sharding(refuses, what):
    with refuses(TypeError, "in_shardings", "expected a Sharding", repr(what), type(what).__name__):
        mw.jit(add, in_shardings=(what, None))(X, X)


# --- specs --------------------------------------------------------------------------------------------------
def test_a_spec_with_an_unknown_axis(refuses):
    with refuses(ValueError, "'rows'", "'x' (size 4)", "'y' (size 2)"):
        NamedSharding(MESH, P(None, "rows"))


@pytest.mark.parametrize("spec", [P("x", "x"), P(("x", "y"), "y"), P(("x", "x"))])
def test_a_spec_with_an_axis_twice(refuses, spec):
    with refuses(errors.ShardingError, "twice", repr(spec), "one dimension only"):
        NamedSharding(MESH, spec)


LONG = NamedSharding(MESH, P("x", "y", None))


@pytest.mark.parametrize(
    ("use", "where"),
    [
        (lambda: mw.jit(add, in_shardings=(None, LONG))(X, X), "add: argument right"),
        (lambda: mw.jit(lambda tree: tree["w"][0], in_shardings=LONG)({"w": [X]}), "argument tree['w'][0]"),
        (lambda: mw.jit(add, out_shardings=LONG)(X, X), "add: output"),
        (lambda: mw.device_put({"w": X}, LONG), "device_put: x['w']"),
        (lambda: mw.jit(lambda x: mw.with_sharding_constraint(x, LONG))(X), "with_sharding_constraint: x"),
    ],
)
def test_a_spec_with_more_entries_than_dimensions(refuses, use, where):
    with refuses(errors.ShardingError, where, "3 entries", "(8, 4)", "2 dimensions", "at most 2"):
        use()


def test_a_bare_spec_needs_a_mesh(refuses):
    with refuses(errors.MeshError, "in_shardings", "P('x',)", "set_mesh", "NamedSharding"):
        mw.jit(add, in_shardings=P("x"))(X, X)
    with mw.set_mesh(MESH):
        assert mw.jit(add, in_shardings=P("x"))(X, X).sharding.is_equivalent_to(ROWS, 2)


# --- different meshes ---------------------------------------------------------------------------------------
def test_arrays_of_different_meshes_in_an_eager_op(refuses):
    with refuses(errors.MeshError, "add", "argument 0", "'x': 4", "argument 1", "'x': 2", "device_put"):
        on(ROWS) + on(NamedSharding(OTHER, P("x")))


def test_arrays_of_different_meshes_in_one_call(refuses):
    with refuses(errors.MeshError, "argument left", "argument right", "'x': 4", "'x': 2", "device_put"):
        mw.jit(add)(on(ROWS), on(NamedSharding(OTHER, P("x"))))


@pytest.mark.parametrize(
    "use",
    [
        lambda a, b: a + b,
        lambda a, b: mw.jit(add)(a, b),
        lambda a, b: mw.jit(lambda x: x + b)(a),
    ],
    ids=["eager", "jit", "closure"],
)
def test_a_mesh_and_a_single_device(refuses, use):
    with refuses(errors.MeshError, "Mesh('x': 4, 'y': 2, axis_types=(Auto, Auto))", "CpuDevice(id=3)", "device_put"):
        use(on(ROWS), on(mw.devices()[3]))


@pytest.mark.parametrize("use", [add, mw.jit(add)], ids=["eager", "jit"])
def test_two_single_devices(refuses, use):
    with refuses(errors.MeshError, "1", "3", "device_put"):
        use(on(mw.devices()[1]), on(mw.devices()[3]))


def test_an_argument_on_another_mesh_than_its_in_sharding(refuses):
    step = mw.jit(add, in_shardings=(ROWS, ROWS))
    with refuses(errors.MeshError, "argument right", "in_shardings for right", "device_put"):
        step(X, on(NamedSharding(OTHER, P("x"))))
    # On the same mesh it is brought to where it is wanted, if that is asked for.
    with mw.config.override("move_arguments", True), pytest.warns(errors.MovedArgumentWarning, match="argument right"):
        np.testing.assert_array_equal(step(X, on(COLUMNS)), X + X)


MISPLACED = """'add': 2 arguments are wrong:
  'add' {made} argument left of type f32[8,4] with sharding {rows}, and it has {columns}; {remedy}
  'add' {made} argument right of type f32[8,4] with sharding {rows}, and it has {columns}; {remedy}"""


def test_arguments_that_were_placed_otherwise_are_refused():
    step = mw.jit(add, in_shardings=(ROWS, ROWS))
    remedy = (
        "move it with device_put, leave the sharding out, or have arguments moved with "
        "config.update('move_arguments', True)"
    )
    said = {"rows": repr(ROWS), "columns": repr(COLUMNS), "remedy": remedy}
    compiled = step.lower(X, X).compile()
    for made, call in (("takes", step), ("was compiled for", compiled), ("was partitioned for", step.partition(X, X))):
        with pytest.raises(ValueError) as error:
            call(on(COLUMNS), on(COLUMNS))
        assert str(error.value) == MISPLACED.format(made=made, **said)
        same = on(NamedSharding(ROWS.mesh, P("x", None)))  # says the same in other words
        np.testing.assert_array_equal(call(same, X), X + X)


def test_compiled_programs_name_all_arguments_that_are_wrong(refuses):
    compiled = mw.jit(add, in_shardings=(ROWS, ROWS)).lower(X, X).compile()
    with refuses(errors.ShapeError, "2 arguments are wrong", "argument left of type f32[8,4], got f32[8,3]",
                 "argument right of type f32[8,4] with sharding"):  # fmt: skip
        compiled(X[:, :3], on(COLUMNS))
    with refuses(errors.MeshError, "2 arguments are wrong", "argument left is on", "argument right of type"):
        compiled(mw.device_put(X, mw.devices()[3]), on(COLUMNS))


def test_a_constraint_on_another_mesh_names_its_line(refuses):
    def step(x):
        return mw.with_sharding_constraint(x, NamedSharding(OTHER, P("x"))) * 2

    with refuses(errors.MeshError, "argument x", "sharding constraint", "test_jit_shardings.py", "step"):
        mw.jit(step)(on(ROWS))


def test_an_output_on_another_mesh(refuses):
    with refuses(errors.MeshError, "argument left", "output 0", "CpuDevice(id=2)"):
        mw.jit(add, in_shardings=ROWS, out_shardings=SingleDeviceSharding(mw.devices()[2]))(X, X)


def test_uncommitted_arrays_go_with_any_mesh():
    out = mnp.ones((8, 4)) + on(ROWS)
    np.testing.assert_array_equal(out, X + 1)
    assert out.sharding.is_equivalent_to(ROWS, 2)


# --- closures -----------------------------------------------------------------------------------------------
def test_a_sharded_array_in_a_closure_keeps_its_sharding():
    weights = on(COLUMNS)
    step = mw.jit(lambda x: x * weights)
    out = step(X)
    np.testing.assert_array_equal(out, X * X)
    assert out.sharding.is_equivalent_to(COLUMNS, 2)
    # ... also when the function is called by another one
    outer = mw.jit(lambda x: step(x) + 1)(X)
    np.testing.assert_array_equal(outer, X * X + 1)
    assert outer.sharding.is_equivalent_to(COLUMNS, 2)


def test_a_closed_over_array_of_another_mesh(refuses):
    weights = on(NamedSharding(OTHER, P("x")))
    with refuses(errors.MeshError, "argument x", "closed-over array of type f32[8,4]", "device_put"):
        mw.jit(lambda x: x * weights)(on(ROWS))


# --- single devices -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "run",
    [
        lambda s: mw.jit(add)(on(s), X),
        lambda s: mw.jit(add, in_shardings=s)(X, X),
        lambda s: mw.jit(add, out_shardings=s)(X, X),
        lambda s: on(s) + X,
        lambda s: mw.jit(lambda x: x + on(s))(X),
    ],
    ids=["argument", "in_shardings", "out_shardings", "eager", "closure"],
)
def test_a_single_device_is_kept(run):
    there = SingleDeviceSharding(mw.devices()[5])
    out = run(there)
    np.testing.assert_array_equal(out, X + X)
    assert out.sharding == there and out.devices() == {mw.devices()[5]}


def test_a_value_cannot_be_put_on_a_device_while_tracing(refuses):
    there = mw.sharding.SingleDeviceSharding(mw.devices()[1])
    with refuses(errors.ShardingError, "with_sharding_constraint", "traced", "CpuDevice(id=1)", "NamedSharding"):
        mw.jit(lambda x: mw.with_sharding_constraint(x, there))(X)
    with pytest.warns(errors.PlacementWarning, match="not put on cpu:1"):
        np.testing.assert_array_equal(mw.jit(lambda x: mw.device_put(x, there))(X), X)


def test_positional_shardings_work_as_arguments():
    grid = mw.PositionalSharding(mw.devices()).reshape(4, 2)
    out = mw.jit(add, in_shardings=grid)(X, X)
    np.testing.assert_array_equal(out, X + X)
    assert out.sharding.is_equivalent_to(grid, 2)
    assert (on(grid) * 2).sharding.is_equivalent_to(grid, 2)


# --- meshes without devices ---------------------------------------------------------------------------------
def test_an_abstract_mesh_can_be_partitioned_but_not_run(refuses):
    there = NamedSharding(mw.AbstractMesh((512, 128), ("data", "model")), P("data"))
    step = mw.jit(add, in_shardings=there)
    shape = mw.ShapeDtypeStruct((1024, 16), np.float32)
    part = step.lower(shape, shape).partition()
    assert part.num_devices == 512 * 128 and part.jaxpr.in_avals[0].shape == (2, 16)
    with refuses(errors.MeshError, "compile", "no devices", ".partition()", "make_mesh"):
        step.lower(shape, shape).compile()
    with refuses(errors.MeshwrightError, "device_put", "no devices", "make_mesh"):
        mw.device_put(X, there)


def test_partition_of_a_program_without_a_mesh(refuses):
    lowered = mw.jit(add).lower(X, X)
    with refuses(errors.MeshError, "partition", "'add'", "in_shardings", ".partition(mesh)"):
        lowered.partition()
    assert lowered.partition(MESH).num_devices == 8 and lowered.partition(num_devices=2).num_devices == 2
    assert mw.jit(add, in_shardings=ROWS).lower(X, X).partition(OTHER).in_shardings[0].mesh.shape == OTHER.shape
    with refuses(errors.MeshError, "partition", "'x': 4", "lacks some of its axes"):
        mw.jit(add, in_shardings=ROWS).lower(X, X).partition(mw.AbstractMesh((8,), ("x",)))


# --- jitted functions inside jitted functions ---------------------------------------------------------------
def scale(y):
    return y * 3


def test_shardings_of_an_inner_function_are_constraints():
    inner = mw.jit(scale, in_shardings=ROWS, out_shardings=COLUMNS)
    compiled = mw.jit(lambda x: inner(x)).lower(X).compile()
    out = compiled(X)
    np.testing.assert_array_equal(out, X * 3)
    assert out.sharding.is_equivalent_to(COLUMNS, 2)
    ((argument,), _) = compiled.input_shardings
    assert argument.is_equivalent_to(ROWS, 2)
    text = str(mw.make_jaxpr(lambda x: inner(x))(X))
    assert text.count("sharding_constraint") == 2 and "spec=P(None, 'y')" in text


def test_shardings_of_an_inner_function_under_transformations():
    inner = mw.jit(lambda y: mnp.sum(y * y), in_shardings=ROWS)
    out = mw.jit(mw.grad(lambda x: inner(x)))(X)
    np.testing.assert_array_equal(out, 2 * X)
    assert out.sharding.is_equivalent_to(ROWS, 2)
    mapped = mw.jit(scale, out_shardings=NamedSharding(MESH, P("y")))
    out = mw.jit(mw.vmap(lambda row: mapped(row)))(X)
    np.testing.assert_array_equal(out, X * 3)
    assert out.sharding.is_equivalent_to(COLUMNS, 2)


def test_an_inner_function_is_lowered_once():
    inner = mw.jit(scale, out_shardings=ROWS)
    text = mw.jit(lambda x: inner(inner(x))).lower(X).as_text()
    assert text.count("func.func private") == 1 and text.count("sdy.sharding_constraint") == 1


def test_wrong_shardings_of_an_inner_function(refuses):
    inner = mw.jit(scale, in_shardings=(ROWS, ROWS))
    with refuses(errors.ArgumentError, "2 entries", "scale", "1 positional"):
        mw.jit(lambda x: inner(x))(X)
    elsewhere = mw.jit(scale, in_shardings=NamedSharding(OTHER, P("x")))
    with refuses(errors.MeshError, "'x': 4", "'x': 2"):
        mw.jit(lambda x: elsewhere(x), in_shardings=ROWS)(X)


# --- uneven -------------------------------------------------------------------------------------------------
def test_uneven_dimensions_warn_and_work():
    with pytest.warns(errors.PaddingWarning, match=r"size 7.*4 ways"):
        out = mw.jit(add, in_shardings=ROWS)(X[:7], X[:7])
    np.testing.assert_array_equal(out, X[:7] * 2)


def test_padding_that_the_partitioner_chose_does_not_warn():
    x = on(NamedSharding(MESH, P("x", "y")))
    compiled = mw.jit(lambda x: x[3:4, :3]).lower(x).compile()  # warnings are errors here
    np.testing.assert_array_equal(compiled(x), X[3:4, :3])


def test_branches_with_different_constraints_on_one_device():
    """XLA refuses a conditional whose branches disagree about shardings, which mean nothing on one device."""
    mesh = mw.AbstractMesh((2, 2), ("x", "y"))

    def at(*axes):
        return lambda v: mw.with_sharding_constraint(v, mw.NamedSharding(mesh, mw.PartitionSpec(axes)))

    program = mw.jit(lambda v: mw.lax.cond(v.sum() > 1, at("x", "y"), at("x"), v))
    values = np.array([3.0, -1.0, 2.0, 5.0], np.float32)
    assert program.lower(values).partition().verify(values)[0].absolute == 0


def test_an_abstract_mesh_means_the_current_mesh_or_that_of_the_array():
    """What libraries write with ``get_abstract_mesh``, which inside a traced function is all that JAX gives them."""
    mesh = mw.make_mesh((4, 2), ("x", "y"), axis_types=(mw.sharding.AxisType.Auto,) * 2)
    rows = NamedSharding(mesh.abstract_mesh, P("x"))
    want, x = NamedSharding(mesh, P("x")), np.ones((8, 4), np.float32)
    with mw.set_mesh(mesh):
        for f in (
            lambda x: mw.with_sharding_constraint(x, rows),
            lambda x: mw.jit(lambda x: mw.with_sharding_constraint(x + 1, rows))(x),
            lambda x: mw.jit(lambda x: x + 1, in_shardings=rows, out_shardings=rows)(x),
            lambda x: mw.device_put(x, rows),
        ):
            assert f(x).sharding.is_equivalent_to(want, 2)
    columns = mw.device_put(x, NamedSharding(mesh, P(None, "y")))
    assert mw.with_sharding_constraint(columns, rows).sharding == want
    with pytest.raises(mw.errors.ArgumentTypeError, match="has no devices"):
        mw.with_sharding_constraint(x, rows)
