"""A function that keeps values for another: both compiled, and as little kept as that takes.

What the derivative of elementwise arithmetic needs is made again of what that was computed of, where this is less. The
fewest bytes are a minimum cut of the values between what has to be computed once and what the second function reads;
arguments and results cost nothing, since they are there. (Source of the idea: Beaumont et al., 2019, and
``min_cut_rematerialization_partition`` of PyTorch's AOTAutograd.)

What is kept stays stored as convolutions leave it. What goes from one compiled program to the next has its dimensions
in the order of its type; were these of PyTorch's order, each image that a forward pass keeps would be transposed at its
end and again where the backward pass begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshwright import lax
from meshwright.api.jit import jit
from meshwright.api.tracing import make_jaxpr
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.ir.flow import Network
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, Var
from meshwright.ir.passes import dead_code, inline_calls
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering.channels_last import channels_last
from meshwright.lowering.orders import inverse
from meshwright.spmd.steptime.traffic import LOOP, fuses

#: the ends of the network
_MADE, _READ = "made", "read"


def compiled_pair(first: Callable[..., Any], second: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """``first(*args)``, which returns results and what it keeps, and ``second(kept, *more)``, both compiled.

    Of the pair that is returned, the first gives what it keeps as a list of arrays, which the second takes. Arguments
    and results among them share their memory.
    """
    jaxpr, (results, kept) = make_jaxpr(first, return_shape=True)(*args)
    tree, own = pytree.structure(results), pytree.structure(kept)
    count = len(jaxpr.out_avals) - own.num_leaves
    free = range(count, len(jaxpr.out_avals)) if config.platform == "cpu" else ()
    after, orders = channels_last(inline_calls(jaxpr), free)
    program, places, again = least_kept(after, count)
    compiled = jit(lambda *args: eval_jaxpr(program, program.consts, *pytree.leaves(args)))

    def forward(*args: Any) -> tuple[Any, list[Any]]:
        outs = compiled(*args)
        return pytree.unflatten(tree, outs[:count]), [outs[i] for i in places]

    def backward(kept: list[Any], *more: Any) -> Any:
        values = enumerate(eval_jaxpr(again, again.consts, *kept), count)
        whole = [lax.transpose(x, inverse(orders[i])) if i in orders else x for i, x in values]
        return second(pytree.unflatten(own, whole), *more)

    return forward, jit(backward)


def least_kept(closed: ClosedJaxpr, count: int) -> tuple[ClosedJaxpr, list[int], ClosedJaxpr]:
    """What to keep of a program's results behind the first ``count``, so that they can be made again.

    Returns:
      The program with these results instead; which of its results are kept; and the program that makes of these what
      the results behind the first ``count`` were.
    """
    jaxpr, results = closed.jaxpr, closed.jaxpr.outvars[:count]
    kept, made = _fewest_bytes(jaxpr, count)
    outs = [*results, *(v for v in kept if v not in results)]
    first = dead_code(closed.replace(jaxpr=jaxpr.replace(outvars=outs)))
    eqns = [e for e in jaxpr.eqns if not made.isdisjoint(e.outvars)]
    again = jaxpr.replace(invars=kept, eqns=eqns, outvars=jaxpr.outvars[count:])
    return first, [outs.index(v) for v in kept], closed.replace(jaxpr=again)


def _fewest_bytes(jaxpr: Jaxpr, count: int) -> tuple[list[Var], set[Var]]:
    """Values of which all results behind the first ``count`` can be made, the fewest bytes; and those made on the way.

    Of equally few, those nearest to the results.
    """
    network = Network()
    there = {*jaxpr.invars, *jaxpr.outvars[:count]}
    wanted = [v for v in jaxpr.outvars[count:] if isinstance(v, Var) and v not in jaxpr.constvars]
    for var in dict.fromkeys(wanted):
        network.edge((var, "out"), _READ, math.inf)
    values = [*jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)]
    for var in values:
        network.edge((var, "in"), (var, "out"), 1 if var in there else max(var.aval.nbytes, 2))
    for var in jaxpr.invars:
        network.edge(_MADE, (var, "in"), math.inf)
    for eqn in jaxpr.eqns:
        is_cheap = fuses(eqn) == LOOP
        for var in eqn.outvars:
            for atom in eqn.invars if is_cheap else ():
                if isinstance(atom, Var) and atom not in jaxpr.constvars:
                    network.edge((atom, "out"), (var, "in"), math.inf)
            if not is_cheap:
                network.edge(_MADE, (var, "in"), math.inf)
    behind = network.behind(_MADE, _READ)
    kept = [v for v in values if (v, "out") in behind and (v, "in") not in behind]
    return kept, {v for v in values if (v, "in") in behind}
