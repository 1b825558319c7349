"""The programs that verification runs, compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.executable import Executable
from meshwright.runtime.pjrt import platforms
from meshwright.sharding.rule import WINDOW
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.work import operations
from meshwright.verification.request import Request
from meshwright.verification.widen import widened

#: sums as plain loops, not as trees, which take longer to compile and, unoptimized, to run; one module for LLVM
_PLAIN = (("xla_disable_hlo_passes", "tree_reduction_rewriter"), ("xla_cpu_parallel_codegen_split_count", 1))
#: XLA's kernels have no float64 convolutions. They become loops, which are 14 times as fast if LLVM optimizes them
_LOOPS = (("xla_backend_optimization_level", 1), ("xla_llvm_disable_expensive_passes", False))
#: the operations of convolutions per equation from which on optimizing takes less time than it saves
_WORTH_IT = 500_000


@dataclass(frozen=True)
class WidePrograms:
    """Both programs in float64, compiled for arguments of the types that the program has.

    ``narrow`` has the names of ops that kept their types.
    """

    part: Partition
    narrow: frozenset[str]
    whole: Executable
    parts: Executable

    @staticmethod
    def of(request: Request) -> WidePrograms:
        part, name, progress = request.part, request.name, request.progress
        progress("in float64", 0, 4)
        whole, local = widened(part.source), widened(part.jaxpr)
        meant = {
            local.vars[v]: (whole.vars[g], lo)
            for v, (g, lo) in part.stands_for.items()
            if v in local.vars and g in whole.vars
        }
        wide = dataclasses.replace(part, source=whole.jaxpr, jaxpr=local.jaxpr, stands_for=meant)
        avals = part.source.in_avals
        progress("compiling the unpartitioned program", 1, 4)
        unpartitioned = compiled(from_narrow(wide.source, avals), name)
        progress("compiling the partitioned program", 2, 4)
        partitioned = compiled(from_narrow(virtual_program(wide, copies=True), avals), name)
        return WidePrograms(wide, frozenset(whole.narrow | local.narrow), unpartitioned, partitioned)


def compiled(jaxpr: ClosedJaxpr, name: str) -> Executable:
    """Compile with a short compile time rather than fast code, as the program runs only a few times."""
    flags = () if platforms.is_plugin() else (*_PLAIN, *(_LOOPS if _is_convolved(jaxpr) else ()))
    return compile_jaxpr(jaxpr, name, [default_sharding()] * len(jaxpr.out_avals), quick=True, flags=flags)


def _is_convolved(jaxpr: ClosedJaxpr) -> bool:
    """Whether convolutions are a large part of the program."""
    eqns = list(all_eqns(jaxpr.jaxpr))
    return sum(n for e in eqns if (n := operations(e)) > _WORTH_IT and _has_windows(e)) > _WORTH_IT * len(eqns)


def _has_windows(eqn: JaxprEqn) -> bool:
    """Whether an equation is a product with windows, that is, a convolution."""
    rule = eqn_rule(eqn)
    return rule.is_product and any(f.kind == WINDOW for f in rule.factors)


def from_narrow(jaxpr: ClosedJaxpr, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program with arguments of types ``avals``, which it converts, so that both programs read the same arrays."""
    inner = jaxpr.jaxpr
    invars, eqns = list(inner.invars), []
    for i, (var, aval) in enumerate(zip(inner.invars, avals)):
        if var.aval.dtype != aval.dtype:
            invars[i] = Var(aval)
            eqns.append(JaxprEqn(ConvertElementType(var.aval.dtype), [invars[i]], [var]))
    return jaxpr.replace(jaxpr=inner.replace(invars=invars, eqns=[*eqns, *inner.eqns]))
