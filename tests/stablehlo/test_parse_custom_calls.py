"""Custom calls and composites with a known meaning, and HLO's operations that StableHLO lacks."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import export, lax
from reading_oracle import assert_same, flat, opaque_ops

import meshwright as mw
from meshwright.errors import ImportProgramError

X = np.random.default_rng(5).permutation(np.arange(40) / 7 - 3).reshape(5, 8).astype(np.float32)

COMPARATOR = """
by {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  a = s32[] parameter(2)
  b = s32[] parameter(3)
  ROOT s = pred[] compare(p, q), direction=GT
}
"""


def ops_of(program: mw.api.load.ImportedProgram) -> list[str]:
    return [e.op.name for e in program.jaxpr.eqns]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("which", [lax.approx_max_k, lax.approx_min_k])
def test_approximate_top_k(which, dim):
    """What is asked for approximately is computed exactly, as XLA's host does."""
    fun = jax.jit(lambda x: which(x, 3, reduction_dimension=dim))
    program = mw.load(fun.lower(X).as_text())
    assert "top_k" in ops_of(program) and not opaque_ops(program)
    assert_same(flat(program(X)), [np.asarray(y) for y in fun(X)])


def test_composites_of_serialized_programs():
    """CHLO's operations travel as composites; they are read as what they were."""
    fun = jax.jit(lambda x: (*lax.top_k(x, 3), lax.erf(x), lax.acos(x / 9)))
    program = mw.load(export.export(fun)(X).mlir_module_serialized)
    assert {"top_k", "erf", "acos"} <= set(ops_of(program)) and not opaque_ops(program)
    assert_same(flat(program(X)), [np.asarray(y) for y in fun(X)])


def hlo(body: str, functions: str = "") -> str:
    return f"HloModule m\n{functions}\nENTRY e {{\n  x = f32[5,8] parameter(0)\n  {body}\n}}\n"


K3 = [np.sort(X, 1)[:, :-4:-1], np.argsort(X, 1)[:, :-4:-1].astype(np.int32)]
HLO = {
    "topk": (hlo("ROOT r = (f32[5,3], s32[5,3]) topk(x), k=3, largest=true"), K3),
    "TopK": (hlo('ROOT r = (f32[5,3], s32[5,3]) custom-call(x), custom_call_target="TopK", called_computations={by}',
                 COMPARATOR), K3),
    "PartialReduce": (
        hlo("i = s32[5,8] iota(), iota_dimension=1\n  m = f32[] constant(-inf)\n  n = s32[] constant(-1)\n  "
            'ROOT r = (f32[5,3], s32[5,3]) custom-call(x, i, m, n), custom_call_target="PartialReduce", '
            'called_computations={by}, backend_config={"reduction_dim": 1, "top_k": 3}', COMPARATOR), K3),
    "ApproxTopK": (
        hlo("i = s32[5,8] iota(), iota_dimension=1\n  m = f32[] constant(-inf)\n  n = s32[] constant(-1)\n  "
            'ROOT r = (f32[5,3], s32[5,3]) custom-call(x, i, m, n), custom_call_target="ApproxTopK", '
            "called_computations={by}, api_version=API_VERSION_TYPED_FFI, "
            "backend_config={reduction_dim = 1 : i64, top_k = 3 : i64}", COMPARATOR), K3),
    "halves of words": (
        hlo("w = f64[5,8] convert(x)\n  y = u64[5,8] bitcast-convert(w)\n  "
            'l = u32[5,8] custom-call(y), custom_call_target="X64SplitLow"\n  '
            'h = u32[5,8] custom-call(y), custom_call_target="X64SplitHigh"\n  '
            'ROOT r = u64[5,8] custom-call(h, l), custom_call_target="X64Combine"'),
        [np.roll(X.astype(np.float64).view(np.uint32).reshape(5, 8, 2), 1, -1).reshape(5, 16).view(np.uint64)]),
    "copy": (hlo("ROOT r = f32[5,8] copy(x)"), [X]),
    "bitcast": (hlo("ROOT r = f32[2,20] bitcast(x)"), [X.reshape(2, 20)]),
    "bitcast of another layout": (
        hlo("y = f32[8,5]{0,1} bitcast(x)\n  ROOT r = f32[4,5,2]{0,2,1} bitcast(y)"),
        [X.reshape(5, 2, 4).transpose(2, 0, 1)]),
    "bitcast of another type": (
        hlo("ROOT r = s32[8,5]{0,1} bitcast(x)"), [np.ascontiguousarray(X).view(np.int32).T]),
    "add-dependency": (hlo("t = token[] after-all()\n  ROOT r = f32[5,8] add-dependency(x, t)"), [X]),
    "fusion": (hlo("ROOT r = f32[5,8] fusion(x), kind=kLoop, calls=f",
                   "f {\n  p = f32[5,8] parameter(0)\n  ROOT q = f32[5,8] negate(p)\n}"), [-X]),
    "asinh": (hlo("ROOT r = f32[5,8] asinh(x)"), [np.arcsinh(X)]),
}  # fmt: skip


@pytest.mark.parametrize("name", HLO)
def test_hlo_operations(name):
    text, want = HLO[name]
    program = mw.load(text)
    assert not opaque_ops(program)
    assert_same(flat(program(X)), want)


