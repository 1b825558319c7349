"""What programs of benchmarks are made of: types from shapes, meshes without devices, and a step of training."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P


def typed(shapes: Any, dtype: Any = np.float32) -> Any:
    """Types of a tree of shapes; a leaf is a tuple of sizes, or a type."""

    def leaf(x: Any) -> bool:
        return isinstance(x, mw.ShapeDtypeStruct) or (isinstance(x, tuple) and all(isinstance(n, int) for n in x))

    return mw.tree.map(lambda s: mw.ShapeDtypeStruct(s, dtype) if isinstance(s, tuple) else s, shapes, is_leaf=leaf)


def ints(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.int32)


def bools(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.bool_)


def int8s(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.int8)


def bf16(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, mnp.bfloat16)


#: sizes of axes under ``MESHWRIGHT_UNEVEN=1``, which the sizes of few arrays are multiples of
UNEVEN = {8: 6, 4: 3}


#: machines of meshes by their number of devices, while a program is made
_MACHINES: ContextVar[Mapping[int, str]] = ContextVar("machines")


def mesh_of(**axes: int) -> mw.AbstractMesh:
    uneven = UNEVEN if os.environ.get("MESHWRIGHT_UNEVEN") else {}
    sizes = tuple(uneven.get(n, n) for n in axes.values())
    return mw.AbstractMesh(sizes, tuple(axes), machine=_MACHINES.get({}).get(math.prod(sizes)))


def lowered_on(f: Any, mesh: Any, args: Any, specs: Any, outs: Any = None, donate: Any = ()) -> Any:
    """``f``, lowered for arguments of these shapes; a spec stands for all leaves below it."""

    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda x: isinstance(x, P))

    return mw.jit(
        f, in_shardings=on(specs), out_shardings=None if outs is None else on(outs), donate_argnums=donate
    ).lower(*typed(args))


def _dimensions(annotations: str, shape: tuple[int, ...], rng: random.Random) -> list[int]:
    """The dimensions of an array in the order in which the axes of a mesh split them."""
    dims = list(range(len(shape)))
    if annotations == "largest":
        return sorted(dims, key=lambda d: -shape[d])
    if annotations == "last":
        return dims[::-1]
    if annotations.startswith("random"):
        return rng.sample(dims, len(dims))
    if annotations != "first":
        raise ValueError(
            f"MESHWRIGHT_ANNOTATIONS: expected largest, first, last, random or random2, not {annotations!r}"
        )
    return dims


def annotated(args: Any, mesh: mw.AbstractMesh, annotations: str, seed: str) -> Any:
    """Specs of all arguments by one rule, whatever they mean: an axis of the mesh for each dimension that has its size.

    ``annotations`` names the dimensions that get the axes, from the largest axis on: the ``"largest"`` ones, the
    ``"first"``, the ``"last"``, or ones at ``"random"`` (``"random2"`` draws others), where an axis is also left out
    at times.
    """
    rng = random.Random(annotations + seed)
    largest_first = sorted(mesh.shape, key=lambda axis: -mesh.shape[axis])

    def spec(s: Any) -> P:
        entries: list[str | None] = [None] * len(s.shape)
        dims: Iterator[int] = iter(_dimensions(annotations, s.shape, rng))
        for axis in largest_first:
            if annotations.startswith("random") and rng.random() < 0.2:
                continue
            d = next((d for d in dims if s.shape[d] >= mesh.shape[axis]), None)
            if d is not None:
                entries[d] = axis
        return P(*entries)

    return mw.tree.map(spec, typed(args))


class Programs(dict[str, Callable[[], Any]]):
    """Programs by name: functions that return what :func:`lowered_on` takes after the mesh, and the mesh."""

    def add(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Register a program by the name of the function that makes it."""
        self[make.__name__] = make
        return make

    def lowered(self, name: str, machines: Mapping[int, str] = MappingProxyType({})) -> Any:
        """The lowered program of that name, and its mesh, on the machine for its number of devices, if one is given.

        Under ``MESHWRIGHT_ANNOTATIONS`` its arguments have the specs of :func:`annotated`, and its results none.
        """
        token = _MACHINES.set(machines)  # shardings inside of the program are on the same mesh
        try:
            f, args, ins, outs, mesh = self[name]()
        finally:
            _MACHINES.reset(token)
        if annotations := os.environ.get("MESHWRIGHT_ANNOTATIONS"):
            ins, outs = annotated(args, mesh, annotations, name), None
        return lowered_on(f, mesh, args, ins, outs), mesh


def sgd(loss: Any, rate: float = 1e-2) -> Any:
    """A step of gradient descent that returns the loss and the new parameters."""

    def step(params: Any, *batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, *batch)
        return value, mw.tree.map(lambda p, g: p - rate * g, params, grads)

    return step
