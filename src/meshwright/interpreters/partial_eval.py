"""``jax.interpreters.partial_eval``: a function evaluated as far as its known arguments allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.absent import absent as _absent
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.passes import dead_code
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import JaxprTracer as DynamicJaxprTracer
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.transforms.linear_util import WrappedFun
from meshwright.transforms.tape import Tape, replay
from meshwright.transforms.tape import TapeTracer as JaxprTracer

__all__ = [
    "DynamicJaxprTracer", "JaxprTracer", "PartialVal", "dce_jaxpr", "trace_to_jaxpr_dynamic", "trace_to_jaxpr_nounits",
]  # fmt: skip

__getattr__ = _absent("interpreters.partial_eval")


class PartialVal(tuple[Any, Any]):
    """A known value, or the type of an unknown one: ``(None, value)`` or ``(type, None)``."""

    __slots__ = ()

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        return cls((None, const))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        return cls((aval, None))

    def is_known(self) -> bool:
        return self[0] is None

    def get_known(self) -> Any:
        """The value, None if it is not known."""
        return self[1]


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """Compute what depends on known arguments alone, and record the rest.

    The jaxpr is of the unknown arguments and results; the values that it uses are the constants returned last. Results
    for which ``instantiate`` is True are recorded even if they are known.

    Example:
      >>> from meshwright.extend import linear_util
      >>> from meshwright.interpreters.partial_eval import PartialVal, trace_to_jaxpr_nounits
      >>> f = linear_util.wrap_init(lambda x, y: [2 * x, mnp.sin(x) * y])
      >>> given = [PartialVal.known(mnp.float32(3)), PartialVal.unknown(mw.typeof(mnp.ones(4)))]
      >>> jaxpr, (double, product), consts = trace_to_jaxpr_nounits(f, given)
      >>> double.get_known(), product.is_known(), len(jaxpr.eqns)
      (Array(6., dtype=float32), False, 1)
    """
    tape = Tape(STATE.trace)
    unknown = [None if p.is_known() else tape.new_arg(p[0]) for p in pvals]
    with tape:
        with set_trace(tape):
            outs = list(fun.call_wrapped(*(p[1] if u is None else u for p, u in zip(pvals, unknown))))
    forced = [instantiate] * len(outs) if isinstance(instantiate, bool) else list(instantiate)
    recorded = [x for x, force in zip(outs, forced) if force or tape.holds(x)]
    inputs = [u for u in unknown if u is not None]

    def rest(*values: Any) -> list[Any]:
        env = dict(zip(map(id, inputs), values))
        replay(tape.records, env)
        return [env.get(id(x), x) for x in recorded]

    closed = trace_to_jaxpr(rest, [u.aval for u in inputs], fun.__name__)
    pairs = zip(outs, forced)
    results = [PartialVal.unknown(typeof(x)) if f or tape.holds(x) else PartialVal.known(x) for x, f in pairs]
    return closed.jaxpr, results, list(closed.consts)


def trace_to_jaxpr_dynamic(
    fun: WrappedFun, in_avals: Sequence[ShapedArray], **_: Any
) -> tuple[Jaxpr, list[ShapedArray], list[Any]]:
    """Record a function of flat arrays: the jaxpr, the types of its results, and its constants."""
    closed = trace_to_jaxpr(lambda *xs: list(fun.call_wrapped(*xs)), in_avals, fun.__name__)
    return closed.jaxpr, list(closed.out_avals), list(closed.consts)


def dce_jaxpr(
    jaxpr: Jaxpr, used_outputs: Sequence[bool], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[bool]]:
    """The jaxpr of some of its results alone, and which of its arguments it still takes.

    It takes those that it uses, and those for which ``instantiate`` is True.

    Raises:
      ArgumentError: ``used_outputs`` has another length than the results.
    """
    if len(used_outputs) != len(jaxpr.outvars):
        raise ArgumentError(f"dce_jaxpr: used_outputs has {len(used_outputs)} entries for {len(jaxpr.outvars)} results")
    outvars = [v for v, used in zip(jaxpr.outvars, used_outputs) if used]
    inner = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars], outvars=outvars)
    inner = dead_code(ClosedJaxpr(inner, [])).jaxpr
    live = {a for e in inner.eqns for a in e.invars}.union(inner.outvars)
    forced = [instantiate] * len(jaxpr.invars) if isinstance(instantiate, bool) else list(instantiate)
    used = [v in live or keep for v, keep in zip(jaxpr.invars, forced)]
    invars = [v for v, keep in zip(jaxpr.invars, used) if keep]
    return inner.replace(constvars=jaxpr.constvars, invars=invars), used
