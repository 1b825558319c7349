"""Random programs, partitioned: what memory we predict of each, and what XLA gives it when it compiles it.

``measured(seeds)`` measures all distinct ones; the benchmark of memory and a test use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_programs import MESHES, SCALE, programs, specs

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright.errors import MeshwrightWarning
from meshwright.runtime.pjrt.replicas import compiled_memory


def measured(seeds: Iterable[int], scale: int = 1, drawn: int = 50) -> Iterator[tuple[Any, int, int]]:
    """Each program, the peak predicted of it, and XLA's; sizes are ``scale`` times those of the fuzz.

    A seed stands for ``drawn`` programs, equal ones included.
    """
    known = set()
    for number in seeds:
        for part in _partitioned(number, scale, drawn):
            text = part.as_text("stablehlo")
            if text in known:
                continue
            known.add(text)
            predicted, compiled = part.memory.peak_bytes, compiled_memory(text, part.mesh.size).peak_bytes
            if compiled:
                yield part, predicted, compiled


def _partitioned(number: int, scale: int, drawn: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        found = drawn_programs(number, scale, drawn)
        return [part for lowered, mesh, _ in found if (part := _of(lowered, mesh)) is not None]


def drawn_programs(
    number: int, scale: int, drawn: int, meshes: Sequence[Any] = MESHES, free: bool = True
) -> list[tuple[Any, mw.AbstractMesh, str]]:
    """So many programs as traced, each with its mesh and what it was drawn as; ``free``: arguments and results may be
    without a sharding."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=drawn, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        found.append(_drawn(data, meshes, free))

    token = SCALE.set(scale)
    try:
        draw()
    finally:
        SCALE.reset(token)
    return found


def _of(lowered: Any, mesh: mw.AbstractMesh) -> Any:
    try:
        return lowered.partition(mesh)
    except mw.errors.MeshwrightError:  # what is refused, with its reason, has no memory
        return None


def _drawn(data: st.DataObject, meshes: Sequence[Any], free: bool) -> tuple[Any, mw.AbstractMesh, str]:
    sizes, names = data.draw(st.sampled_from(meshes))
    mesh = mw.AbstractMesh(sizes, names)
    program = data.draw(programs(mesh))
    given_shardings = _shardings(data, mesh, program.inputs, free)
    differentiate = program.reversible and data.draw(st.booleans())
    outputs = program.inputs if differentiate else [program.shapes[i] for i in program.outputs]
    wanted = _shardings(data, mesh, outputs, free)

    def total(*args: Any) -> Any:
        return sum(mnp.sum(mnp.sin(y)) for y in program(*args))

    function: Callable[..., Any] = mw.grad(total, tuple(range(len(program.inputs)))) if differentiate else program
    run = mw.jit(
        lambda *a: function(*a), in_shardings=tuple(given_shardings),
        out_shardings=tuple(wanted) if differentiate else list(wanted),
    )  # fmt: skip
    lowered = run.lower(*(mw.ShapeDtypeStruct(s, np.float32) for s in program.inputs))
    text = f"{'gradient of ' * differentiate}{program!r}\n{mesh}: {_said(given_shardings)} -> {_said(wanted)}"
    return lowered, mesh, text


def _said(shardings: Sequence[Any]) -> str:
    return ", ".join(str(s and s.spec) for s in shardings)


def _shardings(data: st.DataObject, mesh: mw.AbstractMesh, shapes: Sequence[Any], free: bool) -> list[Any]:
    def of(shape: Any) -> Any:
        given = specs(mesh, len(shape)).map(lambda p: NamedSharding(mesh, p))
        return data.draw(st.none() | given if free else given)

    return [of(s) for s in shapes]
