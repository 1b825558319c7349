"""Ops that write or reduce rows, pick by masks, or have arguments of unusual shapes: values and gradients."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 5, generator=G)
PLACES = torch.tensor([2, 0])


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def same(function, *inputs, tolerance=1e-5, is_smooth=True):
    """Values are torch's, and gradients by all floats, of a sum with distinct weights."""
    model = mw.from_torch(Of(function), inputs)
    arrays = [x.numpy() for x in inputs]
    moving = [i for i, x in enumerate(inputs) if x.is_floating_point()]
    leaves = [x.clone().requires_grad_(i in moving) for i, x in enumerate(inputs)]
    want = function(*leaves)
    weights = torch.linspace(0.5, 1.5, want.numel()).reshape(want.shape)

    def loss(given):
        out = model({}, *(given[moving.index(i)] if i in moving else a for i, a in enumerate(arrays)))
        return (out * weights.numpy()).sum(), out

    (_, got), grads = mw.jit(mw.value_and_grad(loss, has_aux=True))([arrays[i] for i in moving])
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got, want.detach(), rtol=tolerance, atol=tolerance)
    if want.requires_grad and is_smooth:
        for g, w in zip(grads, torch.autograd.grad((want * weights).sum(), [leaves[i] for i in moving])):
            np.testing.assert_allclose(g, w, rtol=5 * tolerance, atol=5 * tolerance)


# --- writes where a mask is true ----------------------------------------------------------------------------
def assigned(place, add=False):
    def function(x, mask, value):
        x = x.clone()
        where = (*place, mask)
        x[where] = x[where] + value if add else value
        return x

    return function


MASK = torch.tensor([True, False, True, True])
GRID = torch.tensor([[True, False, True, False, False]] * 3 + [[False, True, True, True, False]])


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 1, 5), (3, 1, 1)])
def test_values_for_all_that_a_mask_picks(shape):
    same(assigned((slice(None),)), X, MASK, torch.randn(shape, generator=G))
    if shape == ():
        same(assigned((slice(None),)), X, GRID, torch.tensor(2.0))
        same(assigned(()), X, X > 0, torch.tensor(2.0))
    if len(shape) == 1:
        same(assigned(()), X, MASK[:3], torch.randn(1, 1, 5, generator=G))
        same(assigned(()), X, GRID[:3, :4], torch.randn(shape, generator=G))


def test_values_for_each_that_a_mask_picks_are_refused(refuses):
    with refuses(errors.RuleError, "one value for all", "test_torch_rows.py"):
        same(assigned((slice(None),)), X, torch.ones(4, dtype=torch.bool), torch.randn(4, 5))


# --- rows -----------------------------------------------------------------------------------------------------
def test_a_scalar_has_one_row():
    one, at = torch.tensor(3.0), torch.tensor([0])
    same(lambda x, i, s: x.index_add(0, i, s, alpha=2), one, at, torch.tensor(5.0))
    same(lambda x, i, s: x.index_copy(0, i, s), one, at, torch.tensor(5.0))
    same(lambda x, i: x.index_fill(0, i, 7.0), one, at)
    same(lambda x, i, s: x.index_copy(1, i, s), X, PLACES, X[:, :2] + 1)


def test_masks_are_broadcast_with_what_is_written_to():
    same(lambda x, m, s: x.masked_scatter(m, s), X[0, 0], GRID, X)
    same(lambda a, b: torch.complex(a, b).abs(), X[:, :1], X[0])


def test_elements_taken_from_all_of_an_array():
    same(lambda x, i: torch.take_along_dim(x, i), X[0], torch.tensor([[3, 1], [19, 0]]))
    same(lambda x: x.squeeze(()) * 2, X[:1, :1])
    same(lambda x, y: torch.tensordot(x, y, ((0, 1), (2, 0))), X[:, :1, :2], torch.randn(4, 2, 1, generator=G))
    same(lambda x, y: torch.tensordot(x, y, ((1,), (1,))), X, X[:, :1])


def test_positions_in_rows_that_a_permutation_sorts():
    rows = torch.randn(2, 3, 6, generator=G)
    same(lambda x, v: torch.searchsorted(x, v, sorter=x.argsort(-1), right=True), rows, X[:2, :3])
    same(lambda x, v: torch.searchsorted(x.sort(-1)[0], v), rows, X[:2, :3])


def test_numbers_repeated_as_often_as_an_argument_says(refuses):
    counts = torch.tensor([2, 0, 3])
    same(lambda x, n: x.repeat_interleave(n, 0, output_size=5), X, counts)
    with refuses(errors.ImportProgramError, "repeat_interleave", "depend on values"):
        mw.from_torch(Of(lambda x, n: x.repeat_interleave(n, 0)), (X, counts))


