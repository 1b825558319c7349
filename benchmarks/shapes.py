"""What programs of benchmarks are made of: types from shapes, meshes without devices, and a step of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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


def mesh_of(**axes: int) -> mw.AbstractMesh:
    sizes = UNEVEN if os.environ.get("MESHWRIGHT_UNEVEN") else {}
    return mw.AbstractMesh(tuple(sizes.get(n, n) for n in axes.values()), tuple(axes))


def lowered_on(f: Any, mesh: Any, args: Any, specs: Any, outs: Any = None, donate: Any = ()) -> Any:
    """``f``, lowered for arguments of these shapes; a spec stands for all leaves below it."""

    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda x: isinstance(x, P))

    return mw.jit(
        f, in_shardings=on(specs), out_shardings=None if outs is None else on(outs), donate_argnums=donate
    ).lower(*typed(args))


class Programs(dict[str, Callable[[], Any]]):
    """Programs by name: functions that return what :func:`lowered_on` takes after the mesh, and the mesh."""

    def add(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Register a program by the name of the function that makes it."""
        self[make.__name__] = make
        return make

    def lowered(self, name: str, machines: Mapping[int, str] = MappingProxyType({})) -> Any:
        """The lowered program of that name, and its mesh, on the machine for its number of devices, if one is given."""
        f, args, ins, outs, mesh = self[name]()
        if mesh.size in machines:
            mesh = mw.AbstractMesh(mesh.axis_sizes, mesh.axis_names, machine=machines[mesh.size])
        return lowered_on(f, mesh, args, ins, outs), mesh


def sgd(loss: Any, rate: float = 1e-2) -> Any:
    """A step of gradient descent that returns the loss and the new parameters."""

    def step(params: Any, *batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, *batch)
        return value, mw.tree.map(lambda p, g: p - rate * g, params, grads)

    return step
