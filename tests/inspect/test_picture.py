"""Pictures of shardings, drawn as they should look."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import meshwright as mw
from meshwright.errors import ShardingError
from meshwright.inspect.picture import (
    device_names,
    picture_of,
    visualize_array_sharding,
    visualize_sharding,
)
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PositionalSharding, SingleDeviceSharding
from meshwright.sharding import PartitionSpec as P


class Device:
    platform = "cpu"

    def __init__(self, id):
        self.id = id


def mesh(**axes):
    count = int(np.prod(list(axes.values())))
    devices = np.array([Device(i) for i in range(count)], dtype=object)
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


M42 = mesh(data=4, model=2)
M222 = mesh(x=2, y=2, z=2)

PICTURES = {
    "a matrix": (
        (8, 16),
        NamedSharding(M42, P("data", "model")),
        """
┌───────┬───────┐
│ CPU 0 │ CPU 1 │
├───────┼───────┤
│ CPU 2 │ CPU 3 │
├───────┼───────┤
│ CPU 4 │ CPU 5 │
├───────┼───────┤
│ CPU 6 │ CPU 7 │
└───────┴───────┘
""",
    ),
    "replicated over an axis": (
        (8, 16),
        NamedSharding(M42, P(None, "model")),
        """
┌─────────────┬─────────────┐
│ CPU 0,2,4,6 │ CPU 1,3,5,7 │
└─────────────┴─────────────┘
""",
    ),
    "rows only": (
        (8, 16),
        NamedSharding(M42, P("data")),
        """
┌─────────┐
│ CPU 0,1 │
├─────────┤
│ CPU 2,3 │
├─────────┤
│ CPU 4,5 │
├─────────┤
│ CPU 6,7 │
└─────────┘
""",
    ),
    "a vector": (
        (8,),
        NamedSharding(M42, P("data")),
        """
┌─────────┬─────────┬─────────┬─────────┐
│ CPU 0,1 │ CPU 2,3 │ CPU 4,5 │ CPU 6,7 │
└─────────┴─────────┴─────────┴─────────┘
""",
    ),
    "a scalar": (
        (),
        NamedSharding(M42, P()),
        """
┌─────────┐
│ CPU 0-7 │
└─────────┘
""",
    ),
    "one device": (
        (3, 3),
        SingleDeviceSharding(Device(2)),
        """
┌───────┐
│ CPU 2 │
└───────┘
""",
    ),
    "no devices behind the mesh": (
        (4, 4),
        NamedSharding(AbstractMesh((2,), ("x",)), P("x")),
        """
┌───────┐
│ Dev 0 │
├───────┤
│ Dev 1 │
└───────┘
""",
    ),
    "no names for the axes": (
        (4, 4),
        PositionalSharding([Device(i) for i in range(4)]).reshape(2, 2).replicate(0),
        """
┌─────────┬─────────┐
│ CPU 0,2 │ CPU 1,3 │
└─────────┴─────────┘
""",
    ),
    "uneven": (
        (5, 7),
        NamedSharding(M42, P("data", "model")),
        """
┌─────────┬───────┐
│         │       │
│  CPU 0  │ CPU 1 │
│   2×4   │  2×3  │
│         │       │
├─────────┼───────┤
│         │       │
│  CPU 2  │ CPU 3 │
│   2×4   │  2×3  │
│         │       │
├─────────┼───────┤
│  CPU 4  │ CPU 5 │
│   1×4   │  1×3  │
├─────────┼───────┤
│  CPU 6  │ CPU 7 │
│  empty  │ empty │
└─────────┴───────┘
""",
    ),
    "an uneven vector": (
        (5,),
        NamedSharding(M42, P("data")),
        """
┌──────────────────┬──────────────────┬─────────┬─────────┐
│     CPU 0,1      │     CPU 2,3      │ CPU 4,5 │ CPU 6,7 │
│        2         │        2         │    1    │  empty  │
└──────────────────┴──────────────────┴─────────┴─────────┘
""",
    ),
    "nothing in it": (
        (0, 4),
        NamedSharding(mesh(x=2), P("x")),
        """
┌───────┐
│ CPU 0 │
│ empty │
├───────┤
│ CPU 1 │
│ empty │
└───────┘
""",
    ),
    "two of three dimensions": (
        (8, 4, 6),
        NamedSharding(M222, P("x", None, ("y", "z"))),
        """
