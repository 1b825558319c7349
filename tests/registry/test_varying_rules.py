"""Every op states over which axes of a ``shard_map`` its results vary, or is refused there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from samples import DISTINCT, SAMPLES

import meshwright as mw
from meshwright import AbstractMesh, ops
from meshwright import PartitionSpec as P
from meshwright.core.avals import NOWHERE
from meshwright.errors import RuleError
from meshwright.ir.op import REGISTRY, Op
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import typeof
from meshwright.ir.verify import verify

ops.register_all()
OURS = {n: c for n, c in REGISTRY.items() if c.__module__.startswith("meshwright.")}
#: operations of StableHLO whose results are functions of their operands, on whichever device
FUNCTIONS = set(
    "abs add and atan2 bitcast_convert broadcast_in_dim cbrt ceil clamp compare complex concatenate constant convert "
    "convolution cosine count_leading_zeros divide dot_general dynamic_slice dynamic_update_slice exponential "
    "exponential_minus_one fft floor gather imag iota is_finite log log_plus_one logistic map maximum minimum multiply "
    "negate not or pad popcnt power real reduce reduce_precision reduce_window remainder reshape return reverse "
    "round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic "
    "shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose triangular_solve while xor "
    "output_operand_alias case erf_inv top_k erf rng_bit_generator".split()
)
#: what is called of libraries: LAPACK's kernels and annotations
CALLS = re.compile(r"lapack_\w+_ffi|Sharding|\w*barrier")
#: ops that no sample shows, which take the rule that is right for functions of the operands
WITHOUT_SAMPLE = {
    "check": "no result",
    "debug_callback": "no result",
    "ffi_call": "a kernel, as its user promises; with an effect, of none",
    "inspect_sharding": "no result",
    "propagation_barrier": "the operand",
    "sharding_annotation": "the operand",
    "sharding_group": "the operand",
    "pure_callback": "a function, as its user promises",
    "random_wrap": "the operand, as keys",
    "random_unwrap": "the operand, as words",
    "random_use": "the operand",
}


def states_its_own(cls: type[Op]) -> bool:
    return any(getattr(cls, name) is not getattr(Op, name) for name in ("varies", "typed")) or not cls.of_operands


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_op_has_a_rule_or_is_a_function_of_its_operands(name: str) -> None:
    sampled = any(s.op.name == name for s in SAMPLES)
    assert states_its_own(OURS[name]) or sampled or name in WITHOUT_SAMPLE, (
        f"{name}: give it varies() or of_operands = False, or a sample that shows that it is a function of its operands"
    )


@pytest.mark.parametrize("name", sorted({s.op.name for s in DISTINCT if not states_its_own(type(s.op))}))
def test_what_takes_the_default_runs_alike_on_every_device(name: str) -> None:
    """What it is compiled from knows of no device, draws no numbers and calls nobody."""
    for s in DISTINCT:
        if s.op.name == name:
            text = mw.jit(lambda *args, op=s.op: op.bind(*args)).lower(*s.args).as_text()
            used = set(re.findall(r"(?:stablehlo|chlo)\.(\w+)", text)) - {"custom_call"}
            assert used <= FUNCTIONS, f"{s.id}: {used - FUNCTIONS}"
            called = {n for n in re.findall(r"custom_call @(\w+)", text) if not CALLS.fullmatch(n)}
            assert not called, f"{s.id}: {called}"


@pytest.mark.parametrize("name", sorted({s.op.name for s in DISTINCT}))
def test_types_of_results(name: str) -> None:
    """With one operand that varies (each in turn) all results do; with none, none does."""
    mesh = AbstractMesh((2,), ("x",))
    for s in (s for s in DISTINCT if s.op.name == name):
        for varying in range(-1, len(s.args)):
            found: list[Any] = []

            def inside(*args: Any, s: Any = s, varying: int = varying, found: list[Any] = found) -> Any:
                cast = [mw.lax.pcast(x, "x", to="varying") if i == varying else x for i, x in enumerate(args)]
                out = s.op.bind(*cast)
                found[:] = [y.aval for y in (out if s.op.multiple_results else [out])]
                return ()

            whole = tuple(P() for _ in s.args)
            verify(mw.make_jaxpr(mw.shard_map(inside, mesh=mesh, in_specs=whole, out_specs=P()))(*s.args))
            plain = s.op.infer(*map(typeof, s.args))
            want = frozenset() if varying < 0 else frozenset({"x"})
            for got, aval in zip(found, plain if s.op.multiple_results else [plain], strict=True):
                assert got == aval.update(vma=want), f"{s.id}: {got}"


@pytest.mark.parametrize("name", sorted(n for n, c in OURS.items() if not c.of_operands))
def test_what_is_not_known_is_refused(name: str) -> None:
    with extend_axis_env({"x": 2}, checked=True), pytest.raises(RuleError, match="not known over which axes"):
        Op.varies(object.__new__(OURS[name]), NOWHERE)


def test_the_verifier_knows_what_varies() -> None:
    from meshwright.errors import VerifierError
    from meshwright.ops.collective.all_reduce import PVary

    mesh = AbstractMesh((2,), ("x",))
    f = mw.shard_map(lambda x, w: x * w, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    found = mw.make_jaxpr(f)(np.ones(4, np.float32), np.ones(2, np.float32))
    verify(found)
    region = found.eqns[0].op.jaxpr.jaxpr
    (cast,) = (e for e in region.eqns if isinstance(e.op, PVary))
    cast.outvars[0].aval = cast.outvars[0].aval.update(vma=NOWHERE)
    with pytest.raises(VerifierError, match=r"pvary.*declared f32\[2\], the op gives f32\[2\]\{V:x\}"):
        verify(found)
