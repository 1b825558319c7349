"""Our own files, and those of weights, damaged: an error of our tree, or what they hold."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from damage import damaged

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import checkpoint_io, export
from meshwright.interop import safetensors

#: what reads a file of the folder that :func:`written` gives, from a copy of it
READERS: dict[str, Callable[[Path], Any]] = {
    "weights.safetensors": safetensors.load,
    "weights/model.safetensors.index.json": lambda path: safetensors.load(path.parent),
    "exported": lambda path: export.deserialize(path.read_bytes()).call(np.ones((2, 3), np.float32), [1]),
    "executable": mw.load_executable,
    "checkpoint/checkpoint.json": lambda path: checkpoint_io.restore(path.parent),
    "checkpoint/data-*.safetensors": lambda path: checkpoint_io.restore(path.parent),
    "split/checkpoint.json": lambda path: checkpoint_io.restore(path.parent, _like()),
}


def _like() -> Any:
    sharding = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.PartitionSpec("x"))
    return {"w": mw.ShapeDtypeStruct((4, 3), "float32", sharding=sharding), "n": mw.random.key(1)}


@cache
def written() -> Path:
    """A folder with a file of each kind."""
    folder = Path(tempfile.mkdtemp(prefix="damaged-"))
    value = mnp.arange(12.0).reshape(4, 3)
    tree = {"w": mw.device_put(value, _like()["w"].sharding), "n": mw.random.key(1)}
    weights = {"a.w": value, "b": mnp.arange(3)}
    safetensors.save(folder / "weights.safetensors", weights)
    safetensors.save(folder / "weights", weights, max_bytes=20)
    made = export.export(mw.jit(lambda x, n: {"y": x * n[0], "z": (x.sum(), None)}))(np.ones((2, 3), np.float32), [1])
    (folder / "exported").write_bytes(made.serialize())
    mesh = mw.AbstractMesh((2,), ("x",))
    mw.jit(lambda x: 2 * x).lower(mnp.arange(4.0)).partition(mesh).compile("cpu:2").save(folder / "executable")
    for name in ("checkpoint", "split"):
        checkpoint_io.save(folder / name, tree)
    return folder


def use_file(rng: random.Random) -> bool:
    """Damage a file and read it; whether it could be."""
    name = rng.choice(list(READERS))
    with tempfile.TemporaryDirectory() as folder:
        top = name.split("/", 1)[0]
        source, copy = written() / top, Path(folder) / top
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        (path,) = Path(folder).glob(name)
        data: str | bytes = path.read_bytes()
        if name.endswith(".json"):
            data = data.decode()
        result = damaged(data, data if isinstance(data, str) else "", rng)
        path.write_bytes(result if isinstance(result, bytes) else result.encode(errors="surrogatepass"))
        for leaf in mw.tree.leaves(READERS[name](path)):
            str(leaf)
    return True
