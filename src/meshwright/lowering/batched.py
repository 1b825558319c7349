"""The program of each real device: the per-device program, batched over the virtual axes of a target.

A real device executes several mesh positions. It holds their tiles of an array, concatenated in row-major order (if no
axis is real, the whole array). On entry, a sharded dimension is split into tiles by a reshape. The tile index becomes a
batch dimension adjacent to the rest of the dimension. Collectives over a batched axis become sums and reshapes
(``batch_named``). They involve no communication, so they cannot deadlock, and the number of virtual devices is
unlimited.
"""

from __future__ import annotations

from typing import Any

from meshwright.core.config import config
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.op import BatchAxis
from meshwright.ir.passes import DEAD_CODE, Pass, run_passes
from meshwright.ir.state import STATE, extend_axis_env, set_trace
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr
from meshwright.lowering.channels_last import CHANNELS_LAST
from meshwright.lowering.composites import WRITTEN_OUT
from meshwright.lowering.convolutions import CONVOLVING_PRODUCTS
from meshwright.lowering.host_calls import call_once
from meshwright.lowering.joined import JOINED_REDUCTIONS
from meshwright.lowering.onednn import ONEDNN
from meshwright.lowering.products import MERGE_PRODUCTS, SWAPPED_PRODUCTS
from meshwright.lowering.reductions import merge_reductions
from meshwright.lowering.reproducible import in_order
from meshwright.lowering.target import Target
from meshwright.lowering.units import Units, enter, every_of, first_of, held_aval, leave, with_units
from meshwright.ops.control.callback import calls_python
from meshwright.spmd.partition.result import Partition
from meshwright.transforms.batching import BatchTrace


def virtual_program(part: Partition, copies: bool = False) -> ClosedJaxpr:
    """The program on global arrays that is equivalent to running ``part`` on all devices of the mesh.

    For a result that is replicated along an axis but computed by each device separately, the first device's is
    returned. With ``copies``, those of all devices are, stacked along leading dimensions.
    """
    return on_target(part, Target(part.mesh), copies)


def described(part: Partition) -> tuple[Any, ...]:
    """A cache key of everything in ``part`` that determines the programs built from it."""
    ends = part.in_layouts, part.out_layouts, part.source.in_avals, part.source.out_avals
    return part.jaxpr, part.mesh.abstract_mesh, ends, part.sums_in_order


def on_target(part: Partition, target: Target, copies: bool = False) -> ClosedJaxpr:
    """The program of each real device of ``target``; collectives over real axes remain."""
    units = Units.of(part, target, atoms=part.sums_in_order)
    if target.real and not any(target.mesh.axis_size(a) > 1 for a in target.virtual):
        asks = part.sums_in_order or calls_python(part.jaxpr)
        return run_passes(part.jaxpr, _named(part, units)) if asks else part.jaxpr
    return run_passes(part.jaxpr, batching(part, units, copies))


def _named(part: Partition, units: Units) -> tuple[Pass, ...]:
    """The passes that run whether or not there are virtual units."""
    names = Pass(
        "name batched axes",
        lambda j: with_units(j, units),
        "Collectives name the units (axes, or parts of them) to batch over.",
    )
    once = Pass(
        "calls of Python",
        lambda j: call_once(j, units),
        "Callbacks run on the first device only; in manual regions, on each.",
    )
    ordered = Pass("sums in order", lambda j: in_order(j, units), "Sums over devices are added in mesh order.")
    return (names, once, ordered) if part.sums_in_order else (names, once)


def batching(part: Partition, units: Units, copies: bool = False) -> tuple[Pass, ...]:
    """The passes that batch a program over virtual units."""
    inputs = [frozenset(u for atoms in lo.dims for u in units.of_atoms(atoms)) for lo in part.in_layouts]
    return (
        *_named(part, units),
        Pass(
            "merge sums of products", lambda j: merge_reductions(j, inputs, units.virtual),
            "Contractions split over a virtual axis and then summed are rejoined.",
        ),
        Pass(
            "batch virtual axes", lambda j: _batched(j, part, units, copies),
            "The program is batched over all virtual mesh positions.",
        ),
        DEAD_CODE,
        *((WRITTEN_OUT,) if config.platform == "cpu" else ()),
        CHANNELS_LAST,
        ONEDNN,
        CONVOLVING_PRODUCTS,
        MERGE_PRODUCTS,
        JOINED_REDUCTIONS,
        SWAPPED_PRODUCTS,
    )  # fmt: skip


def _batched(local: ClosedJaxpr, part: Partition, units: Units, copies: bool) -> ClosedJaxpr:
    in_avals, out_avals = (
        [held_aval(a, lo, units) for a, lo in zip(avals, layouts)]
        for avals, layouts in ((part.source.in_avals, part.in_layouts), (part.source.out_avals, part.out_layouts))
    )

    same, of_devices = _unchanged(local, part), every_of if copies else first_of

    def fun(*args: Any) -> list[Any]:
        traces = []
        top = STATE.trace
        for name in units.virtual:
            top = BatchTrace(top, BatchAxis(units.sizes[name], name))
            traces.append(top)
        with extend_axis_env(units.sizes), set_trace(top):
            entered = [enter(x, lo, units) for x, lo in zip(args, part.in_layouts)]
            outs = eval_jaxpr(local, local.consts, *entered)
            left = [leave(x, lo, a.shape, units) for x, lo, a in zip(outs, part.out_layouts, out_avals)]
        for trace in reversed(traces):
            with trace, set_trace(trace.parent):
                left = [of_devices(*trace.unwrap(x)) for x in left]
        return [args[same[o]] if o in same else x for o, x in enumerate(left)]

    return trace_to_jaxpr(fun, in_avals, local.jaxpr.debug_name)


def _unchanged(local: ClosedJaxpr, part: Partition) -> dict[int, int]:
    """The results that are unchanged arguments, mapped to the argument's number.

    Layouts and global shapes must be equal: tiles of arrays of different sizes can have the same padded shape.
    """
    number = {v: i for i, v in enumerate(local.jaxpr.invars)}
    forwarded = {o: number[v] for o, v in enumerate(local.jaxpr.outvars) if isinstance(v, Var) and v in number}
    ins, outs = part.source.in_avals, part.source.out_avals
    same = {o: i for o, i in forwarded.items() if part.in_layouts[i] == part.out_layouts[o]}
    return {o: i for o, i in same.items() if ins[i].shape == outs[o].shape}
