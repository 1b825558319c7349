"""Programs of JAX that choose what they compute by platform (``jax.lax.platform_dependent``).

JAX lowers such a program for several platforms with the number of the platform as an additional first parameter, by
which it chooses. Here that number is an op, whose value is known where the program is partitioned or compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax

from meshwright.core.config import config, platform_named
from meshwright.interop.jax.rules import platforms_asked
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.passes import inline_calls, is_inlined
from meshwright.ops.control.platform import on_platform, with_platform_index
from meshwright.spmd.scalars import known_scalars
from meshwright.stablehlo.parsed import ParsedProgram

#: the platforms of targets
_PLATFORMS = ("cpu", "cuda", "tpu")


def lowered_for_platforms(traced: Any) -> Any:
    """What JAX has traced, lowered for the current platform. If it chooses by platform, it is lowered for the others
    too, where these have all of its operations."""
    here = jax.default_backend()
    jaxpr = getattr(getattr(traced, "traced", traced), "jaxpr", None)  # flax and equinox wrap JAX's
    others = [p for p in _PLATFORMS if p != here]
    named = set() if jaxpr is None else platforms_asked(jaxpr)
    asked = [p for p in others if p in named]
    for platforms in (others, asked) if asked else ():
        with suppress(Exception):  # rules of other libraries may raise anything
            return traced.lower(lowering_platforms=(here, *platforms))
    return traced.lower(lowering_platforms=(here,))


def by_platform(parsed: ParsedProgram, platforms: Sequence[str]) -> ParsedProgram:
    """A program that was lowered for these platforms, without the parameter that is the number of one of them, and
    without warnings of calls that only other platforms make."""
    if len(platforms) < 2:
        return parsed
    groups = tuple((platform_named(name),) for name in platforms)
    jaxpr = with_platform_index(parsed.jaxpr, groups)
    warnings = parsed.warnings
    if config.platform in map(platform_named, platforms):
        here = known_scalars(inline_calls(on_platform(jaxpr, config.platform), is_inlined))
        elsewhere = _unknown(jaxpr) - _unknown(here)
        warnings = [text for text in warnings if not any(repr(call) in text for call in elsewhere)]
    return dataclasses.replace(parsed, jaxpr=jaxpr, arguments=parsed.arguments[1:], warnings=warnings)


def _unknown(jaxpr: ClosedJaxpr) -> set[str]:
    return {e.op.unknown_call.strip('"') for e in all_eqns(jaxpr.jaxpr)} - {""}
