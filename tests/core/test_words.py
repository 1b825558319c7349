"""Numbers of things in messages: one is one."""

import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.core.words import counted, there_are


@pytest.mark.parametrize("count, many", [(0, "0 devices"), (1, "1 device"), (2, "2 devices"), (-1, "-1 devices"),
                                         (np.int64(1), "1 device")])  # fmt: skip
def test_counts(count, many):
    assert counted(count, "device") == many
    assert there_are(count) == f"there {'is' if count == 1 else 'are'} {count}"
    assert there_are(count, "device") == f"there {'is' if many == '1 device' else 'are'} {many}"
    assert counted(count, "axis", "axes") == many.replace("device", "axis" if many == "1 device" else "axe")


X = mnp.ones(4)
MESSAGES = {
    "the array has 1 dimension, the index has 2": lambda: X[0, 0],
    "the array has 2 dimensions, the index has 3": lambda: mnp.ones((2, 2))[0, 0, 0],
    "in_axes has 1 entry, f was called with 2 positional arguments": lambda: mw.vmap(f, in_axes=(0,))(X, X),
    "in_axes has 2 entries, f was called with 1 positional argument;": lambda: mw.vmap(f, in_axes=(0, 0))(X),
    "has 1 element, shape (2,)": lambda: mnp.reshape(mnp.ones(1), 2),
    "is out of range for an array of 1 dimension": lambda: mnp.sum(X, axis=1),
    "has 2 sizes for the 1 axis (0,)": lambda: mnp.fft.fftn(X, s=(2, 2), axes=(0,)),
    "has 1 leaf, 2 were given": lambda: mw.tree.unflatten(mw.tree.structure([1]), [1, 2]),
    "has 2 entries but the shape (4,) has 1 dimension; give at most 1 entry": lambda: mw.NamedSharding(
        mw.make_mesh((1,), ("x",)), P(None, None)
    ).shard_shape((4,)),
}


def f(x, *y):
    return x


@pytest.mark.parametrize("words", MESSAGES)
def test_messages(words):
    with pytest.raises(mw.errors.MeshwrightError, match=re.escape(words)):
        MESSAGES[words]()
