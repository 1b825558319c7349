"""Kernels of JAX's Pallas: what they compute runs everywhere, and their hardware's compiler is given the kernel."""

import contextlib
import types

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
pl = pytest.importorskip("jax.experimental.pallas", reason="this release of JAX has no Pallas")
pltpu = pytest.importorskip("jax.experimental.pallas.tpu", reason="this release of JAX has no Pallas")

import jax.numpy as jnp  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright.errors import CompileError, ImportProgramError, KernelWarning, ReplicationWarning  # noqa: E402
from meshwright.interop.jax import kernels  # noqa: E402
from meshwright.interop.jax.kernel_grids import divisible  # noqa: E402
from meshwright.ir.fingerprint import fingerprint  # noqa: E402

MESH = mw.AbstractMesh((2, 2), ("x", "y"))
RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(256, 256)).astype("f4") for _ in range(2))


def product(a, b, cost=None):
    """A product in tiles of 128, whose sum is kept in the result's block."""

    def kernel(a_ref, b_ref, c_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            c_ref[...] = jnp.zeros_like(c_ref)

        c_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    tiles = [(lambda i, j, k: (i, k)), (lambda i, j, k: (k, j)), (lambda i, j, k: (i, j))]
    left, right, out = (pl.BlockSpec((128, 128), index) for index in tiles)
    return pl.pallas_call(
        kernel, grid=(a.shape[0] // 128, b.shape[1] // 128, a.shape[1] // 128), in_specs=[left, right], out_specs=out,
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype), cost_estimate=cost, name="product",
    )(a, b)  # fmt: skip


@jax.custom_vjp
def differentiable(a, b):
    return product(a, b)


differentiable.defvjp(lambda a, b: (product(a, b), (a, b)), lambda ab, ct: (product(ct, ab[1].T), product(ab[0].T, ct)))


def sent_out(x):
    """Rows sent to the next device by DMA, which JAX's interpreter does not do for positions along axes."""

    def kernel(x_ref, y_ref, sent, received):
        to = (jax.lax.rem(jax.lax.axis_index("x") + 1, 2), jax.lax.axis_index("y"))
        copy = pltpu.make_async_remote_copy(
            src_ref=x_ref, dst_ref=y_ref, send_sem=sent, recv_sem=received, device_id=to,
            device_id_type=pl.DeviceIdType.MESH,
        )  # fmt: skip
        copy.start()
        copy.wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2, name="sent_out",
    )(x)  # fmt: skip


def test_values_are_those_of_the_interpreted_kernel():
    program = mw.from_jax(product, A, B)
    np.testing.assert_allclose(program(A, B), A @ B, rtol=1e-4, atol=1e-4)
    assert "name=product platforms=('tpu'" in " ".join(str(mw.make_jaxpr(mw.from_jax(product))(A, B)).split())


def test_the_kernel_is_for_its_hardware():
    part = mw.from_jax(product, A, B).partition(MESH)
    on_tpu, on_cpu = (str(part.module(platform)) for platform in ("tpu", "cpu"))
    assert "tpu_custom_call" in on_tpu and "dot_general" not in on_tpu
    assert "tpu_custom_call" not in on_cpu and "dot_general" in on_cpu


def test_programs_with_kernels_are_kept_on_disk_as_others():
    first, again = (fingerprint(mw.from_jax(product, A, B).partition(MESH).jaxpr) for _ in range(2))
    assert first is not None and first == again
    assert first != fingerprint(mw.from_jax(lambda a, b: product(a, b) * 2, A, B).partition(MESH).jaxpr)


def test_in_a_manual_region_each_device_calls_it_on_its_part():
    mesh, spec = jax.sharding.AbstractMesh((2, 2), ("x", "y")), jax.sharding.PartitionSpec("x")
    rows = jax.shard_map(differentiable, mesh=mesh, in_specs=(spec, None), out_specs=spec, check_vma=False)

    def loss(a, b):
        return (rows(a, b) ** 2).sum()

    part = mw.from_jax(jax.grad(loss, argnums=(0, 1)), A, B).partition(mw.make_mesh((2, 2), ("x", "y")))
    assert {c.kind for c in part.collectives} <= {"all_reduce", "all_gather"}
    assert all("kernel_call" not in c.reason for c in part.collectives)
    got, want = part(A, B), jax.grad(lambda a, b: ((a @ b) ** 2).sum(), argnums=(0, 1))(A, B)
    for x, y in zip(got, want):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-2)


