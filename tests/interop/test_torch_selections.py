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


def _spline(x, y, mask):
    """As splines compute: sums along rows, padded, their ends assigned to, and read at positions within rows."""
    widths = torch.softmax(y[mask, :], -1)
    knots = F.pad(torch.cumsum(widths, -1), (1, 0), value=0.25) * 2
    knots[..., 0], knots[..., -1] = -1.0, x[mask].amax(-1)
    knots[..., 1:3] = knots[..., 2:4] * 0.5
    at = (x[mask][:, :2] > knots[:, 3:5]).long() + 1
    out = torch.zeros_like(x)
    out[mask] = F.pad(knots.gather(-1, at) / widths.gather(-1, at), (1, 2), "replicate")
    return out


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (_spline, (X, Y, MASK)),
        (_written, (X, Y)), (_written_in_part, (X, Y)), (_reduced, (X, MASK)), (_lost, (X, Y, LABELS, MASK, W)),
        (lambda x, m: x[m].prod(), (X, MASK)),
        (lambda x, m: x[m].view(-1, 5, 1).transpose(1, 2).sum(0), (X, MASK)),
        (lambda x, m, w: F.embedding(x[m], w).mean(), (LABELS % 2, MASK, W)),
    ],
)  # fmt: skip
def test_rows_under_a_mask(function, inputs):
    same(function, *inputs, tolerance=2e-5)


def test_without_rows_sums_are_zero_and_nothing_moves():
    function = lambda x, w, m: F.linear(torch.log(x[m]), w).sum() + x[m].shape[0] * w.sum()  # noqa: E731
    same(function, -X.abs(), W, torch.zeros(4, 3, dtype=torch.bool))


def test_rows_padded_and_assigned_to_are_refused(refuses):
    def padded(x, mask):
        return F.pad(x[mask], (0, 0, 1, 0)).sum(0)

    def assigned(x, mask):
        rows = x[mask] * 1
        rows[0] = 1.0
        return rows.sum(0)

    for function in (padded, assigned):
        with refuses(errors.ImportProgramError, "depend on values"):
            mw.from_torch(Of(function), (X, MASK))


def test_a_test_of_whether_a_mask_picks_any_can_be_left_out(refuses):
    def tests(x, mask):
        x = x.clone()
        if mask.any():
            x[mask] = x[mask].exp()
        return x

    with refuses(errors.ImportProgramError, "Leave out the test"):
        mw.from_torch(Of(tests), (X, MASK))


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
        lambda x: x[x > 0].view(-1, 1).cumsum(0).sum(),
        lambda x: x[x > 0].median(),
    ],
)
def test_what_needs_the_rows_alone_is_refused(function, refuses):
    with refuses(errors.ImportProgramError, "depend on values", "test_torch_rows.py"):
        mw.from_torch(Of(function), (X,))


# --- edges of a graph, which say what is read and where it is written -------------------------------------------
NODES = torch.randn(6, 5, generator=G)
EDGES = torch.tensor([[0, 1, 2, 2, 3, 5, 4, 1], [1, 1, 0, 4, 3, 2, 0, 5]])  # two from a node to itself
WEIGHTS = torch.rand(8, generator=G) + 0.5


def _with_loops(edges, weights):
    """Without edges from a node to itself; then each node has one, of the weight that it had, or of 1."""
    others, loops = edges[0] != edges[1], torch.ones(6)
    loops[edges[0][~others]] = weights[~others]
    joined = torch.cat([edges[:, others], torch.arange(6).expand(2, -1)], 1)
    return joined, torch.cat([weights[others], loops])


def _convolved(nodes, edges, weights):
    (row, col), each = (found := _with_loops(edges, weights))[0], found[1]
    degree = torch.zeros(6).scatter_add_(0, col, each).pow(-0.5)
    message = (degree[row] * each * degree[col]).view(-1, 1) * nodes.index_select(0, row)
    return torch.zeros_like(nodes).scatter_add_(0, col.view(-1, 1).expand_as(message), message)


