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


def _decomposed(a, full):
    """NumPy's singular values, and how far a decomposition by the form for TPUs is from one, both of a scale of 1."""
    u, s, vh = run(lambda a: linalg.svd(a, full_matrices=full), a)
    k, most = s.shape[-1], max(np.abs(a).max(), 1e-37)
    assert u.shape[-2:] == (a.shape[-2],) * 2 if full else u.shape[-2:] == (a.shape[-2], k)
    off = [(u[..., :k] * s[..., None, :]) @ vh[..., :k, :] / most - a / most]
    for basis in (u, vh.conj().swapaxes(-1, -2)):
        off.append(basis.conj().swapaxes(-1, -2) @ basis - np.eye(basis.shape[-1]))
    off.append(s / most - np.linalg.svd(a, compute_uv=False) / most)
    return max(np.abs(x).max() for x in off)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (3, 7), (2, 3, 8, 5)])
def test_svd(dtype, full, shape):
    assert _decomposed(matrix(*shape, dtype=dtype), full) < 2e-5


SPECIAL = {
    "rank 2 of 5": matrix(6, 2) @ matrix(2, 5),
    "zeros": np.zeros((4, 3), "float32"),
    "identity": np.eye(5, 3, dtype="float32"),
    "equal values": np.eye(4, dtype="float32")[:, ::-1] * -3,
    "large": matrix(4, 4) * np.float32(1e20),
    "small": matrix(5, 4) * np.float32(1e-25),
    "one": matrix(1, 1),
    "graded": np.diag(np.logspace(0, -12, 12)).astype("float32")[:, ::-1],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_svd_of_special_matrices(name):
    a = np.ascontiguousarray(SPECIAL[name])
    assert _decomposed(a, False) < 2e-5 and _decomposed(a, True) < 2e-5
    (values,) = run(lambda a: [linalg.svd(a, compute_uv=False)], a)
    np.testing.assert_allclose(values, np.linalg.svd(a, compute_uv=False), atol=2e-5 * max(np.abs(a).max(), 1e-37))


def test_svd_of_what_is_not_finite_is_nan():
    for value in (np.nan, np.inf):
        a = matrix(3, 3)
        a[1, 2] = value
        assert np.isnan(run(lambda a: [linalg.svd(a, compute_uv=False)], a)[0]).all()


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
    [("tpu", linalg.eig, "geev.*on CPUs and GPUs only"), ("cuda", linalg.hessenberg, "gehrd.*on CPUs only"),
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
