"""Sums that are still to be made at the borders of ``shard_map``: ``P(unreduced={"x"})`` among its specs.

Inside, each device holds a term, and the sum of these along the axis is the value. Which terms is not said of a value
from outside, so that only what is linear in them may use it, until ``psum`` or ``psum_scatter`` makes the sum (JAX's
type ``{U:x}``). Here the first device holds the value, and the others hold zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.api.placement import reshard
from meshwright.core import pytree
from meshwright.core.avals import NOWHERE
from meshwright.errors import ShardingTypeError
from meshwright.ir.passes import inline_calls
from meshwright.ir.state import STATE
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ops.collective.named_axis import axis_index, psum
from meshwright.ops.elementwise.table import eq, select, zeros_like
from meshwright.ops.sharding.linear_terms import LinearInTerms
from meshwright.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from meshwright.transforms.autodiff import closed_call


def sums_of(spec: PartitionSpec) -> tuple[str, ...]:
    """The axes over which a value with this spec is a sum that is still to be made."""
    return tuple(sorted(spec.unreduced))


def stated(spec: PartitionSpec) -> PartitionSpec:
    """The spec without what it says of sums."""
    return PartitionSpec(*spec) if spec.unreduced or spec.reduced else spec


def typed_as(x: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Any:
    """A result of a region, whose type says of explicit axes what its spec does."""
    explicit = mesh.abstract_mesh.of_type(AxisType.Explicit)
    unreduced, reduced = spec.unreduced.intersection(explicit), spec.reduced.intersection(explicit)
    entries = [tuple(a for a in spec.axes(d) if a in explicit) for d in range(typeof(x).ndim)]
    if not (unreduced or reduced or any(entries)):
        return x
    return reshard(x, NamedSharding(mesh, PartitionSpec(*entries, unreduced=unreduced, reduced=reduced)))


def on_terms(
    f: Callable[..., Any], name: str, sums: Sequence[tuple[str, ...]], of_results: Callable[[Any], Sequence[Any]]
) -> Callable[..., Any]:
    """``f`` of flat arguments, which gets terms of those that are ``sums``, and whose terms are added up.

    ``of_results`` tells the specs of its results.

    Raises (when called):
      ShardingTypeError: something that is not linear uses a term, or a result is a term, but not by its spec.
    """

    def run(*args: Any) -> Any:
        terms = [_term(x, axes) if axes else x for x, axes in zip(args, sums)]
        if any(sums):
            jaxpr, consts, tree = closed_call(f, terms, name)
            left = LinearInTerms(name).through(
                inline_calls(jaxpr), [NOWHERE] * len(consts) + [frozenset(s) for s in sums]
            )
            flat = eval_jaxpr(jaxpr, jaxpr.consts, *consts, *terms)
            outs = pytree.unflatten(tree, flat)
        else:
            outs = f(*args)
            left = [NOWHERE] * len(pytree.leaves(outs))
        specs = of_results(outs)
        _check_that_terms_differ(name, pytree.leaves(outs), specs)
        for number, (axes, spec) in enumerate(zip(left, specs)):
            if axes and axes != spec.unreduced:
                raise ShardingTypeError(
                    f"shard_map of {name}: result {number} is a sum still to be made over {', '.join(sorted(axes))}, "
                    f"and out_specs has {spec}; make it with psum, or say unreduced= in the spec"
                )
        added = [psum(x, sums_of(spec)) if spec.unreduced else x for x, spec in zip(pytree.leaves(outs), specs)]
        return pytree.unflatten(pytree.structure(outs), added)

    return run


def _check_that_terms_differ(name: str, outs: Sequence[Any], specs: Sequence[PartitionSpec]) -> None:
    for number, (x, spec) in enumerate(zip(outs, specs)):
        same = (spec.unreduced & STATE.checked) - typeof(x).vma
        if same:
            raise ShardingTypeError(
                f"shard_map of {name}: result {number} is the same on all devices along {', '.join(sorted(same))}, and "
                f"out_specs has {spec}, by which it is their sum; leave unreduced out for it"
            )


def _term(x: Any, axes: tuple[str, ...]) -> Any:
    """The value on the first device along ``axes``, and zeros on the others."""
    return select(eq(axis_index(axes), np.int32(0)), x, zeros_like(x))
