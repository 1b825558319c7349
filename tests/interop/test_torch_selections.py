"""Rows that a mask picks: values and gradients are torch's, also where other rows have none, or there are none."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
F = torch.nn.functional

from test_torch_rows import Of, same  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 3, 5, generator=G), torch.randn(4, 3, 5, generator=G)
W = torch.randn(2, 5, generator=G)
LABELS, MASK = torch.randint(0, 5, (4, 3), generator=G), torch.rand(4, 3, generator=G) > 0.4


def _written(x, y):
    """Under masks that are computed twice; the logarithms of other elements are NaN."""
    x = x.clone()
    x[y > 0] = torch.log(y[y > 0]) * 2 + x[y > 0]
    return x


def _written_in_part(x, y):
    x, chosen = x.clone(), y[0, :, 0] > 0
    x[:, chosen] = torch.softmax(y[:, chosen], -1)
    x[x < -1] *= 3
    return x.masked_scatter(y > 1, torch.masked_select(x, y > 1) + 1)


def _reduced(x, mask):
    rows = x[mask]
    parts = rows.mean(0), rows.amax(0), rows.std(-1).logsumexp(0, keepdim=True), (rows.shape[0] * x[0, 0])
    return torch.cat([*parts, rows.norm()[None], rows.sum()[None], (rows.sum(-1) ** 2).mean()[None]])


def _lost(x, y, labels, mask, w):
    mse, smooth = F.mse_loss(x[mask], y[mask]), F.smooth_l1_loss(x[mask], y[mask], reduction="sum")
    flat, which = labels.view(-1)[mask.view(-1)], mask.view(-1)
    classes = F.cross_entropy(x.view(-1, 5)[which], flat), F.nll_loss(F.log_softmax(x[mask], -1), labels[mask])
    each = F.cross_entropy(F.linear(x[mask], w), labels[mask] % 2, reduction="none")
    return torch.stack([mse, smooth, *classes, (each * each).mean()])


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (_written, (X, Y)), (_written_in_part, (X, Y)), (_reduced, (X, MASK)), (_lost, (X, Y, LABELS, MASK, W)),
        (lambda x, m: x[m].prod(), (X, MASK)), (lambda x, m, w: F.embedding(x[m], w).mean(), (LABELS % 2, MASK, W)),
    ],
)  # fmt: skip
def test_rows_under_a_mask(function, inputs):
    same(function, *inputs, tolerance=2e-5)


def test_without_rows_sums_are_zero_and_nothing_moves():
    function = lambda x, w, m: F.linear(torch.log(x[m]), w).sum() + x[m].shape[0] * w.sum()  # noqa: E731
    same(function, -X.abs(), W, torch.zeros(4, 3, dtype=torch.bool))


def test_rows_of_a_split_array_stay_where_they_are():
    module = Of(lambda x, y, m: (F.mse_loss(x[m].tanh(), y[m]), _written(x, y)))
    model = mw.from_torch(module, (X, Y, MASK))
    split = mw.NamedSharding(mw.make_mesh((2, 2), ("x", "y")), mw.P("x"))
    arrays = [a.numpy() for a in (X, Y, MASK)]
    part = mw.jit(lambda *a: model({}, *a), in_shardings=split).lower(*arrays).partition()
    part.verify(*arrays)
    assert all(int(np.prod(c.result.shape)) <= 5 for c in part.collectives), str(part)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: x[x > 0].sort()[0].sum(),
        lambda x: x[x > 0].view(-1, 1).sum(),
        lambda x: x[x > 0].median(),
    ],
)
def test_what_needs_the_rows_alone_is_refused(function, refuses):
    with refuses(errors.ImportProgramError, "depend on values", "test_torch_rows.py"):
        mw.from_torch(Of(function), (X,))
