"""Fourier transforms and complex numbers on TPUs; compiled figures are the peaks of libtpu 0.0.42 for a v5e."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.predict import predict

MESH, V5E = mw.AbstractMesh((1,), ("x",)), compiler_for("tpu", "v5e")


def real(*shape):
    return mw.ShapeDtypeStruct(shape, np.float32)


def complex_(*shape):
    return mw.ShapeDtypeStruct(shape, np.complex64)


def memory(fun, *args):
    return predict(mw.jit(fun).trace(*args).jaxpr, MESH, compiler=V5E)


def spectrum(x):
    return mnp.abs(mnp.fft.rfft(x))


def there_and_back(x):
    return mnp.fft.ifft(mnp.fft.fft(x) * 2)


def filtered(x):
    return mnp.fft.irfft(mnp.fft.rfft(x) * 2, n=128)


def convolved(x, h):
    n = 2 * x.shape[1]
    return mnp.fft.irfft(mnp.fft.rfft(x, n=n) * mnp.fft.rfft(h, n=n), n=n)[:, : x.shape[1]]


#: with the errors before, in percent: -50, -50, -36, -36, -74, -23, +44, +58, +67, -26, +14, +15, +25
CASES = {
    "scaled": (lambda x: x * (2 + 1j) + 1, [complex_(256, 1024)], 8388608),
    "two results": (lambda x, y: (x * y, x + y), [complex_(256, 1024)] * 2, 16777728),
    "in two stages": (mnp.fft.fft, [complex_(64, 4096)], 11534336),
    "in two stages that run together": (mnp.fft.fft, [complex_(64, 512)], 1445888),
    "of few rows": (there_and_back, [complex_(4, 1024)], 622592),
    "of columns that are no power of two": (there_and_back, [complex_(64, 384)], 1277952),
    "of real numbers": (spectrum, [real(256, 128)], 598528),
    "of an odd number of columns": (spectrum, [real(256, 60)], 295424),
    "in one stage, though long": (spectrum, [real(256, 1000)], 4612096),
    "convolved": (convolved, [real(64, 2048)] * 2, 12067328),
    "of half a spectrum": (filtered, [real(256, 128)], 802816),
    "of real numbers, in two stages": (spectrum, [real(200, 2048)], 10768384),
    "with few factors of two": (mnp.fft.fft, [complex_(256, 336)], 2752512),
}


@pytest.mark.parametrize("name", CASES)
def test_transforms_and_complex_numbers_as_compiled(name):
    fun, args, compiled = CASES[name]
    assert memory(fun, *args).peak_bytes == pytest.approx(compiled, rel=0.03)


@pytest.mark.parametrize("length", [64, 512, 4096])
@pytest.mark.parametrize("fun", [mnp.fft.fft, there_and_back, spectrum, lambda x: mnp.fft.irfft(x)])
def test_whole_spectra_keep_arguments_and_results(fun, length):
    """What a device is given and gives is as large as before, whatever is computed in between."""
    given = real(8, length) if fun is spectrum else complex_(8, length)
    found = memory(fun, given)
    out = mw.eval_shape(fun, given)
    assert found.argument_bytes >= given.size * given.dtype.itemsize
    assert found.output_bytes >= out.size * out.dtype.itemsize


def test_parts_of_a_slice_that_others_read_in_steps_are_cut_together():
    """Slices with steps of slices stay slices of them, as XLA's simplifier has it; 36 % too little if they do not. As
    compiled, four cuts of one shape are one kernel's results, which all live until the last of them is read."""

    def steps(x):
        return sum(x[:, i : i + 512][:, ::2] * (i + 1) for i in range(4))

    assert memory(steps, real(256, 1024)).peak_bytes == 3670016
