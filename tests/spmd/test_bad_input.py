"""What does not fit together is refused, with the remedy: machines, limits of memory, constraints."""
# ruff: noqa: E501 -- messages as they are

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, MemoryLimitError, MeshError, MeshwrightError, ShardingError

MESH = mw.AbstractMesh((4, 2), ("data", "model"))
KNOWN = "There are v4, v5e, v5p, v6e, tpu7x, a100, h100, h200, b200 and 'this'; describe another as hardware.Chip(...)"
FORMS = "machine: expected a chip and a shape such as 'v5e:16x16', 'h100:16x8' or 'this', got "


def on(*spec: object) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def of(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, np.float32)


@pytest.mark.parametrize(
    ("shape", "machine", "error", "words"),
    [
        ((4, 4), "v5e:2x4", MeshError, "machine v5e:2x4 has 8 devices, the mesh (a=4, b=4) 16; give a machine and a mesh of "
         "the same number"),
        ((3, 5), "h100:2x8", MeshError, "machine h100:2x8 has 16 devices, the mesh (a=3, b=5) 15; give a machine and a mesh "
         "of the same number"),
        ((4, 2), "v5x:2x4", ArgumentError, f"no chip 'v5x' is known; did you mean 'v7x' or 'v5p' or 'v5e'? {KNOWN}"),
        ((4, 2), "h10:8", ArgumentError, f"no chip 'h10' is known; did you mean 'h100' or 'h200' or 'a100'? {KNOWN}"),
        ((4, 2), "v5e:2xx4", ArgumentError, f"{FORMS}'v5e:2xx4'"),
        ((4, 2), 7, ArgumentError, f"{FORMS}7"),
        ((4, 2), "v5e:0x4", MeshError, "Machine: expected positive numbers of chips, nodes and slices, got shape=(0, 4), "
         "nodes=1, slices=1"),
        ((4, 2), "v5e:1000x4", MeshError, "machine v5e:1000x4: the largest slice of v5e is 16x16; give slices= for several "
         "that a network connects"),
    ],
)  # fmt: skip
def test_machines(shape, machine, error, words):
    with pytest.raises(error) as caught:
        mw.AbstractMesh(shape, ("a", "b"), machine=machine)
    assert str(caught.value) == words


def test_a_limit_that_nothing_meets_says_what_is_largest_and_what_helps():
    lowered = mw.jit(lambda x, w: mnp.tanh(x @ w).sum(), in_shardings=(on("data"), on())).lower(
        of(1024, 512), of(512, 2048)
    )
    with pytest.raises(MemoryLimitError) as caught:
        lowered.partition(memory_limit=2**20)
    first, largest, *_, last = str(caught.value).split("\n")
    assert first.endswith(": a device needs 4.5 MiB, 3.5 MiB more than the 1.0 MiB allowed. Largest at the peak:")
    assert largest.split() == "4.0 MiB argument f32[512,2048] of f32[512,2048] as [{}, {}] input 1 (w)".split()
    assert last == (
        "Most of it are arguments and results (4.5 MiB): split them by an axis that they do not have, use more devices or "
        "smaller types; donate arguments that results replace (donate_argnums). mw.plan looks for shardings that fit"
    )
    limit = 4700 * 2**10
    quick, small = lowered.partition(), lowered.partition(memory_limit=limit)
    assert quick.peak_bytes > limit >= small.peak_bytes and quick.time().seconds < small.time().seconds
    split = mw.jit(lambda x, w: mnp.tanh(x @ w).sum(), in_shardings=(on("data"), on("model"))).lower(
        of(1024, 512), of(512, 2048)
    )
    assert split.partition(memory_limit=2**23).peak_bytes <= 2**23


@pytest.mark.parametrize("limit", [0, -1, "16GB", float("nan")])
def test_limits_that_are_none(limit):
    with pytest.raises(ArgumentError) as caught:
        mw.jit(mnp.sin, in_shardings=on()).lower(of(8)).partition(memory_limit=limit)
    assert str(caught.value) == f"partition: memory_limit must be positive, in bytes, got {limit!r}"


def test_constraints_that_contradict():
    with pytest.raises(ShardingError) as caught:
        on("data", "data")
    assert str(caught.value) == (
        "NamedSharding: P('data', 'data') uses axis 'data' twice (in dimension 1 as 'data'); it can split one "
        "dimension only: use another axis of the mesh ('data': 4, 'model': 2) or None"
    )
    other = NamedSharding(mw.AbstractMesh((2, 4), ("data", "model")), P("data"))
    run = mw.jit(lambda x: mw.with_sharding_constraint(x, other), in_shardings=on("data"))
    with pytest.raises(MeshwrightError) as caught:
        run.lower(of(8, 8)).partition()
    assert (
        "argument x is on AbstractMesh('data': 4, 'model': 2, axis_types=(Auto, Auto)) and a sharding constraint at test_bad_input.py"
        in str(caught.value)
    )
    assert str(caught.value).endswith("cannot be used together: move the arrays to one of them with device_put")


def test_a_time_that_rests_on_guesses_says_so():
    chip = mw.hardware.machine("tpu7x:2x2x2").chip
    mesh = mw.AbstractMesh((8, 2), ("data", "model"), machine="tpu7x:2x2x2")
    sharding = NamedSharding(mesh, P("data", "model"))
    time = mw.jit(lambda x: x.sum(), in_shardings=sharding).lower(of(512, 512)).partition().time()
    assert bool(time.guessed) == any(f"rests on guessed figures of {chip.name}" in note for note in time.notes)
    assert set(time.guessed) <= set(chip.guessed)