def test_derivatives_are_jaxs():
    got = mw.grad(lambda a, b: (mw.from_jax(differentiable)(a, b) ** 2).sum(), argnums=(0, 1))(A, B)
    want = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), argnums=(0, 1))(A, B)
    for x, y in zip(got, want):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-2)


def test_batched_it_is_a_kernel():
    pairs = np.stack([A, B])
    mapped = mw.vmap(mw.from_jax(product), in_axes=(0, None))
    assert str(mw.make_jaxpr(mapped)(pairs, B)).count("kernel_call[") == 1
    np.testing.assert_allclose(mapped(pairs, B), pairs @ B, rtol=1e-4, atol=1e-4)


def test_its_cost_is_what_its_author_states_or_is_counted():
    stated = pl.CostEstimate(flops=10**9, transcendentals=0, bytes_accessed=10**6)
    whole = mw.AbstractMesh((1,), ("x",), machine="v5e")
    counted, as_stated = (
        mw.from_jax(lambda a, b, cost=cost: product(a, b, cost), A, B).partition(whole) for cost in (None, stated)
    )
    assert counted.work.products == (2 * 256**3, 2 * 256**3)
    assert as_stated.work.products == (10**9, 10**9)
    assert as_stated.time().seconds == pytest.approx(10**9 / 197e12, rel=0.01)


def test_a_text_for_tpus_has_the_stated_cost():
    cost = pl.CostEstimate(flops=10**9, transcendentals=5, bytes_accessed=10**6)
    exported = jax.export.export(jax.jit(lambda a, b: product(a, b, cost)), platforms=["tpu"])(A, B)
    with pytest.warns(ReplicationWarning, match="tpu_custom_call"):
        loaded = mw.load(exported.mlir_module())
    assert loaded.partition(MESH).work.device == 10**9 + 5
    with pytest.raises(CompileError, match=r'calls "tpu_custom_call" at .* of which nothing is known here'):
        loaded(A, B)


