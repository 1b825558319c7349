"""Programs built op by op: values, attributes, regions, shardings, and what is said of them before and after."""

import numpy as np
import pytest

import meshwright as mw
from meshwright import P
from meshwright.builder import Builder
from meshwright.core.dtypes import wide_types
from meshwright.sharding import HloSharding

PRODUCT = (((1,), (0,)), ((), ()))
X = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
SQUARES = "{devices=[2,2]<=[4]}"


@pytest.fixture(scope="module")
def products():
    """The program of the design, its partition on 2 x 2 devices, and the values that were marked."""
    b = Builder("products")
    p = b.parameter(0, "f32[4,4]")
    b.set_sharding(p, SQUARES)
    y = b.op("dot_general", p, p, dimension_numbers=PRODUCT)
    program = b.build(b.op("multiply", y, 2.0))
    return program, program.partition()


def test_a_built_program_is_a_program(products):
    program, part = products
    np.testing.assert_allclose(program(X), 2 * X @ X)
    assert (program.num_partitions, part.num_devices, program.parameters[0].name) == (4, 4, "p0")
    assert "p0.1 = f32[4,4]{1,0} parameter(0), sharding={devices=[2,2]<=[4]}" in program.as_text("hlo")
    np.testing.assert_allclose(mw.load(program.as_text("stablehlo"))(X), 2 * X @ X)
    assert part.verify().outputs[0].relative == 0


def test_texts_before_and_after_partitioning(products):
    program, part = products
    before, after = program.as_text("hlo"), part.as_text("hlo")
    assert "all-gather" not in before and "dot(p0.1, p0.1)" in before
    assert "f32[2,2]{1,0} parameter(0)" in after and "replica_groups={{0,1},{2,3}}, dimensions={1}" in after


def test_memory_before_and_after_partitioning(products):
    _, part = products
    assert (part.memory_before.argument_bytes, part.memory.argument_bytes) == (64, 16)
    rows = [(str(b.aval), str(b.whole), b.sharding) for b in part.memory.buffers if b.whole is not None]
    assert ("f32[2,2]", "f32[4,4]", "[{x0}, {x1}]") in rows and ("f32[4,2]", "f32[4,4]", "[{}, {x1}]") in rows
    assert "f32[2,2] of f32[4,4] as [{x0}, {x1}] input 0" in str(part.memory)
    assert [b.whole for b in part.memory_before.buffers] == [None, None]
    assert part.memory_before.temp_bytes == 0
    b = Builder()
    x = b.parameter(0, "f32[8,8]")
    y = b.op("tanh", x)
    b.set_sharding(y, "{devices=[4,1]<=[4]}")
    assert b.build(y).partition().memory_before.peak_bytes == 2 * 8 * 8 * 4  # what is marked takes no memory of its own


def test_resharding_steps(products):
    _, part = products
    assert [str(r) for r in part.reshardings] == [
        "f32[4,4], input 0 (p0): [{x0}, {x1}] to [{x0}, {}] for dot_general, 16 B sent\n"
        "  all_gather over x1 (2 devices): f32[2,2] -> f32[2,4]",
        "f32[4,4], input 0 (p0): [{x0}, {x1}] to [{}, {x1}] for dot_general, 16 B sent\n"
        "  all_gather over x0 (2 devices): f32[2,2] -> f32[4,2]",
    ]


