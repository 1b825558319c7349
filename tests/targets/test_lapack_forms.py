"""Decompositions as they are written for hardware without LAPACK. XLA writes most of these forms out on CPUs too, where
their values are compared with NumPy's."""

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright.errors import RuleError
from meshwright.lax import linalg
from meshwright.runtime.pjrt.buffers import Exporter, execute
from meshwright.runtime.pjrt.compiler import compile_module
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import module_bytecode, module_text

RNG = np.random.default_rng(5)


def run(f, *args, platform="tpu"):
    """``f`` written for a platform, run by XLA on this CPU."""
    jaxpr = mw.make_jaxpr(f)(*args)
    module = lower_to_stablehlo(jaxpr, LoweringOptions(platform=platform))
    assert "lapack_" not in module_text(module)
    loaded = compile_module(module_bytecode(module), "form")
    return [np.from_dlpack(Exporter(b)) for b in execute(loaded, [mw.numpy.asarray(a).buffer for a in args])]


def matrix(*shape, dtype="float32"):
    real = RNG.standard_normal(shape)
    return (real + 1j * RNG.standard_normal(shape)).astype(dtype) if "complex" in dtype else real.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_cholesky(dtype):
    a = matrix(3, 5, 5, dtype=dtype)
    a = a @ a.conj().swapaxes(-1, -2) + 5 * np.eye(5, dtype=dtype)
    (factor,) = run(linalg.cholesky, a)
    np.testing.assert_allclose(factor, np.linalg.cholesky(a), rtol=1e-4, atol=1e-4)
    (bad,) = run(linalg.cholesky, -a)
    assert np.isnan(bad[:, 0, 0]).all()


@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_qr(shape, full):
    a = matrix(*shape)
    q, r = run(lambda a: linalg.qr(a, full_matrices=full), a)
    np.testing.assert_allclose(q @ r, a, atol=1e-5)
    np.testing.assert_allclose(
        q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *q.shape[-1:] * 2)), atol=1e-5
    )
    np.testing.assert_allclose(r, np.triu(r))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_eigh(dtype):
    a = matrix(2, 6, 6, dtype=dtype)
    a = a + a.conj().swapaxes(-1, -2)
    vectors, values = run(linalg.eigh, a)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a), atol=1e-4)
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], atol=1e-4)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("how", [{}, {"transpose_a": True}, {"unit_diagonal": True}, {"lower": True}])
def test_triangular_solve(left, how):
    a, b = matrix(4, 4) + 4 * np.eye(4, dtype="float32"), matrix(4, 4)
    (found,) = run(lambda a, b: [linalg.triangular_solve(a, b, left_side=left, **how)], a, b)
    triangle = np.tril(a) if how.get("lower") else np.triu(a)
    if how.get("unit_diagonal"):
        np.fill_diagonal(triangle, 1)
    triangle = triangle.T if how.get("transpose_a") else triangle
    np.testing.assert_allclose(triangle @ found if left else found @ triangle, b, atol=1e-4)


def test_lu_is_the_compilers():
    a = mw.ShapeDtypeStruct((4, 4), np.float32)
    jaxpr = mw.make_jaxpr(linalg.lu)(a)
    texts = {p: module_text(lower_to_stablehlo(jaxpr, LoweringOptions(platform=p))) for p in ("cpu", "tpu", "cuda")}
    assert "lapack_sgetrf_ffi" in texts["cpu"]
    assert "LuDecomposition" in texts["tpu"] and "cusolver_getrf_ffi" in texts["cuda"]


@pytest.mark.parametrize(
    "platform, f, words",
    [("tpu", linalg.svd, "gesdd.*eigvalsh"), ("cuda", linalg.hessenberg, "gehrd.*on CPUs only"),
     ("cuda", linalg.schur, "gees.*on CPUs only")],
)  # fmt: skip
def test_kernels_without_a_form_are_refused_by_name(platform, f, words):
    part = mw.jit(f, in_shardings=mw.NamedSharding(mw.AbstractMesh((2,), ("x",)), P("x"))).lower(
        mw.ShapeDtypeStruct((8, 4, 4), np.float32)
    )
    part = part.partition()
    name, instead = words.split(".*")
    with pytest.raises(RuleError, match=f"{name}.*no form of this kernel for {platform}.*{instead}.*on the CPU"):
        part.module(platform)


def _three_diagonals(n):
    d = np.full((2, n), 4, np.float32)
    return lambda b: linalg.tridiagonal_solve(d, d, d, b), (2, n, 3)


#: a decomposition, the shape that it is of, and the calls of NVIDIA's libraries, in their order
ON_GPUS = {
    "svd": (linalg.svd, (3, 7, 5), ["cusolver_gesvdj"]),
    "svd, part of the vectors": (lambda a: linalg.svd(a, full_matrices=False), (40, 50), ["cusolver_gesvdj"]),
    "svd, large and wide": (linalg.svd, (20, 1200), ["cusolver_gesvd"]),
    "singular values": (lambda a: linalg.svd(a, compute_uv=False), (2, 40, 33), ["cusolver_gesvdj"]),
    "singular values, large": (lambda a: linalg.svd(a, compute_uv=False), (1200, 20), ["cusolver_gesvd"]),
    "eig": (linalg.eig, (3, 5, 5), ["cuhybrid_eig_real"]),
    "eigh": (linalg.eigh, (5, 5), ["cusolver_syevd"]),
    "cholesky": (linalg.cholesky, (5, 5), ["cusolver_potrf"]),
    "qr": (linalg.qr, (7, 5), ["cusolver_geqrf", "cusolver_orgqr"]),
    "qr, pivoting": (lambda a: linalg.qr(a, pivoting=True), (7, 5), ["cuhybrid_geqp3", "cusolver_orgqr"]),
    "tridiagonal": (linalg.tridiagonal, (2, 5, 5), ["cusolver_sytrd"]),
    "three diagonals": (*_three_diagonals(5), ["cusparse_gtsv2"]),
    "three diagonals of one row": (*_three_diagonals(1), ["cusparse_gtsv2"]),
}


@pytest.mark.parametrize("name", ON_GPUS)
def test_calls_of_libraries_on_gpus(name):
    f, shape, calls = ON_GPUS[name]
    module = lower_to_stablehlo(mw.make_jaxpr(f)(matrix(*shape)), LoweringOptions(platform="cuda"))
    found = [line.split("@")[1].split("(")[0] for line in module_text(module).splitlines() if "custom_call" in line]
    assert [c.removesuffix("_ffi") for c in found] == calls