def test_what_jax_cannot_interpret_is_compiled_alone():
    mesh, spec = jax.sharding.AbstractMesh((2, 2), ("x", "y")), jax.sharding.PartitionSpec("x")
    around = jax.shard_map(sent_out, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    warned = pytest.warns(KernelWarning, match=r"'sent_out'.*compiled for tpu, but not be run elsewhere")
    with warned, pytest.warns(ReplicationWarning, match="tpu_custom_call"):
        part = mw.from_jax(around, A).partition(MESH)
    assert "tpu_custom_call" in str(part.module("tpu"))


def test_what_jax_cannot_lower_at_all_is_refused(monkeypatch):
    def refuse(*_, **__):
        raise NotImplementedError("no such kernel")

    for module, function in (("_PALLAS", "_pallas_call_lowering"), ("_INTERPRETER", "pallas_call_hlo_interpret")):
        monkeypatch.setattr(kernels, module, types.SimpleNamespace(**{function: refuse}))
    with pytest.raises(ImportProgramError, match=r"'product' \(for tpu: no such kernel; for cuda: .*interpreted"):
        mw.from_jax(lambda a: product(a, a), A)


def test_interpreted_kernels_stay_what_they_are():
    def doubled(x):
        def kernel(x_ref, y_ref):
            y_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    program = mw.from_jax(doubled, A)
    assert "kernel_call" not in str(program.jaxpr)
    np.testing.assert_array_equal(program(A), A * 2)


def rows_of(kernel, x, block=8, **options):
    """A kernel that maps blocks of rows to blocks of rows."""
    blocks = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    grid = (x.shape[0] // block,)
    return pl.pallas_call(
        kernel, grid=grid, in_specs=[blocks], out_specs=blocks, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        **options,
    )(x)  # fmt: skip


def doubled(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2 + x_ref[...].sum(0, keepdims=True)


def numbered(x_ref, y_ref):
    y_ref[...] = x_ref[...] + pl.program_id(0)


def drawn(x_ref, y_ref):
    pltpu.prng_seed(0)
    bits = pltpu.bitcast(pltpu.prng_random_bits(x_ref.shape), jnp.uint32)
    y_ref[...] = x_ref[...] + (bits >> 31).astype(jnp.float32)


def kept_in_scratch(x_ref, y_ref, kept):
    kept[...] = x_ref[...] * 2
    y_ref[...] = kept[...] + 1


def split(f, *args, spec=("x",), sizes=(4,), names=("x",)):
    mesh = mw.AbstractMesh(sizes, names)
    shardings = tuple(mw.NamedSharding(mesh, mw.P(*(spec if n == 0 else ()))) for n in range(len(args)))
    part = mw.jit(mw.from_jax(f), in_shardings=shardings).lower(*args).partition()
    part.verify(*args)
    return part


def divided(part):
    """Whether the kernel is divided among the devices without an exchange."""
    return not part.collectives and part.work.redundancy == 1


SCRATCH = {"scratch_shapes": [pltpu.VMEM((8, 256), jnp.float32)]}
PARALLEL = {"compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",))}


@pytest.mark.parametrize(
    ("kernel", "options", "is_divided"),
    [
        (doubled, {}, True),
        (numbered, {}, False),
        (kept_in_scratch, SCRATCH, False),
        (kept_in_scratch, {**SCRATCH, **PARALLEL}, True),
        (doubled, {"input_output_aliases": {0: 0}}, True),
        (doubled, {"cost_estimate": pl.CostEstimate(flops=10**6, transcendentals=0, bytes_accessed=10**6)}, True),
    ],
    ids=["rows", "numbered", "scratch", "parallel", "aliased", "stated"],
)
def test_blocks_of_rows_are_divided_among_devices(kernel, options, is_divided):
    part = split(lambda x: rows_of(kernel, x, **options), A)
    assert divided(part) == is_divided
    assert "tpu_custom_call" in str(part.module("tpu"))


@pytest.mark.parametrize(("sizes", "names", "spec"), [((3,), ("x",), ("x",)), ((2, 4), ("x", "y"), ("y", "x"))])
def test_blocks_are_whole(sizes, names, spec):
    """Of 32 blocks, three devices cannot have equal numbers; columns are no blocks."""
    split(lambda x: rows_of(doubled, x), A, spec=spec, sizes=sizes, names=names)


def test_a_product_is_divided_by_rows_and_columns_but_not_by_what_it_sums():
    mesh = mw.AbstractMesh((2, 2), ("x", "y"))
    left, right, summed = (mw.NamedSharding(mesh, mw.P(*s)) for s in (("x",), (None, "y"), ("y",)))
    multiply = mw.from_jax(product)
    part = mw.jit(multiply, in_shardings=(left, right)).lower(A, B).partition()
    part.verify(A, B, rtol=1e-4, atol=1e-4)
    assert divided(part) and part.out_shardings[0].spec == mw.P("x", "y")
    tiles = mw.NamedSharding(mesh, mw.P("x", "y"))
    part = mw.jit(multiply, in_shardings=(left, summed), out_shardings=tiles).lower(A, B).partition()
    part.verify(A, B, rtol=1e-4, atol=1e-4)
    assert [c.kind for c in part.collectives] == ["all_to_all"]


def test_draws_and_index_maps_that_ask_for_their_step_are_not_divided():
    def by_program(x):
        blocks = pl.BlockSpec((8, 256), lambda i: (i, 0))
        asks = pl.BlockSpec((8, 256), lambda i: (31 - pl.program_id(0), 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(doubled, grid=(32,), in_specs=[asks], out_specs=blocks, out_shape=shape)(x)

    for f in (by_program, lambda x: rows_of(drawn, x)):
        jaxpr = jax.make_jaxpr(f)(A)
        (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "pallas_call")
        assert not divisible({k: v for k, v in eqn.params.items() if k != "interpret"}, [v.aval for v in eqn.invars])


def test_what_vmap_adds_is_divided():
    """Positions along other dimensions do not tell where an entry of the batch is."""
    xs = np.stack([A[:16], B[:16], A[16:32], B[16:32]])
    assert divided(split(jax.vmap(lambda x: rows_of(numbered, x)), xs))
    assert divided(split(jax.vmap(lambda x: rows_of(kept_in_scratch, x, **SCRATCH)), xs))


def test_squeezed_blocks_and_operands_that_all_steps_share():
    def kernel(x_ref, w_ref, y_ref):
        y_ref[...] = x_ref[...] @ w_ref[...]

    def f(x, w):
        row, whole = pl.BlockSpec((pl.squeezed, 16, 256), lambda i: (i, 0, 0)), pl.BlockSpec(memory_space=pltpu.VMEM)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, grid=(4,), in_specs=[row, whole], out_specs=row, out_shape=shape)(x, w)

    assert divided(split(f, np.stack([A[:16], B[:16], A[16:32], B[16:32]]), B))


# --- what is not divided ------------------------------------------------------------------------------------
def counting(x_ref, sums_ref, y_ref):
    """The sums so far, which are kept in an operand."""
    sums_ref[...] += x_ref[...].sum(0, keepdims=True)
    y_ref[...] = x_ref[...] + sums_ref[...]


def counting_by_dma(x_ref, sums_ref, y_ref):
    def add(new, _):
        new[...] = sums_ref[...] + x_ref[...].sum(0, keepdims=True)
        pltpu.sync_copy(new, sums_ref)

    pl.run_scoped(add, pltpu.VMEM((1, 256), jnp.float32), pltpu.SemaphoreType.DMA)
    y_ref[...] = x_ref[...] + sums_ref[...]


@pytest.mark.parametrize("space", [None, pl.ANY])
@pytest.mark.parametrize("kernel", [counting, counting_by_dma])
def test_an_operand_that_steps_write_is_no_different_from_scratch(kernel, space):
    def f(x, sums, interpret=False):
        rows, whole = pl.BlockSpec((8, 256), lambda i: (i, 0)), pl.BlockSpec((1, 256), lambda i: (0, 0))
        whole = whole if space is None else pl.BlockSpec(memory_space=space)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[rows, whole], out_specs=rows, out_shape=shape, interpret=interpret
        )(x, sums)

    part = split(f, A[:32], B[:1])
    assert not divided(part)
    np.testing.assert_allclose(mw.from_jax(f)(A[:32], B[:1]), f(A[:32], B[:1], True), rtol=1e-4, atol=1e-4)


def with_scalars(kernel, scalars, x, out_specs=(), out_shape=(), **options):
    """A kernel on blocks of rows, with scalars that index maps may read."""
    rows = pl.BlockSpec((8, 256), lambda i, *_: (i, 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[rows], out_specs=[rows, *out_specs])
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype), *out_shape]
    return pl.pallas_call(kernel, grid_spec=grid, out_shape=shapes, **options)(scalars, x)