def test_marks_on_values_and_on_what_follows(refuses):
    b = Builder()
    x, y = b.parameter(0, "f32[8,4]"), b.parameter(1, "f32[8,4]", "weights", donated=True)
    z = b.op("add", x, y)
    b.set_sharding(z, "{devices=[4,1]<=[4]}")
    with b.sharding("{devices=[1,4]<=[4]}"):
        w = b.op("sine", z)
        c = b.constant(np.ones((8, 4), np.float32))
    last = b.op("Sharding", b.op("sub", w, c), sharding="{replicated}")
    assert [v.sharding.tile_counts for v in (z, w, c)] == [(4, 1), (1, 4), (1, 4)]
    assert x.sharding is None and repr(last) == "Value(f32[8,4], sharding={replicated})"
    text = b.build(last).as_text()
    assert text.count("sharding_annotation") == 4
    program = b.build(last, z)
    assert program.parameters[1].name == "weights" and program.donated == [1]
    part = program.partition()
    assert part.out_shardings[1].spec == P("x0", None) and part.out_shardings[0].is_fully_replicated
    b.set_sharding("{devices=[4]<=[4]}")
    with refuses(mw.errors.ShardingError, "1 dimension, the value has 2", "clear_sharding"):
        b.op("cos", z)
    b.clear_sharding()
    assert b.op("cos", z).sharding is None
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))
    b.set_sharding(z, mw.NamedSharding(mesh, P("b", "a")))
    assert str(z.sharding) == "{devices=[2,2]<=[2,2]T(1,0)}"
    b.set_sharding(z, HloSharding.replicated())


def test_regions_are_bodies_of_ops():
    b = Builder("loop")
    x = b.parameter(0, "f32[3]")
    add = b.region(lambda s, v: b.op("add", s, v), "f32[]", "f32[]")
    (total,) = b.op("reduce", x, b.constant(0.0), axes=[0], computation=add)
    small = b.region(lambda c: b.op("lt", c, 100.0), "f32[]")
    twice = b.region(lambda c: b.op("mul", c, 2.0), "f32[]")
    (grown,) = b.op("while", total, cond_jaxpr=small, body_jaxpr=twice, cond_nconsts=0, body_nconsts=0)
    branches = [b.region(lambda v: b.op("neg", v), "f32[]"), b.region(lambda v: b.op("exp", v), "f32[]")]
    (chosen,) = b.op("cond", b.constant(0), total, branches=branches)
    program = b.build(grown, chosen)
    assert [float(v) for v in program(np.array([1, 2, 4], np.float32))] == [112.0, -7.0]


ROWS = np.arange(32, dtype=np.float32).reshape(4, 2, 4)
PAIRS, ACROSS = [[0, 1], [2, 3]], [[0, 2], [3, 1]]


def collective(name, *, num_devices=None, dtype="f32", **attributes):
    b = Builder(name, num_devices)
    return b.build(b.op(name, b.parameter(0, f"{dtype}[2,4]"), **attributes))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"name": "all_reduce", "replica_groups": PAIRS}, np.repeat(ROWS.reshape(2, 2, 2, 4).sum(1), 2, 0)),
        (
            {"name": "all_reduce", "replica_groups": [], "num_devices": 4, "computation": "maximum"},
            np.broadcast_to(ROWS.max(0), (4, 2, 4)),
        ),
        ({"name": "all_reduce", "replica_groups": [[0], [1], [2], [3]]}, ROWS),
        (
            {"name": "all-gather", "replica_groups": ACROSS, "dimension": 0},
            ROWS[[[0, 2], [3, 1], [0, 2], [3, 1]]].reshape(4, 4, 4),
        ),
        (
            {"name": "reduce_scatter", "replica_groups": PAIRS, "dimension": 1},
            np.concatenate(np.split(ROWS.reshape(2, 2, 2, 4).sum(1)[:, None], 2, 3), 1).reshape(4, 2, 2),
        ),
        (
            {"name": "all_to_all", "replica_groups": PAIRS, "split_dimension": 0, "concat_dimension": 0},
            ROWS.reshape(2, 2, 2, 4).swapaxes(1, 2).reshape(4, 2, 4),
        ),
        (
            {"name": "collective_permute", "source_target_pairs": [(0, 3), (3, 1)]},
            np.stack([0 * ROWS[0], ROWS[3], 0 * ROWS[0], ROWS[0]]),
        ),
        ({"name": "collective_broadcast", "replica_groups": [[1, 0], [2, 3]]}, ROWS[[1, 1, 2, 2]]),
    ],
    ids=lambda x: x["name"] if isinstance(x, dict) else "",
)
def test_collectives_among_groups_of_devices(attributes, expected):
    program = collective(**attributes)
    assert program.is_stacked and program.num_partitions == 4
    np.testing.assert_array_equal(program(ROWS), expected)
    assert program.partition().verify(ROWS).outputs[0].relative == 0
    np.testing.assert_array_equal(mw.load(program.as_text("stablehlo"))(ROWS), expected)