def test_a_generator_without_state_is_refused():
    with pytest.raises(ImportProgramError, match="rng_get_and_update_state"):
        mw.load(hlo("ROOT r = u64[2] rng-get-and-update-state(), delta=3"))


# --- calls of libraries that compilers know -----------------------------------------------------------------
A = X[:, :5] + 9 * np.eye(5, dtype=np.float32)
DECOMPOSITIONS = {
    "lu": lambda a: lax.linalg.lu(a),
    "qr": lambda a: jax.numpy.linalg.qr(a),
    "eigh": lambda a: jax.numpy.abs(lax.linalg.eigh(a @ a.T)[0]),
    "cholesky": lambda a: lax.linalg.cholesky(a @ a.T),
}


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_of_other_platforms(name, platform):
    fun = jax.jit(DECOMPOSITIONS[name])
    program = mw.load(export.export(fun, platforms=[platform])(A).mlir_module_serialized)
    assert not opaque_ops(program)
    for got, want in zip(flat(program(A)), jax.tree.leaves(fun(A)), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-4)


def test_the_upper_triangle_of_an_eigenproblem():
    config = 'custom_call_target="Eigh", backend_config="0,1,100,1e-6"'
    cut = "m = f32[5,5] slice(x), slice={[0:5], [0:5]}"
    text = hlo(f"{cut}\n  ROOT r = (f32[5,5], f32[5]) custom-call(m), {config}")
    upper = np.triu(X[:, :5]) + np.triu(X[:, :5], 1).T
    np.testing.assert_allclose(flat(mw.load(text)(X))[1], np.linalg.eigvalsh(upper), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("__onednn$matmul", "before it was compiled"), ("__onednn$convolution", "cannot be read"),
        ("SliceToDynamic", "dynamic shape"), ("PadToStatic", "dynamic shape"), ("Eigh", "one operand, of matrices"),
        ("LuDecomposition", "one operand, of matrices"), ("Qr", "one operand, of matrices"),
        ("ProductOfElementaryHouseholderReflectors", "of matrices and a number"), ("TopK", "the program says"),
        ("LayoutConstraint", "the program says"), ("MoveToHost", "the program says"),
    ],
)  # fmt: skip
def test_calls_that_compilers_trust(target, match):
    """XLA's compiler ends the process over some of these."""
    text = hlo(f'ROOT r = (f32[5,8], s32[5]) custom-call(x, x), custom_call_target="{target}"')
    with pytest.raises(ImportProgramError, match=match):
        mw.load(text)


@pytest.mark.parametrize("token", ["", ", token[]"])
def test_python_functions_of_several_results(token):
    """HLO's calls have one result, a tuple; its members may be tokens."""
    config = 'custom_call_target="xla_ffi_python_cpu_callback", custom_call_has_side_effect=true'
    call = f"t = token[] after-all()\n  c = (f32[5,8], s32[5]{token}) custom-call(x{', t' if token else ''}), {config}"
    program = mw.load(hlo(f"{call}\n  ROOT r = s32[5] get-tuple-element(c), index=1"))
    (call,) = (e for e in program.jaxpr.eqns if e.op.in_python)
    assert [str(v.aval) for v in call.outvars] == ["f32[5,8]", "i32[5]"] and len(call.invars) == 1
    with pytest.raises(mw.errors.CallbackError, match="from_jax"):
        program(X)


def test_composites_are_what_they_say():
    """A name is not enough: neither for operations of StableHLO, nor for results of other types."""
    text = """module {{
  func.func @main(%a: tensor<8xf32>) -> tensor<{n}xf32> {{
    %0 = stablehlo.composite "{name}" %a {{decomposition = @impl}} : (tensor<8xf32>) -> tensor<{n}xf32>
    return %0 : tensor<{n}xf32>
  }}
  func.func private @impl(%a: tensor<8xf32>) -> tensor<{n}xf32> {{
    %0 = stablehlo.slice %a [0:{n}] : (tensor<8xf32>) -> tensor<{n}xf32>
    return %0 : tensor<{n}xf32>
  }}
}}"""
    for name, n in ("stablehlo.negate", 8), ("chlo.erf", 4):
        np.testing.assert_array_equal(flat(mw.load(text.format(name=name, n=n))(X[0]))[0], X[0, :n])


def test_calls_of_no_version():
    """PyTorch/XLA writes a version that XLA no longer reads."""
    text = hlo(
        'y = f32[5,8] custom-call(x), custom_call_target="LayoutConstraint", api_version=API_VERSION_UNSPECIFIED\n'
        "  ROOT r = f32[5,8] add(y, y)"
    )
    np.testing.assert_array_equal(flat(mw.load(text)(X))[0], 2 * X)


def test_configurations_that_are_not_text_beside_complex_constants():
    """Bytes that are not UTF-8 have all attributes looked at; there is no Python object for some of them."""
    text = hlo(
        "c = c64[] constant((1, 2))\n  b = c64[5,8] broadcast(c), dimensions={}\n  i = f32[5,8] imag(b)\n"
        '  y = f32[5,8] custom-call(x), custom_call_target="LayoutConstraint", backend_config="\\000\\377"\n'
        "  ROOT r = f32[5,8] add(y, i)"
    )
    np.testing.assert_array_equal(flat(mw.load(text)(X))[0], X + 2)
