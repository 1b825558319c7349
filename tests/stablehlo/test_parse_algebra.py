"""Fourier transforms and LAPACK kernels in programs of others: read as ops, split by their batch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import linalg as L
from reading_oracle import assert_same, check_text, flat, opaque_ops

import meshwright as mw
from meshwright.errors import ReplicationWarning

RNG = np.random.default_rng(5)
A = RNG.normal(size=(4, 5, 3)).astype(np.float32)
S = RNG.normal(size=(4, 3, 3)).astype(np.float32)
C = (S + 1j * S[::-1]).astype(np.complex64)
POSITIVE = S @ S.swapaxes(1, 2) + np.eye(3, dtype=np.float32)

CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "cholesky": (L.cholesky, POSITIVE),
    "lu": (L.lu, A),
    "qr": (lambda x: L.qr(x, full_matrices=False), A),
    "qr with pivoting": (lambda x: L.qr(x, pivoting=True), A),
    "svd": (L.svd, A),
    "complex svd by qr": (lambda x: L.svd(x, algorithm=L.SvdAlgorithm.QR), C),
    "eigh": (L.eigh, POSITIVE),
    "complex eigh": (L.eigh, C + C.conj().swapaxes(1, 2)),
    "eig": (L.eig, S),
    "complex eig": (L.eig, C),
    "hessenberg": (L.hessenberg, S),
    "triangular solve": (lambda x: L.triangular_solve(x, x[..., :2], left_side=True, lower=True), POSITIVE),
    "adjoint triangular solve": (
        lambda x: L.triangular_solve(x, x, lower=True, transpose_a=True, conjugate_a=True, unit_diagonal=True), C),
    "schur": (L.schur, S),
    "tridiagonal": (L.tridiagonal, POSITIVE),
    "tridiagonal solve": (lambda x: L.tridiagonal_solve(x[..., 0], x[..., 1] + 5, x[..., 2], x), S),
    "fft": (jnp.fft.fft2, C),
    "ifft": (jnp.fft.ifft, C),
    "rfft": (jnp.fft.rfft2, A),
    "irfft": (jnp.fft.irfft, C),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_read_and_split(name: str) -> None:
    """From StableHLO and from HLO; five rows of matrices on four devices leave garbage, which no kernel may mind."""
    fun, x = CASES[name]
    lowered = jax.jit(fun).lower(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplicationWarning)
        check_text(lowered.as_text(), x)
        program = mw.load(lowered.compiler_ir("hlo").as_hlo_text())
    assert opaque_ops(program) == []
    want = [np.asarray(y) for y in jax.tree.leaves(jax.jit(fun)(x))]
    assert_same(flat(program(x)), want)
    head = re.compile(r"(func.func public @main\(%arg0: tensor<[\dx]*(?:complex<f32>|f32)>)")
    more = np.concatenate([x, x[:1]])
    text = jax.jit(fun).lower(more).as_text().replace("num_partitions = 1", "num_partitions = 4")
    text, count = head.subn(r'\1 {mhlo.sharding = "{devices=[4,1,1]<=[4]}"}', text)
    assert count == 1
    part = mw.load(text).partition()
    assert part.bytes_sent == 0
    part.verify(more)


def test_stablehlo_cholesky_of_the_upper_triangle() -> None:
    text = """func.func @main(%x: tensor<4x3x3xcomplex<f32>>) -> tensor<4x3x3xcomplex<f32>> {
      %0 = "stablehlo.cholesky"(%x) {lower = false} : (tensor<4x3x3xcomplex<f32>>) -> tensor<4x3x3xcomplex<f32>>
      return %0 : tensor<4x3x3xcomplex<f32>>
    }"""
    x = (C @ C.conj().swapaxes(1, 2) + np.eye(3)).astype(np.complex64)
    program = mw.load(text)
    assert opaque_ops(program) == []
    u = np.asarray(program(x))
    np.testing.assert_allclose(u.conj().swapaxes(1, 2) @ u, x, rtol=1e-5, atol=1e-5)
    assert np.all(np.tril(u, -1) == 0)


def test_a_kernel_on_rows_is_kept() -> None:
    """In row-major order a kernel sees the transposed matrices: that is not what our op computes."""
    text = jax.jit(L.hessenberg).lower(S).as_text().replace("dense<[1, 2, 0]>", "dense<[2, 1, 0]>")
    with pytest.warns(ReplicationWarning, match="lapack_sgehrd_ffi.* runs whole on every device"):
        program = mw.load(text)
    assert opaque_ops(program) == ["stablehlo.custom_call"]
