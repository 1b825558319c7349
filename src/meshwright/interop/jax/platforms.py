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

from meshwright.api.load import ImportedProgram
from meshwright.core.config import platform_named
from meshwright.interop.jax.rules import platforms_asked
from meshwright.ops.control.platform import with_platform_index

#: the platforms of targets
_PLATFORMS = ("cpu", "cuda", "tpu")


def lowered_for_platforms(traced: Any) -> Any:
    """What JAX has traced, lowered for the current platform. If it chooses by platform, it is lowered for the others
    too, where these have all of its operations."""
    here = jax.default_backend()
    jaxpr = getattr(getattr(traced, "traced", traced), "jaxpr", None)  # flax and equinox wrap JAX's
    others = [p for p in _PLATFORMS if p != here]
    asked = [] if jaxpr is None else [p for p in others if p in platforms_asked(jaxpr)]
    for platforms in (others, asked) if asked else ():
        with suppress(Exception):  # rules of other libraries may raise anything
            return traced.lower(lowering_platforms=(here, *platforms))
    return traced.lower(lowering_platforms=(here,))


def by_platform(program: ImportedProgram, platforms: Sequence[str]) -> ImportedProgram:
    """A program that was lowered for these platforms, without the parameter that is the number of one of them."""
    if len(platforms) < 2:
        return program
    parsed, groups = program.parsed, tuple((platform_named(name),) for name in platforms)
    jaxpr = with_platform_index(parsed.jaxpr, groups)
    return ImportedProgram(dataclasses.replace(parsed, jaxpr=jaxpr, arguments=parsed.arguments[1:]))