# --- segments ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "amax", "min", "amin", "prod"])
@pytest.mark.parametrize("initial", [None, 0.25])
def test_segments_of_lengths_that_are_arguments(reduce, initial):
    x = torch.randn(7, 3, generator=G)
    x[1] = x[0]  # of equal elements each has a part of the derivative
    options = {"initial": initial, "unsafe": True}
    run = lambda x, n: torch.segment_reduce(x, reduce, lengths=n, **options)  # noqa: E731
    same(run, x, torch.tensor([3, 0, 1, 3]))
    by_ends = lambda x, n: torch.segment_reduce(x, reduce, offsets=n, **options)  # noqa: E731
    same(by_ends, x, torch.tensor([0, 3, 3, 4, 7]))
    rows = torch.tensor([[2, 2], [1, 3], [4, 0]])
    same(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1, **options), X, rows)


def test_segments_longer_than_what_there_is_are_nan():
    model = mw.from_torch(Of(lambda x, n: torch.segment_reduce(x, "sum", lengths=n)), (X[0], PLACES + 1))
    assert np.isnan(model({}, X[0], torch.tensor([3, 4]))).all()
    np.testing.assert_allclose(model({}, X[0], torch.tensor([1, 2]))[1], X[0, 1:3].sum(0), rtol=1e-6)


# --- windows at random places -----------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [(6, 9), (5, 7, 6)])
@pytest.mark.parametrize("ratio", [0.6, None])
def test_pooling_over_windows_at_random_places(sizes, ratio):
    n = len(sizes)
    x, drawn = torch.randn(2, 3, *sizes, generator=G), torch.rand(2, 3, n, generator=G)
    x[0, 1].view(-1)[11] = torch.nan
    pool = getattr(F, f"fractional_max_pool{n}d_with_indices")
    how = {"output_ratio": (ratio,) * n} if ratio else {"output_size": (3, 4, 1)[:n]}
    same(lambda x: pool(x.nan_to_num(), 2, **how, _random_samples=drawn)[0], x)
    same(lambda x: pool(x, 2, **how, _random_samples=drawn)[1], x)
    module = getattr(nn, f"FractionalMaxPool{n}d")(2, output_size=(3, 4, 1)[:n])
    out = mw.from_torch(module, (x,))({}, x.numpy(), key=mw.random.key(0))
    assert out.shape == tuple(module(x).shape)


# --- others -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bins", [4, torch.tensor([-1.0, 0.0, 0.25, 2.0])])
def test_histograms_with_their_edges(bins):
    for options in ({}, {"density": True}, {"weight": X.abs()}):
        for i in (0, 1):
            same(lambda x, i=i, o=options: torch.histogram(x, bins, **o)[i], X, is_smooth=False)
    if isinstance(bins, int):
        same(lambda x: torch.histogram(x, 4, range=(-1.0, 0.5))[0], X, is_smooth=False)
        same(lambda x: torch.histogram(x * 0, 4)[1], X, is_smooth=False)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_products_that_torch_computes_in_chunks(reduction):
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2) if hasattr(nn, "LinearCrossEntropyOptions") else None
    if options is None:
        pytest.skip("this torch has none")
    x, w, b = torch.randn(6, 4), torch.randn(5, 4), torch.randn(5)
    labels = torch.tensor([0, 4, 2, -100, 1, 1])
    run = partial(F.linear_cross_entropy, reduction=reduction, options=options)
    same(lambda x, w, b, t: run(x, w, t, linear_bias=b), x, w, b, labels, tolerance=2e-5)


