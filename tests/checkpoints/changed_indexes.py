"""Indexes of checkpoints, changed and sealed again: what is read is what was saved, or an error of ours.

``make fuzz`` changes 20,000 at random (``tests/long_runs.py``).
"""

import json
import random
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np

import meshwright as mw
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.checkpoint_io import restore, save, writing
from meshwright.checkpoint_io.index import FORMATS, NAME, Leaf, checksum
from meshwright.errors import CheckpointError

HAVE = [f for f in FORMATS if f != "tensorstore" or find_spec("tensorstore")]
MESH = mw.make_mesh((4, 2), ("x", "y"))
SPLIT = NamedSharding(MESH, P("x", "y"))
VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)


def tree(by=0):
    return {
        "w": mw.device_put(VALUE + by, SPLIT),
        "list": [None, mw.random.key(3 + by), (np.float32(by), np.zeros((0, 4), np.float32))],
        "v": np.arange(8, dtype=np.int32) + by,
    }


def source_in_pieces(path, x, whole=writing._source):
    """What is written of a leaf, in eight pieces for a matrix, as several processes have it."""
    leaf = whole(path, x)
    if leaf.entry.shape != [8, 8]:
        return leaf
    starts = [[a, b] for a in range(0, 8, 2) for b in (0, 4)]
    value = np.asarray(x)
    pieces = [([a, b], [a + 2, b + 4], lambda a=a, b=b: value[a : a + 2, b : b + 4]) for a, b in starts]
    return Leaf(leaf.entry, leaf.dtype, (2, 4), pieces)


def save_in_pieces(folder, by=0, format="safetensors"):
    """Write the tree with its matrix in pieces."""
    with patch.object(writing, "_source", source_in_pieces):
        save(folder, tree(by), format=format, step=by, metrics={"loss": 0.5})


def raw_index(folder):
    raw = json.loads((folder / NAME).read_text())
    raw.pop("crc32")
    return raw


def sealed(raw):
    """The text of an index whose checksum is right."""
    return json.dumps({**raw, "crc32": checksum(raw)}) if isinstance(raw, dict) else json.dumps(raw)


def values(tree):
    """The bytes of all leaves."""
    leaves = [mw.random.key_data(x) if "key" in str(x.dtype) else x for x in mw.tree.leaves(tree)]
    return [(str(x.dtype), x.shape, np.asarray(x).tobytes()) for x in leaves]


WANT = values(tree())

# --- changes ------------------------------------------------------------------------------------------------
ANYTHING = {
    "null": None, "true": True, "-1": -1, "0": 0, "0.0": 0.0, "1.5": 1.5, "huge": 10**40, "2**63": 2**63,
    "NaN": float("nan"), "text": "x", "no text": "", "surrogate": "\ud800", "list": [], "deep": 0, "dict": {},
    "leaf": {"leaf": 0}, "lists": [[]],
}  # fmt: skip
for _ in range(300):
    ANYTHING["deep"] = [ANYTHING["deep"]]


def replaced(raw, place, value):
    """``raw`` with another value at a place, or without it for a value that is ``...``."""
    raw = at = json.loads(json.dumps(raw))
    for key in place[:-1]:
        at = at[key]
    if value is ...:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return raw


def places(raw, place=()):
    """All places in an index."""
    for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ():
        yield (*place, key)
        yield from places(value, (*place, key))


def mutated(raw, rng):
    """With a few values replaced: by something else, by each other, or by what they nearly are."""
    for _ in range(rng.randint(1, 3)):
        everywhere = [*places(raw)]
        if not everywhere:
            return raw
        place = rng.choice(everywhere)
        at = raw
        for key in place:
            at = at[key]
        value = rng.choice([*ANYTHING.values(), ...])
        if type(at) is int and rng.random() < 0.5:
            value = at + rng.choice([-8, -1, 1, 8])
        elif rng.random() < 0.3:
            value = raw
            for key in rng.choice(everywhere):
                value = value[key]
        raw = replaced(raw, place, value)
    return raw


@cache
def _written(format):
    """A folder, and the index of the checkpoint that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="changed-")) / "a"
    save_in_pieces(folder, format=format)
    return folder, raw_index(folder)


def found_in(number):
    """What is wrong with what is read after the change ``number``, or ""."""
    rng = random.Random(number)
    folder, raw = _written(HAVE[number % len(HAVE)])
    (folder / NAME).write_text(sealed(mutated(raw, rng)))
    try:
        got = values(restore(folder, tree(1) if rng.random() < 0.5 else None))
    except CheckpointError as error:
        return "" if str(folder) in str(error) else f"no file is named: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if all(x in WANT for x in got) else "other values"
