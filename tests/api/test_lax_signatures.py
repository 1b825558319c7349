"""Arguments of ``meshwright.lax``: a call that ``jax.lax`` takes is taken here, by position and by name."""

from __future__ import annotations

import inspect

import pytest
from jax import lax as peer

from meshwright import lax


def has_varargs(function):
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values())


FUNCTIONS = [name for name in dir(lax) if inspect.isfunction(getattr(lax, name)) and hasattr(peer, name)]
#: those that take their arrays, of which each is one, by position alone
OPS = {name for name in FUNCTIONS if has_varargs(getattr(lax, name)) and not has_varargs(getattr(peer, name))}


def arguments(function):
    """What may be given by position, in order; the names of all that may be given by name; what must be given."""
    parameters = inspect.signature(function).parameters.values()
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    required = {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
    return by_position, by_name, required


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - OPS))
def test_takes_what_jax_takes(name):
    positions, names, required = arguments(getattr(lax, name))
    peer_positions, peer_names, peer_required = arguments(getattr(peer, name))
    assert positions[: len(peer_positions)] == peer_positions
    assert peer_names <= names
    assert required <= peer_required


def test_these_are_compared():
    assert {"reduce_window", "dot_general", "psum", "gather", "conv_general_dilated", "scan"} <= {*FUNCTIONS} - OPS
