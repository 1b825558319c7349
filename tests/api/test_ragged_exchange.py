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


def as_jax_writes(given, groups):
    """A program for each of four devices, of JAX's custom call."""
    types = ", ".join("tensor<" + "x".join(map(str, x.shape[1:])) + ("xi32>" if i > 1 else "xf32>")
                      for i, x in enumerate(given))  # fmt: skip
    args = ", ".join(f"%{i}: {t}" for i, t in enumerate(types.split(", ")))
    config = f"{{channel_id = 1 : i64, replica_groups = dense<{groups}> : tensor<2x2xi64>}}"
    result = types.split(", ")[1]
    return mw.load(f"""module attributes {{mhlo.num_partitions = 4 : i32}} {{
  func.func @main({args}) -> {result} {{
    %r = stablehlo.custom_call @ragged_all_to_all(%0, %1, %2, %3, %4, %5)
        {{api_version = 4 : i32, backend_config = {config}}} : ({types}) -> {result}
    return %r : {result}
  }}
}}""")


def exchanged(*args, **options):
    return lax.ragged_all_to_all(*args, axis_name="i", **options)


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
    program = as_jax_writes(given, "[[0, 2], [1, 3]]")
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


def test_of_batches():
    """Of arrays, and of tables, inside and outside the named axis."""
    given = [exchange(seed, 4, 2) for seed in range(3)]
    stacked = [np.stack(x) for x in zip(*given)]
    want = np.stack([moved(*g) for g in given])
    inside = mw.vmap(mw.vmap(exchanged), in_axes=1, out_axes=1, axis_name="i")(*stacked)
    np.testing.assert_array_equal(inside, want)
    np.testing.assert_array_equal(mw.vmap(mw.vmap(exchanged, axis_name="i"))(*stacked), want)
    mesh = mw.make_mesh((4,), ("i",))
    spec = {"mesh": mesh, "in_specs": P(None, "i"), "out_specs": P(None, "i")}
    split = mw.shard_map(lambda *a: mw.vmap(exchanged)(*(x[:, 0] for x in a))[:, None], **spec)
    np.testing.assert_array_equal(mw.jit(split)(*map(mnp.asarray, stacked)), want)
    operand, output, *tables = given[0]
    several = np.stack([operand, 2 * operand, operand - 1], 2), np.stack([output, 3 * output, output + 1], 1)
    rows = mw.vmap(exchanged, in_axes=(1, 0, None, None, None, None))
    got = mw.vmap(rows, axis_name="i")(*several, *tables)
    for k in range(3):
        np.testing.assert_array_equal(got[:, k], moved(several[0][:, :, k], several[1][:, k], *tables))


@pytest.mark.parametrize(("positions", "each"), [(2, 1), (4, 2)])
def test_second_derivatives(positions, each):
    """Rows that go to several positions, and rows that go to one, as JAX differentiates the same in indices."""
    jax = pytest.importorskip("jax")
    operand, output, *tables = exchange(5, positions, each)
    weights = np.random.default_rng(0).normal(size=output.shape).astype("f4")
    mesh = mw.make_mesh((positions,), ("i",))
    one = lambda *args: exchanged(*(x[0] for x in args))[None]  # noqa: E731
    split = mw.shard_map(one, mesh=mesh, in_specs=P("i"), out_specs=P("i"))

    def written(x, y):
        out = jax.numpy.asarray(y)
        for source in range(positions):
            for i, n in enumerate(tables[1][source]):
                a, b = tables[0][source, i], tables[2][source, i]
                out = out.at[i // each, b : b + n].set(x[source, a : a + n])
        return (out**2 * weights).sum()

    ours = mw.jacrev(
        mw.grad(lambda x, y: (split(x, y, *map(mnp.asarray, tables)) ** 2 * weights).sum(), (0, 1)), (0, 1)
    )
    theirs = jax.jacrev(jax.grad(written, (0, 1)), (0, 1))
    for a, b in zip(
        mw.tree.leaves(mw.jit(ours)(operand, output)), jax.tree.leaves(theirs(operand, output)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_is_sent_and_written():
    """One operation for accelerators, with the bytes of the rows, there and back; StableHLO that is read again."""
    given = exchange(0, 4, 1)
    mesh = mw.make_mesh((4,), ("i",))
    split = mw.shard_map(lambda *a: exchanged(*(x[0] for x in a))[None], mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    part = mw.jit(split).partition(*map(mnp.asarray, given))
    (sent,) = part.collectives
    assert (sent.kind, sent.bytes_sent) == ("ragged_all_to_all", given[0][0].nbytes * 3 // 4)
    text = part.as_text("stablehlo")
    assert "@ragged_all_to_all" in text and "all_gather" not in text
    out = mw.load(text)(*(x[:, None] for x in given))
    np.testing.assert_array_equal(out[:, 0], moved(*given))
    back = mw.jit(mw.grad(lambda x, *r: (split(x, *r) ** 2).sum())).partition(*map(mnp.asarray, given))
    kinds = {c.kind: c.bytes_sent for c in back.collectives}
    assert set(kinds) == {"ragged_all_to_all", "all_to_all"}
    assert kinds["ragged_all_to_all"] == sent.bytes_sent


def test_groups_that_are_no_part_of_a_mesh():
    first, second = exchange(2, 2, 2), exchange(3, 2, 2)
    given = [np.stack([a[0], b[0], b[1], a[1]]) for a, b in zip(first, second)]
    program = as_jax_writes(given, "[[0, 3], [1, 2]]")
    want = np.stack([moved(*first)[0], *moved(*second), moved(*first)[1]])
    np.testing.assert_array_equal(program(*given), want)
    program.partition(mw.make_mesh((4,), ("d",))).verify(*given)


def test_random_keys():
    given = exchange(4, 4, 2, width=())
    tables = given[2:]
    keys = [mw.random.split(mw.random.key(seed), x.size).reshape(x.shape) for seed, x in enumerate(given[:2])]
    out = mw.jit(mw.vmap(exchanged, axis_name="i"))(*keys, *tables)
    words = [np.asarray(mw.random.key_data(k)) for k in keys]
    np.testing.assert_array_equal(mw.random.key_data(out), moved(*words, *tables))


@pytest.mark.parametrize(("rows", "slices"), [(3, 0), (0, 2), (0, 0)])
def test_derivatives_where_nothing_is_sent(rows, slices):
    tables = [mnp.zeros((2, slices), int)] * 4
    x, y = mnp.full((2, rows, 1), np.nan), mnp.ones((2, 4, 1))
    f = mw.vmap(exchanged, axis_name="i")
    by_x, by_y = mw.jit(mw.grad(lambda x, y: (f(x, y, *tables) ** 2).sum(), (0, 1)))(x, y)
    np.testing.assert_array_equal(by_x, np.zeros(x.shape))
    np.testing.assert_array_equal(by_y, 2 * np.ones(y.shape))


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