def _attended(nodes, edges, w):
    edges = edges[:, edges[0] != edges[1]]
    row, col = torch.cat([edges, torch.stack([torch.arange(6)] * 2)], dim=1)
    score = F.leaky_relu(F.linear(torch.cat([nodes[row], nodes[col]], -1), w.repeat(1, 2))).sum(-1)
    top = torch.full((6,), -torch.inf).scatter_reduce(0, col, score.detach(), "amax", include_self=False)
    e = (score - top[col]).exp()
    total = nodes.new_zeros(6).index_add(0, col, e)
    return nodes.new_zeros(6, 5).index_add(0, col, (e / total[col]).unsqueeze(-1) * nodes[row])


def _reduced_by_target(nodes, edges, how, include_self):
    kept = edges[:, edges[0] < edges[1]]
    index = kept[1].unsqueeze(-1).expand(-1, 5)
    return torch.ones(6, 5).scatter_reduce(0, index, nodes[kept[0]], how, include_self=include_self)


def _picked_twice(nodes, edges, weights):
    kept, each = edges[:, weights > 0.6], weights[weights > 0.6]
    is_loop = kept[0] == kept[1]
    each[is_loop] = each[is_loop] * 3 - 1
    each = torch.where(each > 1, each, torch.ones(each.shape[0]))
    far = ~is_loop
    out = torch.zeros(6, 5)
    out[kept[1][far]] = nodes[kept[0][far]] * each[far].view(-1, 1)
    return out.index_put((kept[0],), torch.gather(nodes, 0, kept.t()[:, :1].expand(-1, 5)), accumulate=True)


def _written_then_logarithm(x, mask, factor):
    rows = x[mask]
    is_low = rows < 0
    rows[is_low] = 0 * rows[is_low] + 1.5
    return torch.log(rows).mul(factor).sum()[None]


@pytest.mark.parametrize("kept", [slice(None), slice(0, 0), slice(0, 2)])
def test_copies_of_a_row_have_what_is_written_there(kept):
    """The first row that the mask picks has no logarithm before it is written to, and nor would its copies."""
    x, mask = torch.tensor([[2.0, -1], [0, 3], [-4, 2]]), torch.zeros(3, 2, dtype=torch.bool)
    mask.view(-1)[torch.tensor([1, 3, 5])[kept]] = True
    same(_written_then_logarithm, x, mask, torch.tensor([2.0]))


GRAPHS = [
    (_convolved, (NODES, EDGES, WEIGHTS)),
    (_attended, (NODES, EDGES, W)),
    (_picked_twice, (NODES, EDGES.flip(1), WEIGHTS)),
    *(
        (lambda x, e, how=how, own=own: _reduced_by_target(x, e, how, own), (NODES, EDGES))
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
]


@pytest.mark.parametrize(("function", "inputs"), GRAPHS)
def test_edges_under_a_mask(function, inputs):
    same(function, *inputs, tolerance=2e-5)


@pytest.mark.parametrize(("function", "inputs"), GRAPHS)
@pytest.mark.parametrize("edges", [EDGES[:, :1].expand(-1, 8), EDGES[:, 1:2].expand(-1, 8)])
def test_all_edges_and_none_under_a_mask(function, inputs, edges):
    if function is not _picked_twice:  # which writes to a row more than once, in an order that nobody knows
        same(function, inputs[0], edges, *inputs[2:], tolerance=2e-5)


def test_edges_split_over_devices():
    model = mw.from_torch(Of(_convolved), (NODES, EDGES, WEIGHTS))
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    arrays = [a.numpy() for a in (NODES, EDGES, WEIGHTS)]
    specs = mw.P("y", "x"), mw.P(None, "x"), mw.P("x")
    step = mw.grad(lambda *a: (model({}, *a) ** 2).sum(), argnums=(0, 2))
    part = mw.jit(step, in_shardings=tuple(mw.NamedSharding(mesh, s) for s in specs)).lower(*arrays).partition()
    part.verify(*arrays)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, e: torch.cat([torch.arange(6), e[0][e[0] > 1]]) + torch.cat([e[0][e[0] > 1], torch.arange(6)]),
        lambda x, e: x.index_add(0, torch.arange(3), x[e[0][e[0] > 1]][:3]),
        lambda x, e: x.scatter_add(1, e[0][e[0] > 3].view(-1, 1), x),
        lambda x, e: torch.cat([e[0][e[0] > 1], e[1][e[0] > 1]]).view(2, -1).sum(1),
    ],
)
def test_edges_in_an_order_that_is_not_known_are_refused(function, refuses):
    with refuses(errors.ImportProgramError):
        mw.from_torch(Of(function), (NODES, EDGES))