def test_collectives_in_regions_and_device_numbers(refuses):
    b = Builder("loop")
    x = b.parameter(0, "f32[2,4]")
    multiply = b.region(lambda p, q: b.op("mul", p, q), "f32[]", "f32[]")
    types = "s32[]", "f32[2,4]"
    small = b.region(lambda i, v: b.op("lt", i, 3), *types)
    body = b.region(
        lambda i, v: (b.op("add", i, 1), b.op("all_reduce", v, replica_groups=PAIRS, computation=multiply)), *types
    )
    _, y = b.op("while", b.constant(0), x, cond_jaxpr=small, body_jaxpr=body, cond_nconsts=0, body_nconsts=0)
    with np.errstate(over="ignore"):
        expected = np.repeat((ROWS[::2] * ROWS[1::2]) ** 4, 2, 0)
    np.testing.assert_allclose(b.build(y, b.op("replica_id"))(ROWS / 8)[0], expected / 8.0**8, rtol=1e-5)
    b = Builder("number")
    with refuses(mw.errors.ArgumentError, "how many devices", "num_devices"):
        b.build(b.op("replica_id"))
    b = Builder("flags", 4)
    program = b.build(b.op("all_reduce", b.parameter(0, "pred[4]"), replica_groups=PAIRS), b.op("partition_id"))
    flags, numbers = program(np.eye(4, dtype=bool))
    np.testing.assert_array_equal(flags, np.kron(np.eye(2), np.ones((2, 2))).astype(bool))
    np.testing.assert_array_equal(numbers, np.arange(4))


def test_groups_that_are_none_are_refused(refuses):
    argument, sharding = mw.errors.ArgumentError, mw.errors.ShardingError
    for error, words, attributes in (
        (argument, ("needs the attribute 'replica_groups'", "computation (optional)"), {}),
        (argument, ("rows of device numbers", "[[0, 1], [2, 3]]"), {"replica_groups": 3}),
        (sharding, ("name a device twice",), {"replica_groups": [[0, 0]]}),
        (sharding, ("differ in size",), {"replica_groups": [[0, 1], [2]]}),
        (sharding, ("name device 4", "0 to 3"), {"replica_groups": [[0, 4]], "num_devices": 4}),
        (argument, ("2 of 3 devices",), {"replica_groups": [[0, 2]]}),
        (argument, ("nothing says how many", "num_devices"), {"replica_groups": []}),
        (argument, ("reduces by 'sub'", "add, mul, max"), {"replica_groups": PAIRS, "computation": "sub"}),
        (mw.errors.DTypeError, ("and",), {"replica_groups": PAIRS, "computation": "and"}),
    ):
        with refuses(error, *words):
            collective("all_reduce", **attributes)
    for error, words, pairs in (
        (argument, ("[(0, 1), (1, 0)]",), [(0, 1, 2)]),
        (sharding, ("name device -1",), [(-1, 0)]),
        (argument, ("may occur once",), [(0, 1), (0, 2)]),
    ):
        with refuses(error, *words):
            collective("collective_permute", source_target_pairs=pairs)
    with refuses(mw.errors.ArgumentTypeError, "dimension"):
        collective("all_gather", replica_groups=PAIRS, dimension=0.5)
    b = Builder()
    x = b.parameter(0, "f32[4,4]")
    b.set_sharding(x, SQUARES)
    y = b.op("all_reduce", b.op("Sharding", x, sharding=SQUARES), replica_groups=PAIRS)
    with refuses(sharding, "leave out the shardings"):
        b.build(y)


