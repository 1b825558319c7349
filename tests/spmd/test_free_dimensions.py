"""An axis on a dimension that an op needs whole moves to one that is free: two all-to-alls instead of a gather."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.linalg.fft import FFT, Fft
from meshwright.spmd.rules import rule_of

N = 4
MESH = mw.AbstractMesh((N,), ("d",))
RNG = np.random.default_rng(2)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def partitioned(f: Any, x: np.ndarray, spec: P, outs: Any) -> Any:
    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: NamedSharding(MESH, s), tree, is_leaf=lambda s: isinstance(s, P))

    part = mw.jit(f, in_shardings=(on(spec),), out_shardings=on(outs)).lower(x).partition()
    part.verify(x)
    return part


def moved(*arrays: Any) -> int:
    """Bytes of the all-to-alls of these arrays, once each."""
    return sum(a.nbytes // N * (N - 1) // N for a in arrays)


ROWS, COLUMNS = P(None, "d"), P(None, None, "d")
POSITIVE = np.eye(8, dtype=np.float32) * 9 + np.ones((8, 8, 8), np.float32)
DECOMPOSITIONS = {
    "cholesky": (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), POSITIVE, ROWS, POSITIVE),
    "qr": (lambda x: tuple(mnp.linalg.qr(x))[1], POSITIVE, COLUMNS, POSITIVE),
    "svd": (lambda x: mnp.linalg.svd(x, compute_uv=False), POSITIVE, ROWS, POSITIVE[0]),
    "eigvalsh": (lambda x: mnp.linalg.eigvalsh(x, symmetrize_input=False), POSITIVE, ROWS, POSITIVE[0]),
    "fft": (lambda x: mnp.fft.fft(x).real, f32(8, 4, 8), COLUMNS, f32(8, 4, 8)),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_one_problem_for_each_device(name):
    f, x, spec, result = DECOMPOSITIONS[name]
    out = spec if result.ndim == 3 else P(None, "d")
    part = partitioned(f, x, spec, out)
    assert {c.kind for c in part.collectives} == {"all_to_all"}
    assert part.bytes_sent <= 2 * moved(x) + moved(result)
    assert part.work.redundancy < 1.2


def test_a_permutation_of_columns():
    perm = RNG.permutation(64)
    x = f32(96, 64)
    part = partitioned(lambda x: x[:, perm], x, P(None, "d"), P(None, "d"))
    assert {c.kind for c in part.collectives} == {"all_to_all"} and part.bytes_sent == 2 * moved(x)


def test_a_dynamic_slice_of_split_rows():
    x = f32(16, 8)
    part = partitioned(lambda x: lax.dynamic_slice(x, (x[0, 0].astype(int), 0), (12, 8)), x, P("d"), P(None, "d"))
    assert "all_gather" not in {c.kind for c in part.collectives}
    assert part.bytes_sent <= moved(x) + 64


def test_every_dimension_has_a_factor():
    """Dimensions of one place and size are one factor, which cannot be split; sizes of one need none."""
    aval = mw.typeof(np.zeros((3, 1, 5), np.complex64))
    rule = rule_of(Fft(FFT, (5,)), (aval,))
    assert str(rule) == "[b0 b1 whole2] -> [b0 b1 whole2]; whole2: replicated"
    assert rule.work == 15


def test_where_no_dimension_is_free_the_operand_is_gathered():
    x = np.eye(8, dtype=np.float32) * 9 + np.ones((8, 8), np.float32)
    part = partitioned(lambda x: lax.linalg.cholesky(x, symmetrize_input=False), x, P("d"), P("d"))
    assert {c.kind for c in part.collectives} == {"all_gather"}
    assert any("cannot work on parts of that dimension" in note for note in part.notes)


def sent(part: Any) -> list[tuple[str, int]]:
    return [(c.kind, c.bytes_sent) for c in part.collectives]


C64 = RNG.normal(size=(16, 24)).astype(np.complex64)


@pytest.mark.parametrize(
    ("spec", "out", "count"),
    [
        (P("d"), P(None, "d"), 1),
        (P(None, "d"), P("d"), 1),
        (P("d"), P("d"), 2),
        (P(None, "d"), P(None, "d"), 2),
    ],
    ids=["rows to columns", "columns to rows", "rows", "columns"],
)
@pytest.mark.parametrize("kind", ["fft2", "ifft2"])
def test_a_transform_of_two_dimensions_does_one_while_the_other_is_split(kind, spec, out, count):
    part = partitioned(getattr(mnp.fft, kind), C64, spec, out)
    assert sent(part) == [("all_to_all", moved(C64))] * count
    assert part.work.redundancy == 1


def test_real_transforms_of_two_dimensions():
    x = f32(16, 24)
    there = partitioned(mnp.fft.rfft2, x, P("d"), P("d"))
    assert {kind for kind, _ in sent(there)} == {"all_to_all"}
    back = partitioned(lambda x: mnp.fft.irfft2(mnp.fft.rfft2(x)), x, P("d"), P("d"))
    assert {kind for kind, _ in sent(back)} == {"all_to_all"}


def test_pencils_change_one_dimension_at_a_time():
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))
    cube = RNG.normal(size=(8, 8, 8)).astype(np.complex64)
    place = NamedSharding(mesh, P("a", "b"))
    part = mw.jit(mnp.fft.fftn, in_shardings=place, out_shardings=place).lower(cube).partition()
    part.verify()
    assert part.bytes_sent <= 4 * cube.nbytes // 4 // 2
    assert "all_gather" not in {kind for kind, _ in sent(part)}


def filtered(kind: str) -> Any:
    there, back = getattr(mnp.fft, kind), getattr(mnp.fft, kind.replace("fft", "ifft").replace("ri", "ir"))
    return lambda x: back(there(x) * 0.5 / 3)


@pytest.mark.parametrize("kind", ["fft2", "fftn", "rfft2", "rfftn"])
def test_an_inverse_goes_back_through_the_dimensions(kind):
    """Rows to columns, and back: the filter between is applied where the transform left its terms."""
    x = f32(8, 16, 24)
    spec = P("d") if kind.endswith("n") else P(None, "d")
    part = partitioned(filtered(kind), x, spec, spec)
    size = 13 if kind.startswith("r") else 24
    kinds, numbers = zip(*sent(part))
    assert kinds == ("all_to_all",) * 2 and part.work.redundancy <= 1.01
    # Terms that devices cannot share evenly are exchanged along another dimension, or padded.
    assert sum(numbers) <= 2 * 1.1 * moved(np.zeros((8, 16, size), np.complex64))


def test_a_filter_with_a_choice_in_it_is_applied_where_the_terms_are():
    """The squares of wave numbers are made where they are wanted, and do not bring the terms back to rows."""

    def poisson(x: Any) -> Any:
        k = mnp.fft.fftfreq(16)[:, None] ** 2 + mnp.fft.fftfreq(24) ** 2
        terms = mnp.fft.fft2(x)
        return mnp.fft.ifft2(mnp.where(k == 0, 0, terms / mnp.where(k == 0, 1, -k))).real

    part = partitioned(poisson, f32(16, 24), P("d"), P("d"))
    assert sent(part) == [("all_to_all", moved(C64))] * 2


@pytest.mark.parametrize("kind", ["fft2", "rfft2"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_filter_from_outside_is_cut_where_the_terms_are(kind, steps):
    """In a loop too, before which it is cut; it would bring the terms back to rows, by two more all-to-alls."""
    shape = (16, 13 if kind == "rfft2" else 24)
    there, back = getattr(mnp.fft, kind), getattr(mnp.fft, kind.replace("fft", "ifft").replace("ri", "ir"))
    x, k = f32(16, 24), f32(*shape)

    def f(x: Any, k: Any) -> Any:
        return lax.fori_loop(0, steps, lambda _, x: back(there(x) * k).real, x)

    rows, whole = NamedSharding(MESH, P("d")), NamedSharding(MESH, P())
    part = mw.jit(f, in_shardings=(rows, whole), out_shardings=rows).lower(x, k).partition()
    part.verify(x, k)
    kinds, numbers = zip(*sent(part))
    assert kinds == ("all_to_all",) * 2
    if steps > 1:  # and held so
        (loop,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name == "scan")
        assert all(a.aval.size <= 2 * 16 * 24 // N for a in loop.invars)
    # 13 columns are padded to 16 for four devices.
    assert sum(numbers) <= 2 * steps * moved(np.zeros((16, 16 if kind == "rfft2" else 24), np.complex64))


def test_pencils_go_there_and_back():
    """The last exchange brings both axes to where they belong at once."""
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))
    cube = RNG.normal(size=(8, 8, 8)).astype(np.complex64)
    place = NamedSharding(mesh, P("a", "b"))
    part = mw.jit(filtered("fftn"), in_shardings=place, out_shardings=place).lower(cube).partition()
    part.verify()
    tile = cube.nbytes // 4
    assert sent(part) == [("all_to_all", tile // 2), ("all_to_all", tile // 2), ("all_to_all", tile * 3 // 4)]


def test_symmetric_parts_are_made_where_the_decomposition_wants_them():
    """The array and its transpose are brought there by one all-to-all, not each by its own."""
    part = partitioned(mnp.linalg.cholesky, POSITIVE, ROWS, ROWS)
    assert sent(part) == [("all_to_all", moved(POSITIVE))] * 2


def test_merged_dimensions_that_are_both_split():
    """The axis of the minor one moves to the major one: rows of the product are shared by all devices."""
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))
    x, w = f32(8, 6, 16), f32(16, 24)

    def f(x: Any, w: Any) -> Any:
        return x.reshape(48, 16) @ w

    on = NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P())
    part = mw.jit(f, in_shardings=on).lower(x, w).partition()
    part.verify()
    assert sent(part) == [("all_to_all", x.nbytes // 4 // 2)]
    assert part.work.redundancy == 1


@pytest.mark.parametrize(
    "function",
    [lambda x: mnp.flip(x, 1), lambda x: mnp.roll(x, 3, 1), lambda x: mnp.cumsum(x, 1), lambda x: mnp.sort(x, 1)],
    ids=["flip", "roll", "cumsum", "sort"],
)
def test_what_is_wanted_along_another_dimension_is_brought_there_first(function):
    """One all-to-all, and no exchange of what the op needs of its neighbours."""
    mesh = mw.AbstractMesh((8,), ("x",))
    there, wanted = mw.NamedSharding(mesh, mw.P(None, "x")), mw.NamedSharding(mesh, mw.P("x"))
    x = mw.ShapeDtypeStruct((16, 32, 24), np.float32)
    part = mw.jit(function, in_shardings=there, out_shardings=wanted).lower(x).partition()
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_to_all", 16 * 32 * 24 * 4 // 8 * 7 // 8)]
    part.verify()