def test_rows_scaled_down_when_they_are_looked_up():
    ours, theirs = (nn.Embedding(6, 4, max_norm=1.0) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    at = torch.tensor([[0, 3], [3, 5]])
    got, want = torch.compile(ours, backend=mw.interop.torch.backend)(at), theirs(at)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_numbers_drawn_within_bounds_as_floats():
    x = torch.zeros(2000)
    draws = lambda x: (x.clone().uniform_(2.0, 3.0), torch.randint(3, 7, (2000,), dtype=torch.float32))  # noqa: E731
    uniform, whole = mw.from_torch(Of(draws), (x,))({}, x, key=mw.random.key(1))
    assert 2 <= uniform.min() < 2.01 and 2.99 < uniform.max() <= 3
    assert whole.dtype == np.float32 and set(np.asarray(whole).tolist()) == {3, 4, 5, 6}


# --- shapes that are rare -----------------------------------------------------------------------------------
def test_empty_operands_and_scalars():
    none, first = torch.zeros(0, dtype=torch.int64), torch.tensor([0])

    def function(x, one, nothing):
        reduced = [
            one.index_reduce(0, first, one * 3, how, include_self=own)
            for how in ("mean", "amax")
            for own in (False, True)
        ]
        empty = nothing.reshape(2, 0)
        parts = [x[0, 0].gather(0, none.reshape(2, 0)), torch.linalg.pinv(empty), x[0, 0].scatter(0, none, nothing)]
        counts = [torch.histc(torch.ones(5), 4), torch.histc(torch.ones(5) * 2, 4, 2, 2), torch.histc(nothing, 4)]
        edges = torch.histogram(nothing.detach(), 2).bin_edges
        return torch.cat([p.flatten() for p in (*reduced, *parts, *counts, edges)])

    same(function, X, torch.tensor(2.0), torch.zeros(0))


@pytest.mark.parametrize("dim", [-2, 0])
def test_lengths_of_broadcast_operands(dim):
    same(partial(F.cosine_similarity, dim=dim), X[:1], X[:, :1] * 2)


def test_steps_between_floats_and_parts_behind_a_position():
    def function(x, start):
        return torch.nextafter(x, x.abs() * 2).narrow(2, start, 2) * torch.narrow(x, -1, start - 5, length=2)

    same(function, X, torch.tensor(3))
    same(lambda x: torch.nextafter(x, torch.cat([x[1:].detach(), x[:1]])) ** 2, X.clone().index_fill(0, PLACES, 1.0))


def test_rows_mapped():
    from torch._higher_order_ops.map import map as over_rows

    same(lambda x, w: over_rows(lambda row, w: (row * w).sin(), x, w), X, X[0].clone())


def test_integers_made_of_floats_are_cut_off():
    whole, ends = torch.arange(6).reshape(2, 3), torch.tensor([-2.7, 3.2])

    def function(x, ends):
        made = [torch.arange(1.0, 5.000001, 2.0, dtype=torch.int64), torch.linspace(7.9, -3.2, 50, dtype=torch.int32)]
        made += [torch.linspace(-2, 0, n, dtype=torch.int64) for n in (1, 2, 5)]
        made += [torch.linspace(ends[0], ends[1], 5, dtype=torch.int64)]
        added = (
            torch.addmv(x[:, 0], x, x[0], beta=0.2, alpha=1.6),
            torch.baddbmm(x[None], x[None, :, :2], x[None], beta=2.2),
        )
        return torch.cat([p.flatten() for p in (*made, *added)])

    same(function, whole, ends, is_smooth=False)


def test_sums_of_complex_exponentials():
    def function(x, y):
        z = torch.logaddexp(torch.complex(x, 2 * y), torch.complex(y, 3 * x))
        running = torch.complex(7 * x, 9 * y).logcumsumexp(1)
        return torch.view_as_real(torch.stack([z, running]))

    same(function, X, X.flip(0))


@pytest.mark.parametrize("order", [-2.5, -1.0, 0.5, 3.0])
def test_norms_of_vectors_with_zeros(order):
    zeros = X.clone().index_fill(2, PLACES, 0.0).index_fill(1, PLACES, 0.0)
    same(lambda x: torch.linalg.vector_norm(x, order, dim=2), zeros)


def test_integers_between_fractions_are_integers():
    whole = torch.arange(-3, 4)
    outs = mw.from_torch(Of(lambda x: (F.hardtanh(x, -1.7, 2.9), F.relu6(x), torch.mvlgamma(x + 9, 3))), (whole,))
    with mw.enable_x64(True):
        for a, b in zip(outs({}, whole.numpy()), outs.program.module()(whole)):
            assert a.dtype.name == str(b.dtype)[6:]
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_orthogonal_polynomials_and_poles_of_zeta():
    names = [f"chebyshev_polynomial_{kind}" for kind in "tuvw"]
    names += [f"shifted_{name}" for name in names]
    names += ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]
    s = torch.special

    def function(x, n):
        found = [p for name in names for f in [getattr(s, name)] for p in (f(x, n[:, None]), f(x, 3), f(0.5, n))]
        return *found, s.zeta(n[:, None].clamp(0.5), n)

    x, n = torch.linspace(-1.3, 1.3, 7), torch.tensor([-2, 0, 1, 2, 3.7, 9])
    for i, (a, b) in enumerate(zip(mw.from_torch(Of(function), (x, n))({}, x.numpy(), n.numpy()), function(x, n))):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=str(i))
    assert mw.from_torch(Of(s.hermite_polynomial_h), (x[:0], x[:0]))({}, x[:0], x[:0]).shape == (0,)


def test_bools_are_torchs_and_poles_of_polygamma():
    def function(x, b):
        rows = b[:, None] & b[None]
        added = [torch.addr(rows, b, b, beta=beta, alpha=2) for beta in (0, 3)]
        sums = [rows.sum_to_size(3, 3), rows.sum_to_size(3, 1), rows.sum_to_size(3)]
        at = torch.tensor([0, 2, 0])
        sums += [rows.prod(1, dtype=torch.bool), rows.to(torch.int8).sum(0, dtype=torch.int8).bool()]
        sums += [b.scatter_reduce(0, at, b, how, include_self=own) for how in ("amax", "amin") for own in (True, False)]
        sums += [*b.cummax(0), *rows.cummin(1)]
        return *added, *sums, torch.square(b), *(torch.polygamma(n, x) for n in (0, 2, 3))

    x, b = torch.tensor([0.0, -2, 0.5, -0.5]), torch.tensor([True, False, True])
    for i, (got, want) in enumerate(zip(mw.from_torch(Of(function), (x, b))({}, x.numpy(), b.numpy()), function(x, b))):
        assert (got.dtype == bool) == (want.dtype == torch.bool), i
        np.testing.assert_allclose(got, want, rtol=1e-3, err_msg=str(i))
