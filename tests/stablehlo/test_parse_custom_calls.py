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