[rows, :, columns]
┌───────┬───────┬───────┬───────┐
│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
│ 4×4×2 │ 4×4×2 │ 4×4×2 │ empty │
├───────┼───────┼───────┼───────┤
│ CPU 4 │ CPU 5 │ CPU 6 │ CPU 7 │
│ 4×4×2 │ 4×4×2 │ 4×4×2 │ empty │
└───────┴───────┴───────┴───────┘
""",
    ),
    "three dimensions": (
        (8, 4, 6),
        NamedSharding(M222, P("x", "y", "z")),
        """
[0:4, rows, columns]
┌───────┬───────┐
│ CPU 0 │ CPU 1 │
├───────┼───────┤
│ CPU 2 │ CPU 3 │
└───────┴───────┘
[4:8, rows, columns]
┌───────┬───────┐
│ CPU 4 │ CPU 5 │
├───────┼───────┤
│ CPU 6 │ CPU 7 │
└───────┴───────┘
""",
    ),
    "the last of three dimensions": (
        (8, 4, 6),
        NamedSharding(mesh(x=2), P(None, None, "x")),
        """
[:, :, columns]
┌───────┬───────┐
│ CPU 0 │ CPU 1 │
└───────┴───────┘
""",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture(name):
    shape, sharding, expected = PICTURES[name]
    assert str(picture_of(shape, sharding)) == expected.strip("\n")


def test_large_meshes_are_cut_short():
    picture = str(picture_of((64, 64), NamedSharding(AbstractMesh((32, 16), ("a", "b")), P("a", "b"))))
    lines = picture.splitlines()
    assert len(lines) == 21 and len(lines[0]) < 80
    assert "⋮" in lines[-4] and "…" in lines[1] and "Dev 511" in lines[-2]
    cube = NamedSharding(AbstractMesh((10, 2, 2), ("a", "b", "c")), P("a", "b", "c"))
    assert str(picture_of((10, 4, 4), cube)).splitlines()[-1] == "… 3 more"


def test_device_names():
    assert device_names([Device(i) for i in (3, 1)]) == "CPU 1,3"
    assert device_names([Device(i) for i in (0, 1, 2, 5, 6, 7, 8)]) == "CPU 0,1,2,5-8"
    assert device_names(list(range(0, 40, 2))) == "Dev 0,2,4,6,…,38"


def test_plain_in_a_pipe_and_coloured_in_a_terminal(capsys):
    sharding = NamedSharding(M42, P("data", "model"))
    picture = picture_of((8, 16), sharding)
    visualize_sharding((8, 16), sharding)
    assert capsys.readouterr().out == str(picture) + "\n"
    visualize_array_sharding(SimpleNamespace(shape=(8, 16), sharding=sharding))
    assert capsys.readouterr().out == str(picture) + "\n"
    terminal = StringIO()
    Console(file=terminal, force_terminal=True, color_system="truecolor").print(picture)
    assert "\x1b[30;48;2;141;211;199m CPU 0 \x1b[0m" in terminal.getvalue()


def test_html_in_a_notebook():
    markup = picture_of((8,), NamedSharding(mesh(x=2), P("x")))._repr_html_()
    assert markup.startswith("<pre") and markup.endswith("</pre>")
    assert '<span style="color:black;background:#8dd3c7"> CPU 0 </span>' in markup
    assert '<span style="color:black;background:#ffed6f"> CPU 1 </span>' in markup


def test_a_sharding_that_does_not_fit():
    with pytest.raises(ShardingError, match="give at most 1 entry"):
        picture_of((8,), NamedSharding(M42, P("data", "model")))


def test_size_and_colour_of_pictures(capsys):
    sharding = mw.NamedSharding(mw.make_mesh((2, 4), ("x", "y")), mw.PartitionSpec("x", "y"))
    mw.debug.visualize_sharding((8, 8), sharding, use_color=False, scale=2, max_width=80)
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "┌" + "┬".join(["─" * 14] * 4) + "┐"
        and lines[1] == "│" + "│".join(f"CPU {i}".center(14) for i in range(4)) + "│"
    )
    assert len(lines) == 7 and all(len(line) == 61 for line in lines)
    x = mw.device_put(np.ones((8, 8), np.float32), sharding)
    mw.debug.visualize_array_sharding(x, use_color=False, min_width=12)
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {4 * 12 + 5}
    narrow = str(mw.debug.picture_of((8, 8), sharding, max_width=20)).splitlines()
    assert all(len(line) <= 20 for line in narrow) and narrow[1] == "│CP…│CP…│CP…│CP…│"
    for wrong in ({"scale": 0}, {"min_width": 0}, {"max_width": 2}):
        with pytest.raises(mw.errors.ArgumentError, match="has no room for a cell"):
            mw.debug.picture_of((8, 8), sharding, **wrong)
