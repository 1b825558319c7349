"""What programs of benchmarks are made of: types from shapes, meshes without devices, and a step of training."""

from __future__ import annotations

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


def bf16(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, mnp.bfloat16)


def mesh_of(**axes: int) -> mw.AbstractMesh:
    return mw.AbstractMesh(tuple(axes.values()), tuple(axes))


def lowered_on(f: Any, mesh: Any, args: Any, specs: Any, outs: Any = None, donate: Any = ()) -> Any:
    """``f``, lowered for arguments of these shapes; a spec stands for all leaves below it."""

    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda x: isinstance(x, P))

    return mw.jit(
        f, in_shardings=on(specs), out_shardings=None if outs is None else on(outs), donate_argnums=donate
    ).lower(*typed(args))


def sgd(loss: Any, rate: float = 1e-2) -> Any:
    """A step of gradient descent that returns the loss and the new parameters."""

    def step(params: Any, *batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, *batch)
        return value, mw.tree.map(lambda p, g: p - rate * g, params, grads)

    return step
