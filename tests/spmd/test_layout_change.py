"""Where values change from the layouts that inputs bring to those that outputs should have."""

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import nn

MESH = mw.AbstractMesh((4,), ("x",))
SHAPE = (8, 16, 12)
ROWS, COLUMNS = P(None, "x"), P(None, None, "x")
#: what one all-to-all of the array sends
MOVED = 4 * int(np.prod(SHAPE)) // 4 * 3 // 4


def partitioned(fun: Any, *args: Any, out: Any = COLUMNS) -> mw.PartitionedProgram:
    place = [mw.NamedSharding(MESH, s) for s in (*(spec for _, spec in args), out)]
    structs = [mw.ShapeDtypeStruct(shape, np.float32) for shape, _ in args]
    return mw.jit(fun, in_shardings=tuple(place[:-1]), out_shardings=place[-1]).lower(*structs).partition()


def normalized(x: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return y / mnp.sqrt((y * y).mean(-1, keepdims=True) + 1)


@pytest.mark.parametrize("rows", [nn.softmax, normalized])
@pytest.mark.parametrize("derivative", [False, True])
def test_rows_are_whole_until_all_is_done(rows, derivative):
    """Sums over rows send nothing where these are split; one all-to-all of the result is all that is needed."""
    fun = mw.grad(lambda x: mnp.sin(rows(x)).sum()) if derivative else lambda x: mnp.sin(rows(x))
    part = partitioned(fun, (SHAPE, ROWS))
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_to_all", MOVED)]
    part.verify()


def test_what_several_results_are_made_of_goes_there_itself():
    """One all-to-all before the results, not one of each."""

    def moments(x: Any) -> Any:
        y = mnp.exp(x - x.max(-1, keepdims=True))
        return y, y * y, y * y * y

    place = mw.NamedSharding(MESH, COLUMNS)
    run = mw.jit(moments, in_shardings=mw.NamedSharding(MESH, ROWS), out_shardings=(place,) * 3)
    part = run.lower(mw.ShapeDtypeStruct(SHAPE, np.float32)).partition()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_to_all", MOVED)]
    part.verify()


def test_operands_that_lie_otherwise_go_where_the_result_is():
    """An operand that is there already stays; the other goes there, not both to where that is, and back."""
    part = partitioned(lambda x, y: mnp.sin(x) * y + y, (SHAPE, ROWS), (SHAPE, COLUMNS))
    assert part.bytes_sent == MOVED
    part.verify()


LARGER = {
    "broadcast": (lambda x: mnp.tanh(mnp.broadcast_to(x[:, None], (1024, 64))), (1024,)),
    "pad": (lambda x: mw.lax.pad(x, 1.5, [(0, 0, 1), (0, 0, 1)]), (1024, 64)),
    "repeat": (lambda x: mnp.repeat(x, 4, axis=1), (1024, 64)),
    "compare": (lambda x: mnp.where(x[:, None] > mnp.arange(256.0), 1.0, 0.0), (1024,)),
    "concatenate": (lambda x: mnp.concatenate([x, mnp.zeros((1024, 640), "float32")], 1), (1024, 64)),
    "index": (lambda x: x[mnp.zeros(8192, "int32")], (1024, 64)),
}


@pytest.mark.parametrize("name", LARGER)
def test_what_grows_before_a_constraint_is_gathered_before_it_grows(name: str) -> None:
    """As before an output: a constraint is where the layout is wanted, not where it has to change."""
    function, shape = LARGER[name]
    mesh = mw.AbstractMesh((8,), ("x",))
    rows, whole = mw.NamedSharding(mesh, P("x")), mw.NamedSharding(mesh, P())
    constrained = mw.jit(lambda x: mnp.cos(mw.lax.with_sharding_constraint(function(x), whole)), in_shardings=(rows,))
    part = constrained.lower(mw.ShapeDtypeStruct(shape, "float32")).partition(mesh)
    assert sum(c.bytes_sent for c in part.collectives) == np.prod(shape) * 4 * 7 // 8
    part.verify()


@pytest.mark.parametrize(
    ("function", "devices", "spec", "sent"),
    [
        (mnp.tanh, 4, P(None, "x"), 0),
        (mnp.tanh, 3, P(None, "x"), 0),
        (mnp.tanh, 4, P(), 0),
        # the gather of what is multiplied, but no gather of the result
        (lambda x: x @ x.T @ x, 4, P(), 256 * 224 * 4 * 3 // 4),
    ],
)
def test_constraints_in_loops_send_nothing_where_what_is_behind_is_as_before(function, devices, spec, sent):
    """Their results go back into the loop, whose values are laid out otherwise."""
    mesh = mw.AbstractMesh((devices,), ("x",))
    rows, other = mw.NamedSharding(mesh, P("x")), mw.NamedSharding(mesh, spec)

    def loop(x):
        return mw.lax.fori_loop(0, 8, lambda _, c: mw.lax.with_sharding_constraint(function(c), other), x)

    lowered = mw.jit(loop, in_shardings=rows, out_shardings=rows).lower(mw.ShapeDtypeStruct((256, 224), "float32"))
    part = lowered.partition(mesh)
    assert sum(c.bytes_sent for c in part.collectives) == 8 * sent
    if sent == 0:  # products of products grow beyond bounds
        part.verify()


def test_rows_move_before_they_are_padded_for_a_transform():
    """A convolution by Fourier transforms along a split dimension: the rows are sent as they are, once there and once
    back, and padded by the devices that have them whole."""
    batch, length, width, devices = 8, 256, 16, 8
    mesh = mw.AbstractMesh((devices,), ("s",))
    split = mw.NamedSharding(mesh, P(None, "s"))

    def smooth(x):
        spectrum = mnp.fft.rfft(x, n=2 * length, axis=1) * mnp.exp(-mnp.arange(length + 1, dtype=np.float32))[:, None]
        return mnp.fft.irfft(spectrum, n=2 * length, axis=1)[:, :length]

    x = mw.ShapeDtypeStruct((batch, length, width), np.float32)
    part = mw.jit(smooth, in_shardings=split, out_shardings=split).lower(x).partition()
    tile = 4 * batch * length * width // devices
    assert part.bytes_sent == 2 * tile * (devices - 1) // devices
    assert part.work.redundancy < 1.05
    assert part.verify()
