"""Kernels behind XLA's foreign function interface: ours to call, their user's to write."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.errors import ArgumentError, ArgumentTypeError, CompileError, DifferentiationError, ShapeError

SQUARE = mw.ShapeDtypeStruct((3, 3), "float32")
STATUS = mw.ShapeDtypeStruct((), "int32")


def cholesky(a, **options):
    """LAPACK's, which ``jaxlib`` brings: of matrices in row-major order it reads and writes the upper triangle."""
    lead = a.shape[:-2]
    types = (mw.ShapeDtypeStruct(a.shape, a.dtype), mw.ShapeDtypeStruct(lead, "int32"))
    call = mw.ffi.ffi_call("lapack_spotrf_ffi", types, input_output_aliases={0: 0}, **options)
    return mnp.triu(call(a, uplo=np.uint8(ord("L")))[0])


@pytest.fixture
def matrices():
    a = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
    return a @ a.transpose(0, 2, 1) + 3 * np.eye(3, dtype=np.float32)


def upper(a):
    return np.linalg.cholesky(a).swapaxes(-1, -2)


@pytest.mark.parametrize("method", [None, "sequential_unrolled", "expand_dims", "broadcast_all"])
def test_of_each_entry(method, matrices):
    mapped = mw.vmap(lambda a: cholesky(a, vmap_method=method), in_axes=1)
    np.testing.assert_allclose(mapped(matrices.swapaxes(0, 1)), upper(matrices), rtol=1e-5, atol=1e-6)


def test_layouts(matrices):
    columns = cholesky(matrices[0], input_layouts=[(1, 0)], output_layouts=[(1, 0), None])
    diagonal = np.diag(np.linalg.cholesky(matrices[0]))  # it has written the other triangle
    np.testing.assert_allclose(columns, np.triu(matrices[0], 1) + np.diag(diagonal), rtol=1e-5)


def test_on_meshes(matrices):
    mesh = mw.make_mesh((4,), ("d",))
    rows = NamedSharding(mesh, P("d"))
    each = mw.shard_map(lambda a: cholesky(a), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    part = mw.jit(each, in_shardings=rows).lower(matrices).partition()
    assert part.collectives == []
    part.verify(matrices)
    part = mw.jit(cholesky, in_shardings=rows).lower(matrices).partition()
    assert [c.kind for c in part.collectives] == ["all_gather"]
    part.verify(matrices)
    np.testing.assert_allclose(mw.jit(each, in_shardings=rows)(matrices), upper(matrices), rtol=1e-5, atol=1e-6)


def test_attributes_are_typed():
    def f(x):
        call = mw.ffi.ffi_call("nobody's", mw.ShapeDtypeStruct((2,), "float32"), has_side_effect=True)
        return call(
            x, i=1, f=0.5, h=np.float16(1.5), u=np.uint8(3), n=np.float32("nan"), b=True, s='"', d={"k": np.int16(-2)},
            a=np.arange(3, dtype=np.int32), l=(1, 2),
        )  # fmt: skip

    text = mw.jit(f).lower(np.ones(2, np.float32)).as_text()
    for said in (
        "i = 1 : i64", "f = 5.000000e-01 : f64", "h = 1.500000e+00 : f16", "u = 3 : ui8", "n = 0x7FC00000 : f32",
        "b = true", r's = "\22"', "d = {k = -2 : i16}", "a = dense<[0, 1, 2]> : tensor<3xi32>", "l = [1, 2]",
        "has_side_effect = true",
    ):  # fmt: skip
        assert said in text, said


def test_what_is_refused():
    x = np.eye(3, dtype=np.float32)
    call = mw.ffi.ffi_call
    with pytest.raises(DifferentiationError, match="custom_jvp"):
        mw.grad(lambda a: cholesky(a).sum())(x)
    with pytest.raises(CompileError, match="nobody's"):
        call("nobody's", SQUARE)(x)
    with pytest.raises(ArgumentTypeError, match="attribute"):
        call("k", SQUARE)(x, a=None)
    with pytest.raises(ArgumentError, match="vmap_method"):
        call("k", SQUARE, vmap_method="often")
    with pytest.raises(ArgumentError, match="input_layouts"):
        call("k", SQUARE, input_layouts=[(0, 0)])(x)
    with pytest.raises(ShapeError, match="one type"):
        call("k", STATUS, input_output_aliases={0: 0})(x)
    with pytest.raises(ArgumentError, match="legacy_backend_config"):
        call("k", SQUARE, custom_call_api_version=2)(x, a=1)
    with pytest.raises(ArgumentError, match="pycapsule"):
        mw.ffi.register_ffi_target("k", 3)
    with pytest.raises(ArgumentError, match="platform"):
        mw.ffi.register_ffi_target("k", 3, platform="abacus")


KERNEL = r"""
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Scale(float by, int64_t more, ffi::Span<const int32_t> v, ffi::AnyBuffer x,
                        ffi::ResultBuffer<ffi::F32> y) {
  for (size_t i = 0; i < x.element_count(); ++i)
    y->typed_data()[i] = x.typed_data<float>()[i] * by + more + v[1];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(Kernel, Scale, ffi::Ffi::Bind().Attr<float>("by").Attr<int64_t>("more")
    .Attr<ffi::Span<const int32_t>>("v").Arg<ffi::AnyBuffer>().Ret<ffi::Buffer<ffi::F32>>());
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_kernel_that_is_compiled_here(tmp_path):
    (tmp_path / "k.cc").write_text(KERNEL)
    library = tmp_path / "k.so"
    command = ["g++", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{mw.ffi.include_dir()}", "-o", library]
    subprocess.run([*command, tmp_path / "k.cc"], check=True)
    mw.ffi.register_ffi_target("test_scale", mw.ffi.pycapsule(ctypes.CDLL(str(library)).Kernel))
    x = np.arange(6, dtype=np.float32)

    def scaled(x):
        call = mw.ffi.ffi_call("test_scale", mw.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, by=np.float32(0.3), more=2, v=np.array([1, 7], np.int32))

    want = x * np.float32(0.3) + 9
    np.testing.assert_allclose(mw.jit(scaled)(x), want, rtol=1e-6)
    exported = mw.export.export(mw.jit(scaled))(x)
    with pytest.warns(mw.errors.ReplicationWarning, match="test_scale"):
        again = mw.export.deserialize(exported.serialize()).call(x)
    np.testing.assert_allclose(again, want, rtol=1e-6)