def test_scalars_that_steps_write_are_no_different_from_scratch():
    def kernel(n_ref, x_ref, y_ref):
        n_ref[0] += 1
        y_ref[...] = x_ref[...]

    assert not divided(split(lambda x: with_scalars(kernel, jnp.arange(4), x), A[:32]))


def test_results_in_the_memory_of_scalars_are_whole():
    def kernel(n_ref, x_ref, y_ref, m_ref):
        y_ref[...] = x_ref[...] * 2

    numbers, shape = pl.BlockSpec((1,), lambda i, *_: (i,)), jax.ShapeDtypeStruct((4,), "int32")
    in_place = {"input_output_aliases": {0: 1}}
    split(lambda x: with_scalars(kernel, jnp.arange(4), x, [numbers], [shape], **in_place)[0], A[:32])


@pytest.mark.parametrize(
    ("read", "written", "grid", "is_old"),
    [
        (lambda i, j: (i, j), lambda i, j: (i, j), (4, 2), False),
        (lambda i, j: (0, j), lambda i, j: (i, j), (4, 2), True),
        (lambda k, i, j: (i, j), lambda k, i, j: (i, j), (3, 4, 2), True),
        (lambda i, j, k: (i, j), lambda i, j, k: (i, j), (4, 2, 3), False),
        (None, None, (2,), True),
    ],
    ids=["own", "first", "again", "in a row", "in place"],
)
def test_reading_what_another_step_wrote_is_warned_of(read, written, grid, is_old):
    """JAX's interpreter gives steps the old values."""
    specs = [pl.BlockSpec((8, 128), index) if index else pl.BlockSpec(memory_space=pl.ANY) for index in (read, written)]

    def kernel(x_ref, y_ref):
        if read is None:
            pltpu.sync_copy(x_ref.at[0:8], y_ref.at[8:16])
        else:
            y_ref[...] = x_ref[...] + 1

    def f(x):
        shape, aliases = jax.ShapeDtypeStruct(x.shape, x.dtype), {"input_output_aliases": {0: 0}}
        return pl.pallas_call(kernel, grid=grid, in_specs=specs[:1], out_specs=specs[1], out_shape=shape, **aliases)(x)

    warned = pytest.warns(KernelWarning, match="reads its input 0") if is_old else contextlib.nullcontext()
    with warned:
        mw.jit(mw.from_jax(f)).lower(A[:32])


@pytest.mark.parametrize("options", [{}, {"input_output_aliases": {0: 0}}], ids=["", "aliased"])
def test_the_other_dimension_of_a_grid_may_have_any_number_of_steps(options):
    def f(x, n):
        tiles = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            doubled, grid=(4, n), in_specs=[tiles], out_specs=tiles, out_shape=shape, **options
        )(x)  # fmt: skip

    assert not split(f, A[:32], np.int32(2)).collectives
