"""The layer below arrays: computations compiled for numbered devices, and buffers on each of them."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import meshwright as mw
from meshwright import P, lax
from meshwright.builder import ops_by_name
from meshwright.lib import xla_bridge, xla_client

ENV = [("i", 4), ("j", 2)]


@pytest.fixture(scope="module")
def backend():
    return mw.lib.xla_bridge.get_backend("cpu")


def run(backend, computation, replicas, *arguments):
    """Results of all replicas, stacked; arguments are stacked likewise."""
    compiled = backend.compile(computation, xla_bridge.get_compile_options(replicas, 1))
    devices = compiled.local_devices()
    given = [[backend.buffer_from_pyval(x, d) for x, d in zip(a, devices, strict=True)] for a in arguments]
    outs = compiled.execute_sharded_on_local_devices(given)
    return compiled, [np.stack([b.to_py() for b in out]) for out in outs]


def test_a_computation_runs_on_one_device(backend):
    computation = mw.xla_computation(lambda x, y: (x * y, x > y))(np.float32(1), np.float32(1))
    compiled = backend.compile(computation)
    text = compiled.hlo_modules()[0].to_string()
    assert text.startswith("HloModule xla_computation_lambda") and "is_scheduled=true" in text
    given = [backend.buffer_from_pyval(np.float32(v)) for v in (3, 5)]
    product, larger = compiled.execute(given)
    assert (float(product.to_py()), bool(larger.to_py()), product.device()) == (15.0, False, mw.devices()[0])
    assert np.asarray(product).dtype == np.float32 and repr(product) == "Buffer(float32[] on cpu:0)"
    assert product.block_until_ready() is product and product.xla_shape().dimensions() == ()
    assert compiled.cost_analysis()["flops"] >= 1 and compiled.get_compiled_memory_stats().argument_size_in_bytes == 8
    assert len(compiled.serialize()) > 100 and compiled.size_of_generated_code_in_bytes() >= 0
    again, _ = compiled.execute([np.float32(3), mw.numpy.float32(5)])  # what is no buffer is copied
    assert float(again.to_py()) == 15.0
    product.delete()
    assert product.is_deleted() and not larger.is_deleted()


EVERY = {
    "psum_i": lambda x: lax.psum(x, "i"),
    "psum_ji": lambda x: lax.psum(x, ("j", "i")),
    "pmax": lambda x: lax.pmax(x, "j"),
    "all_gather": lambda x: lax.all_gather(x, ("j", "i"), tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x, "i", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "i", 0, 1, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "i", [(0, 2), (2, 3), (1, 0)]),
    "axis_index": lambda x: x + 10 * lax.axis_index("i") + lax.axis_index(("j", "i")),
    "pbroadcast": lambda x: lax.pbroadcast(x, "j", 1),
    "groups": lambda x: lax.psum(x, "i", axis_index_groups=[[0, 3], [1, 2]]),
}


def test_what_replicas_run_is_what_the_axes_mean(backend):
    """All collectives in one program on 8 devices, against the same over named axes of vmap."""
    f = lambda x: tuple(fun(x) for fun in EVERY.values())  # noqa: E731
    x = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)
    _, found = run(backend, mw.xla_computation(f, axis_env=ENV)(x[0]), 8, x)
    whole = mw.vmap(mw.vmap(f, axis_name="j"), axis_name="i")(x.reshape(4, 2, 4, 3))
    for name, got, want in zip(EVERY, found, whole):
        np.testing.assert_allclose(got, np.asarray(want).reshape(got.shape), rtol=1e-6, err_msg=name)


def test_partitions_are_made_by_xla(backend):
    f = lambda a, b: a @ b  # noqa: E731
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    computation = mw.xla_computation(f, in_parts=((4, 1), None), out_parts=(4, 1))(x, x[:4])
    options = xla_bridge.get_compile_options(1, 4)
    compiled = backend.compile(computation, options)
    assert (compiled.num_replicas, compiled.num_partitions) == (1, 4)
    devices = compiled.local_devices()
    given = [[backend.buffer_from_pyval(x[2 * i : 2 * i + 2], d) for i, d in enumerate(devices)],
             [backend.buffer_from_pyval(x[:4], d) for d in devices]]  # fmt: skip
    [out] = compiled.execute_sharded_on_local_devices(given)
    np.testing.assert_allclose(np.concatenate([b.to_py() for b in out]), x @ x[:4])


def test_partitions_by_shardys_annotations_are_made_by_xla(backend):
    text = """module @m {
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
          -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
        %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<4x8xf32>
        return %1 : tensor<4x8xf32>
      }
    }"""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    compiled = backend.compile(text, xla_bridge.get_compile_options(1, 4))
    given = [backend.buffer_from_pyval(x[2 * i : 2 * i + 2], d) for i, d in enumerate(compiled.local_devices())]
    [out] = compiled.execute_sharded_on_local_devices([given])
    np.testing.assert_array_equal(np.concatenate([b.to_py() for b in out], 1), x.T)


def test_the_assignment_says_which_device_is_which_replica(backend):
    computation = mw.xla_computation(lambda x: x + lax.axis_index("i"), axis_env=[("i", 2)])(np.float32(0))
    devices = backend.devices()
    compiled = backend.compile(computation, xla_bridge.get_compile_options(2, 1, [[devices[3]], [devices[1]]]))
    assert compiled.local_devices() == [devices[3], devices[1]]
    assert compiled.device_assignment().tolist() == [[3], [1]]
    given = [[backend.buffer_from_pyval(np.float32(5), d) for d in compiled.local_devices()]]
    [out] = compiled.execute_sharded_on_local_devices(given)
    assert [float(b.to_py()) for b in out] == [5.0, 6.0]
    assert backend.get_default_device_assignment(2, 2) == [devices[:2], devices[2:4]]


def test_texts_and_tuples_compile(backend):
    computation = mw.xla_computation(lambda *xs: sum(xs), tuple_args=True)(np.float32(1), np.float32(2))
    lowered = mw.jit(lambda x, y: x + y).lower(np.float32(1), np.float32(2))
    given = [backend.buffer_from_pyval(np.float32(v)) for v in (1, 2)]
    for source in (computation, computation.as_hlo_text(), lowered.as_text(), lowered.as_text("hlo")):
        [out] = backend.compile(source).execute(given)
        assert float(out.to_py()) == 3.0


def test_what_does_not_fit_is_refused(backend, refuses):
    computation = mw.xla_computation(lambda x, y: x + y)(np.float32(1), np.float32(1))
    compiled = backend.compile(computation)
    one, other = backend.buffer_from_pyval(np.float32(1)), backend.buffer_from_pyval(1, mw.devices()[1])
    with refuses(mw.errors.ArgumentError, "takes 2 arguments, got 1"):
        compiled.execute([one])
    with refuses(mw.errors.ArgumentError, "argument 1 has buffers on cpu:1", "cpu:0"):
        compiled.execute([one, other])
    with refuses(mw.errors.ShapeError, "argument 1 is float64[], the computation takes float32[]"):
        compiled.execute([one, backend.buffer_from_pyval(1.0)])
    with refuses(mw.errors.DeviceError, "9 replicas", "there are 8"):
        backend.compile(computation, xla_bridge.get_compile_options(9, 1))
    with refuses(mw.errors.DeviceError, "backend='tpu'"):
        xla_bridge.get_backend("tpu")
    with refuses(mw.errors.ArgumentError, "execute_sharded_on_local_devices"):
        backend.compile(computation, xla_bridge.get_compile_options(2, 1)).execute([one, one])
    with refuses(mw.errors.CompileError, "could not compile"):
        backend.compile("module { nonsense }")


def test_bridge_names(backend):
    assert xla_bridge.get_device_backend(mw.devices()[2]) is backend is xla_client.get_local_backend()
    assert xla_bridge.backends() == {"cpu": backend} and backend.platform == "cpu"
    assert backend.device_count() == backend.local_device_count() == xla_bridge.device_count() == 8
    assert backend.host_id() == xla_bridge.host_id() == 0 and repr(backend) == "Backend('cpu', 8 devices)"


def test_the_classic_builder(backend):
    b, ops = xla_client.XlaBuilder("f"), xla_client.ops
    shape = xla_client.Shape.array_shape(np.dtype(np.float32), (2, 3))
    x, y = ops.Parameter(b, 0, shape), ops.Parameter(b, 1, shape)
    kept = ops.Select(ops.Gt(x, y), x, y)
    turned = ops.Transpose(kept, (1, 0))
    wide = ops.ConcatInDim(b, [ops.Dot(x, turned), ops.Constant(b, np.ones((2, 1), np.float32))], 1)
    rounded = ops.ConvertElementType(wide, xla_client.PrimitiveType.S32)
    out = ops.Tuple(b, [ops.Reshape(rounded, (6,)), ops.Broadcast(ops.Neg(y), (2,)), ops.Iota(b, shape, 1)])
    assert ops.GetTupleElement(out, 0).shape == (6,) and xla_client.dtype_to_etype(np.int32).name == "S32"
    computation = b.build(out)
    values = [np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([[6, 5, 4], [3, 2, 1]], np.float32)]
    found = backend.compile(computation).execute([backend.buffer_from_pyval(v) for v in values])
    product = values[0] @ np.maximum(*values).T
    np.testing.assert_array_equal(found[0].to_py(), np.c_[product, [1, 1]].astype(np.int32).reshape(6))
    np.testing.assert_array_equal(found[1].to_py(), -np.stack([values[1]] * 2))
    with pytest.raises(AttributeError, match="Bogus"):
        ops.Bogus(x)
    assert b.program(out).partition(num_devices=2).mesh.size == 2


def test_hlo_names_of_the_builder_mean_the_operations_of_hlo():
    """An alias for an op must be written as the operation of that name, operands in order."""
    plain = [n for n, cls in ops_by_name().items() if n not in (cls.name, "Sharding") and not n[0].isupper()]
    assert {"multiply", "maximum", "sine", "subtract", "remainder"} <= set(plain)
    kinds = {"and": "pred", "not": "pred", "or": "pred", "xor": "pred", "popcnt": "s32", "count_leading_zeros": "s32"}
    for name in plain:
        cls = ops_by_name()[name]
        count = len(getattr(cls, "accepts", ()))
        if not count or dataclasses.fields(cls):
            continue
        b = mw.builder.Builder()
        dtype = "s32" if "shift" in name else kinds.get(name, "f32")
        values = [b.parameter(i, f"{dtype}[{3}]") for i in range(count)]
        text = b.build(b.op(name, *values)).as_text("stablehlo")
        operands = ", ".join(f"%arg{i}" for i in range(count))
        assert f".{name} {operands} :" in text or f'.{name}"({operands})' in text, (name, text)


def test_sharding_of_a_mesh_is_what_parts_say():
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    x = np.ones((8, 4), np.float32)
    texts = {
        mw.xla_computation(lambda a: a, in_parts=part)(x).as_hlo_text()
        for part in ((4, 2), mw.NamedSharding(mesh, P("x", "y")))
    }
    assert len(texts) == 1


WITHOUT_JAX = """
import sys
sys.modules["jax"] = None  # where it can be imported, jaxlib takes attributes of its arrays from there
import numpy as np
import meshwright as mw
import meshwright.numpy as mnp

mw.config.update("num_devices", 2)
f = mw.jit(lambda x: (mnp.sin(x).astype("bfloat16"), x > 0, mnp.zeros((0, 2)), x, mw.random.split(mw.random.key(1))))
for _ in range(3):
    print(*(a.dtype.name for a in f(np.ones(3, np.float32))), sep=",")
mesh = mw.make_mesh((2,), ("x",))
x = mw.device_put(np.ones(4, np.float32), mw.NamedSharding(mesh, mw.PartitionSpec("x")))
print(mw.load(mw.jit(lambda x: x + 1).lower(x).as_text())(x), mw.grad(lambda x: mnp.sin(x).sum())(x)[0] > 0)
"""


def test_it_runs_where_jax_is_not_installed_and_logs_nothing():
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout == "bfloat16,bool,float32,float32,key<fry>\n" * 3 + "[2. 2. 2. 2.] True\n"