def test_types_and_constants_in_both_spellings(refuses):
    b = Builder()
    given = {t: b.parameter(i, t).aval for i, t in enumerate(("s32[2]", "i32[2]", "pred[]", "bf16[2,3]", "f64[1]"))}
    assert [str(a) for a in given.values()] == ["i32[2]", "i32[2]", "bool[]", "bf16[2,3]", "f64[1]"]
    assert str(b.parameter(9, mw.ShapeDtypeStruct((2,), "int8")).aval) == "i8[2]"
    types = [b.constant(1.5), b.constant([1, 2]), b.constant(np.float64(2)), b.constant(3, "f32[2,2]")]
    assert [str(v.aval) for v in types] == ["f32[]", "i32[2]", "f64[]", "f32[2,2]"]
    assert b.op("iota", dtype="int32", shape=(3,), dimension=0).dtype == np.int32
    with refuses(mw.errors.ArgumentError, "'f33[2]' is no type"):
        b.parameter(5, "f33[2]")
    with refuses(mw.errors.ArgumentError, "shape (3,) does not fill f32[2]"):
        b.constant([1, 2, 3], "f32[2]")
    with refuses(mw.errors.ArgumentError, "there is no parameter 5"):
        b.build(types[0])


def test_wide_programs_stay_wide():
    b = Builder()
    x = b.parameter(0, "f64[2]")
    program = b.build(b.op("mul", x, 1 / 3))
    assert np.asarray(program(np.array([1.0, 3.0])))[0] == 1 / 3


def test_the_width_of_numbers_is_not_remembered_beyond_a_wide_program():
    with wide_types():
        assert mw.typeof(1j).dtype == np.complex128
    assert mw.typeof(1j).dtype == np.complex64


def test_what_is_no_op_is_refused(refuses):
    b, other = Builder(), Builder()
    x, foreign = b.parameter(0, "f32[4,4]"), other.parameter(0, "f32[4,4]")
    by = {"dimension_numbers": PRODUCT}
    for error, words, call in (
        ("ArgumentError", ("'dot_genral'", "'dot_general'"), lambda: b.op("dot_genral", x, x)),
        ("ArgumentError", ("needs the attribute 'dimension_numbers'", "(optional)"), lambda: b.op("dot_general", x, x)),
        ("ArgumentError", ("add has no attribute 'axis'", "none"), lambda: b.op("add", x, x, axis=1)),
        ("ArgumentTypeError", ("add: expected 2 operands, got 1",), lambda: b.op("add", x)),
        ("ArgumentError", ("dot_general takes 2 operands (lhs, rhs), got 1",), lambda: b.op("dot_general", x, **by)),
        ("ArgumentError", ("operand 1 of add", "another builder"), lambda: b.op("add", x, foreign)),
        ("ArgumentError", ("a region takes what it needs",), lambda: b.region(lambda: b.op("neg", x))),
        ("ArgumentTypeError", ("operand 1 of add is a ndarray", "constant"), lambda: b.op("add", x, X)),
        ("ArgumentError", ("number 0 is taken",), lambda: b.parameter(0, "f32[]")),
        ("ShapeError", ("contracting",), lambda: b.op("dot_general", x, x, dimension_numbers=[[[3], [0]], [[], []]])),
        ("DTypeError", ("mul",), lambda: b.op("mul", b.constant(1), 0.5)),
        ("ArgumentTypeError", ("'{devices=",), lambda: b.set_sharding(x, 3)),
        ("ArgumentError", ("got none",), lambda: b.build()),
    ):
        with refuses(getattr(mw.errors, error), *words):
            call()
