"""A loop that only this file knows goes through everything: what it is told by is its class alone.

``repeat`` runs its body a number of times. It has a view of its body, its inverse, a trip count and a lowering, and no
rule of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.api.partitioned import PartitionedProgram
from meshwright.errors import DifferentiationError, ShapeError, VerificationError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.op import REGISTRY, Builder
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.collective.all_reduce import Psum
from meshwright.ops.composite import emit_traced
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.elementwise.table import sin
from meshwright.spmd import report
from meshwright.spmd.passes.dead import drop_dead
from meshwright.spmd.passes.hoist import hoist_invariants
from meshwright.spmd.varying import Variance
from meshwright.verification.domains import input_domains


@dataclass(frozen=True)
class Repeat(ControlOp):
    """``carry = body(*consts, *carry)``, ``times`` times."""

    jaxpr: ClosedJaxpr
    num_consts: int
    times: int
    name: ClassVar[str] = "repeat"

    def bodies(self) -> tuple[Body, ...]:
        return (Body(self.jaxpr, self.num_consts, len(self.jaxpr.out_avals)),)

    def with_bodies(self, bodies: Sequence[Body]) -> Repeat:
        (body,) = bodies
        return Repeat(body.jaxpr, body.num_consts, self.times)

    def trips(self, operands: Sequence[Atom]) -> int:
        return self.times

    def expand(self, *operands: Any) -> list[Any]:
        consts, carry = operands[: self.num_consts], list(operands[self.num_consts :])
        for _ in range(self.times):
            carry = eval_jaxpr(self.jaxpr, self.jaxpr.consts, *consts, *carry)
        return carry

    def emit(self, b: Builder, *operands: Any) -> Any:
        return emit_traced(b, self.expand, self.name, *operands)


def repeat(body: Callable[..., Any], consts: Sequence[Any], carry: Sequence[Any], times: int = 3) -> list[Any]:
    jaxpr = trace_to_jaxpr(lambda *xs: body(*xs), [typeof(x) for x in (*consts, *carry)], "body")
    return Repeat(jaxpr, len(consts), times).bind(*consts, *carry)


def layer(w: Any, x: Any) -> list[Any]:
    return [mnp.tanh(x @ w)]


def net(w: Any, x: Any) -> Any:
    return repeat(layer, [w], [x])[0]


def written_out(w: Any, x: Any) -> Any:
    for _ in range(3):
        (x,) = layer(w, x)
    return x


RNG = np.random.default_rng(11)
W, X = RNG.standard_normal((8, 8)).astype(np.float32), RNG.standard_normal((4, 8)).astype(np.float32)
MESH = mw.make_mesh((2, 2), ("x", "y"))


@pytest.fixture(autouse=True, scope="module")
def only_here() -> Iterator[None]:
    assert REGISTRY["repeat"] is Repeat and mw.extend.core.primitives.repeat_p.name == "repeat"
    yield
    del REGISTRY["repeat"]


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# --- on one device ------------------------------------------------------------------------------------------
def test_it_is_traced_and_runs():
    assert "repeat[" in str(mw.make_jaxpr(net)(W, X))
    close(net(W, X), written_out(W, X))
    close(mw.jit(net)(W, X), written_out(W, X))
    with pytest.raises(ShapeError, match=r"repeat: operand 1 is f32\[8\], the body takes f32\[4,8\]"):
        Repeat(mw.make_jaxpr(lambda w, x: layer(w, x))(W, X), 1, 3).bind(W, X[0])
    with pytest.raises(ShapeError, match=r"repeat: carry 0 goes in as .* and comes out as"):
        repeat(lambda w, x: [x[:2]], [W], [X])


def test_forward_derivatives():
    for given in [(W, X * 0), (W * 0, X), (W, X)]:
        got, want = (mw.jvp(f, (W, X), given) for f in (net, written_out))
        close(got[0], want[0])
        close(got[1], want[1])


def test_reverse_mode_is_refused_where_it_is_needed():
    with pytest.raises(DifferentiationError, match="reverse-mode differentiation of repeat is not known"):
        mw.grad(lambda w: net(w, X).sum())(W)
    got, want = (mw.grad(lambda s, f=f: (s * f(W, X)).sum())(X) for f in (net, written_out))
    close(got, want)


@pytest.mark.parametrize("axes", [(None, 0), (0, None), (1, 1)])
def test_it_is_batched(axes):
    ws, xs = (
        RNG.standard_normal((*a.shape[: d or 0], 5, *a.shape[d or 0 :])).astype(np.float32)
        for a, d in zip((W, X), axes)
    )
    args = [a if d is not None else one for a, d, one in zip((ws, xs), axes, (W, X))]
    close(*(mw.vmap(f, axes)(*args) for f in (net, written_out)))


def test_checks_go_through_it():
    def f(x):
        def body(x):
            mw.checkify.check((x < 5).all(), "x is too large: {}", x[0])
            return [x * 2]

        return repeat(body, [], [x])[0]

    checked = mw.jit(mw.checkify.checkify(f))
    error, out = checked(np.ones(2, np.float32))
    assert error.get() is None and out.tolist() == [8, 8]
    assert checked(np.full(2, 3.0, np.float32))[0].get() == "x is too large: 6.0"


# --- on a mesh ----------------------------------------------------------------------------------------------
def partitioned(w: P, x: P) -> PartitionedProgram:
    shardings = NamedSharding(MESH, w), NamedSharding(MESH, x)
    return mw.jit(lambda w, x: net(w, x), in_shardings=shardings).lower(W, X).partition()


def test_it_is_propagated_through_partitioned_and_explained():
    part = partitioned(P(None, "y"), P("x", None))
    (carry,) = next(e for e in part.jaxpr.eqns if isinstance(e.op, Repeat)).outvars
    assert carry.aval.shape == (2, 4)  # the shardings of both operands reached it
    close(part(W, X), written_out(W, X))
    assert {c.count for c in part.collectives} == {3} and "3 times" in part.explain()
    assert part.work.whole == 3 * (2 * 4 * 8 * 8 + 4 * 8) and part.work.redundancy == 1
    assert part.verify().worst.relative < 1e-12
    assert part.time().seconds > 0 and part.memory.peak_bytes > 0


def test_a_mistake_in_it_is_found_in_its_round():
    part = partitioned(P("y", None), P("x", None))

    def mistake(eqn: JaxprEqn) -> JaxprEqn:
        return eqn.replace(op=sin) if eqn.op.name == "tanh" else in_regions(eqn, lambda body: replaced(body, mistake))

    wrong = dataclasses.replace(part.part, jaxpr=replaced(part.jaxpr, mistake))
    with pytest.raises(VerificationError, match=r"they first differ after sin .* in round 0 of the repeat"):
        PartitionedProgram(part.program, wrong).verify()


def test_inputs_lie_where_its_body_is_defined():
    jaxpr = trace_to_jaxpr(lambda x: repeat(lambda x: [mnp.log(x)], [], [x]), [typeof(X)])
    (domain,) = input_domains(jaxpr)
    assert domain.low >= 0


# --- communication passes -----------------------------------------------------------------------------------
def local(function: Callable[..., Any]) -> ClosedJaxpr:
    with extend_axis_env(dict(MESH.shape)):
        return trace_to_jaxpr(function, [typeof(W), typeof(X), typeof(X)])


def test_what_is_dead_leaves_it():
    def body(w, x, y):
        return [x + 1, y + lax.psum(w, "x")[:4]]

    after = drop_dead(local(lambda w, x, y: repeat(body, [w], [x, y])[:1]))
    (eqn,) = after.eqns
    assert len(eqn.invars) == len(eqn.outvars) == 1 and not any(isinstance(e.op, Psum) for e in all_eqns(after.jaxpr))


def test_what_is_the_same_in_each_run_leaves_it():
    before = local(lambda w, x, y: repeat(lambda w, x: [x @ lax.psum(w, "x")], [w], [x]))
    after = hoist_invariants(before.jaxpr, Variance(before.jaxpr, [frozenset("x")] * 3))
    assert [c.count for c in report.collectives(before.jaxpr)] == [3]
    assert [c.count for c in report.collectives(after)] == [1] and after.eqns[0].op.name == "psum"


def test_it_keeps_track_of_what_varies():
    def f(x):
        return mw.shard_map(
            lambda x: repeat(lambda x: [x + lax.axis_index("x").astype(np.float32)], [], [x * 0]),
            mesh=mw.make_mesh((2,), ("x",)),
            in_specs=P(),
            out_specs=[P("x")],
        )(x)[0]

    assert f(np.ones(2, np.float32)).tolist() == [0, 0, 3, 3]
