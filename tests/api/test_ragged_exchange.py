"""``lax.ragged_all_to_all``: rows arrive where the offsets say, under vmap and over devices, with their derivative."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, errors, lax

NAMES = "operand", "output", "input_offsets", "send_sizes", "output_offsets", "recv_sizes"


def exchange(seed, positions, each, rows=7, out_rows=9, width=(2,)):
    """Random slices that do not overlap where they arrive: arguments by position, ``each`` slices for each position."""
    rng = np.random.default_rng(seed)
    k = positions * each
    send = np.zeros((positions, k), np.int32)
    starts, targets, sizes = (np.zeros((positions, k), np.int32) for _ in range(3))
    for to in range(positions):
        places = np.sort(rng.choice(out_rows + 1, 2 * k, replace=2 * k > out_rows + 1)).reshape(k, 2)
        for i, (start, end) in enumerate(rng.permutation(places)):
            source, j = divmod(i, each)
            size = min(end - start, rows)
            send[source, to * each + j] = sizes[to, i] = size
            targets[source, to * each + j] = start
            starts[source, to * each + j] = rng.integers(0, rows - size + 1)
    operand = rng.normal(size=(positions, rows, *width)).astype("f4")
    output = rng.normal(size=(positions, out_rows, *width)).astype("f4")
    return operand, output, starts, send, targets, sizes


def moved(operand, output, starts, send, targets, sizes):
    result, positions = output.copy(), len(operand)
    each = send.shape[1] // positions
    for source in range(positions):
        for i, n in enumerate(send[source]):
            a, b = starts[source, i], targets[source, i]
            result[i // each, b : b + n] = operand[source, a : a + n]
    return result


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("positions", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_rows_arrive(positions, each, seed):
    given = exchange(seed, positions, each)
    f = lambda *args: lax.ragged_all_to_all(*args, axis_name="i")  # noqa: E731
    want = moved(*given)
    np.testing.assert_array_equal(mw.jit(mw.vmap(f, axis_name="i"))(*given), want)
    mesh = mw.make_mesh((positions,), ("i",))
    split = mw.shard_map(lambda *a: f(*(x[0] for x in a))[None], mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    np.testing.assert_array_equal(mw.jit(split)(*map(mnp.asarray, given)), want)


def test_groups_are_apart():
    first, second = exchange(0, 2, 1), exchange(1, 2, 1)
    given = [np.stack([a[0], b[0], a[1], b[1]]) for a, b in zip(first, second)]
    f = lambda *args: lax.ragged_all_to_all(*args, axis_name="i", axis_index_groups=[[0, 2], [1, 3]])  # noqa: E731
    out = np.asarray(mw.vmap(f, axis_name="i")(*given))
    np.testing.assert_array_equal(out[::2], moved(*first))
    np.testing.assert_array_equal(out[1::2], moved(*second))


def test_programs_from_elsewhere():
    """As JAX writes it, in groups, of a program for each device."""
    first, second = exchange(0, 2, 1), exchange(1, 2, 1)
    given = [np.stack([a[0], b[0], a[1], b[1]]) for a, b in zip(first, second)]
    types = ", ".join("tensor<" + "x".join(map(str, x.shape[1:])) + ("xi32>" if i > 1 else "xf32>")
                      for i, x in enumerate(given))  # fmt: skip
    args = ", ".join(f"%{i}: {t}" for i, t in enumerate(types.split(", ")))
    config = "{channel_id = 1 : i64, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}"
    result = types.split(", ")[1]
    program = mw.load(f"""module attributes {{mhlo.num_partitions = 4 : i32}} {{
  func.func @main({args}) -> {result} {{
    %r = stablehlo.custom_call @ragged_all_to_all(%0, %1, %2, %3, %4, %5)
        {{api_version = 4 : i32, backend_config = {config}}} : ({types}) -> {result}
    return %r : {result}
  }}
}}""")
    out = np.asarray(program(*given))
    np.testing.assert_array_equal(out[::2], moved(*first))
    np.testing.assert_array_equal(out[1::2], moved(*second))
    program.partition().verify(*given)


def test_derivatives_go_back():
    operand, output, *tables = exchange(3, 4, 2, width=())
    weights = np.arange(output.size, dtype="f4").reshape(output.shape)
    f = mw.vmap(lambda x, y, *t: lax.ragged_all_to_all(x, y, *t, axis_name="i"), axis_name="i")
    by_x, by_y = mw.grad(lambda x, y: (f(x, y, *tables) * weights).sum(), (0, 1))(operand, output)
    want = moved(np.full_like(operand, np.nan), weights, *tables)
    np.testing.assert_array_equal(by_y, np.where(np.isnan(want), 0, want))
    marks = np.eye(operand.size, dtype="f4").reshape(-1, *operand.shape)
    columns = [(moved(m, np.zeros_like(output), *tables) * weights).sum() for m in marks]
    np.testing.assert_allclose(np.ravel(by_x), columns)


@pytest.mark.parametrize("shapes", [((0, 2), (3, 2)), ((3, 2), (0, 2)), ((3, 0), (4, 0))])
def test_nothing_to_send(shapes):
    x, y = (mnp.ones((2, *s)) for s in shapes)
    t = mnp.zeros((2, 2), int)
    out = mw.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i"), axis_name="i")(x, y, t, t, t, t)
    np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("operand", mnp.ones((2, 3), int), ("one dtype", ".astype")),
        ("operand", mnp.ones((2, 3, 1)), ("rows of one shape",)),
        ("send_sizes", mnp.ones((2, 2)), ("send_sizes", "integers")),
        ("recv_sizes", mnp.ones((2, 3), int), ("recv_sizes", "multiple of the 2 positions")),
        ("input_offsets", mnp.ones((2, 4), int), ("as many", "i32[4]")),
    ],
)
def test_what_does_not_fit(name, value, words, refuses):
    table = mnp.zeros((2, 2), int)
    given = {**dict.fromkeys(NAMES, table), "operand": mnp.ones((2, 3)), "output": mnp.ones((2, 4)), name: value}
    with refuses(errors.MeshwrightError, *words):
        mw.vmap(lambda *a: lax.ragged_all_to_all(*a, axis_name="i"), axis_name="i")(*given.values())
