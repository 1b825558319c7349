"""Tensors of one integer as indices (``x[i]``, ``cache[:, i] = y``): positions that only a run knows, in views too."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 2, 24).reshape(4, 6))
        self.register_buffer("at", torch.tensor(2))
        self.register_buffer("rows", torch.linspace(3, -2, 24).reshape(4, 6))
        self.function = function

    def forward(self, x, i):
        return self.function(self, x, i)


def read(self, x, i):
    return self.w[i] * x + self.w[-i, i + 1] + x[:, i][:, None] + self.w[self.at] + x.sum() * self.w[x[:, 0].argmax()]


def read_as_views(self, x, i):
    y = x.clone() * self.w[:3]
    y[i][2] = 5.0
    y[:, i].mul_(2)
    y.select(1, i + 1).add_(self.w[0, :3])
    torch.narrow(y, 1, i - 4, 2).mul_(self.w[i, :2])
    return y


def written(self, x, i):
    y, z = x.clone(), torch.zeros(2, 3, 6) * self.w[0]
    y[i] += self.w[i]
    y[:, i] = self.w[:3, 0]
    y[i, i] = 2.0
    y[0, 1:3] = y[i, 2:4]
    y[..., i - 1] = 4.0
    z[:, i, 1:] = x[:2, 1:]
    z[0, None, i] = x[:1]
    return y, z


def written_beside_others(self, x, i):
    y = x * self.w[:3]
    y[torch.tensor([0, 2]), i] = x[:2, 0]
    y[i, [1, 3]] = x[0, :2]
    y[i, y[i] > 0.5] = 4.0
    return y


def queued(self, x, i):
    self.rows[self.at] = x.mean(0).detach()
    self.at.copy_((self.at + 1) % 4)
    return x @ (self.w * self.rows).T + self.rows[self.at, i]


def counted(self, x, i):
    n = i.item()
    y = (torch.arange(6) < n) * x * n
    return y[:, n : n + 2] + x[:, :2] * self.w[0, n]


def in_slices(self, x, i):
    y, n = x.clone(), i.item()
    y[:, i : i + 2] = self.w[:3, 1:3]
    y[i] += self.w[i]
    y[1:, i * 2 : (i + 1) * 2] *= self.w[0, i : i + 2]
    return y, y[:, n - 1 : n + 3], self.w[None, i, i : i + 3], self.w[i, 4 - i : 6 - i, None], y[..., i - 5 : i - 3]


@pytest.mark.parametrize("i", [1, 2])
@pytest.mark.parametrize(
    "function",
    [read, read_as_views, written, written_beside_others, queued, counted, in_slices],
    ids=lambda f: f.__name__,
)
def test_positions_are_arguments(function, i):
    module = Of(function)
    model = mw.from_torch(module, (X, torch.tensor(1)))
    assert set(model.buffers) <= {"at", "rows"}
    weights = np.linspace(0.5, 1.5, 36, dtype="f")

    def loss(params, x):
        outs, buffers = model.apply(params, model.buffers, x, np.int32(i))
        outs = outs if isinstance(outs, tuple) else (outs,)
        return sum((o.reshape(-1) * weights[: o.size]).sum() for o in outs), (outs, buffers)

    (_, (got, buffers)), (of_params, of_x) = mw.jit(mw.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
        model.params, X.numpy()
    )
    x = X.clone().requires_grad_()
    want = module(x, torch.tensor(i))
    want = want if isinstance(want, tuple) else (want,)
    sum((o.flatten() * torch.from_numpy(weights)[: o.numel()]).sum() for o in want).backward()
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, x.grad, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_params["w"], module.w.grad, rtol=1e-5, atol=1e-5)
    for name, buffer in buffers.items():
        np.testing.assert_allclose(buffer, getattr(module, name), rtol=1e-5, atol=1e-6)


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("keys", torch.zeros(4, 12, 2, 8))
        self.register_buffer("values", torch.zeros(4, 12, 2, 8))

    def forward(self, x, at):
        q, k, v = self.into(x).view(4, 3, 2, 8).unbind(1)
        self.keys[:, at], self.values[:, at] = k, v
        seen = torch.arange(12) <= at
        y = F.scaled_dot_product_attention(
            q[:, :, None], self.keys.transpose(1, 2), self.values.transpose(1, 2), attn_mask=seen[None]
        )
        return self.out(y.reshape(4, 16))


def test_a_cache_at_a_position_split_over_devices():
    torch.manual_seed(0)
    module, mesh = Cached(), mw.make_mesh((2, 2), ("data", "model"))
    xs = torch.randn(3, 4, 16)
    model = mw.from_torch(module, (xs[0], torch.tensor(0)))
    cached = mw.NamedSharding(mesh, mw.P("data", None, "model"))
    by_batch = mw.NamedSharding(mesh, mw.P("data"))
    step = mw.jit(
        lambda buffers, x, at: model.apply(model.params, buffers, x, at),
        in_shardings=({"keys": cached, "values": cached}, by_batch, None),
    )
    buffers = model.buffers
    with torch.no_grad():
        for at, x in enumerate(xs):
            got, buffers = step(buffers, x.numpy(), np.int32(at))
            np.testing.assert_allclose(got, module(x, torch.tensor(at)), rtol=1e-5, atol=1e-5)


def test_lengths_that_a_position_decides_are_refused(refuses):
    with refuses(errors.ImportProgramError, "aten.slice.Tensor"):
        mw.from_torch(Of(lambda self, x, i: x[:, : i.item()]), (X, torch.tensor(1)))


def test_slices_of_all_elements_are_refused(refuses):
    """They would begin at 0 in any run."""
    with refuses(errors.ImportProgramError, "aten.slice.Tensor"):
        mw.from_torch(Of(lambda self, x, i: x[:, i : i + 6]), (X, torch.tensor(0)))


def test_what_a_slice_does_not_have_is_not_a_number():
    """Torch's has fewer elements there, or none, and assigns to as many."""

    def function(self, x, i):
        y = x.clone()
        y[:, i : i + 4] = 0.0
        return x[:, i : i + 4], x.narrow(1, i, 4), y

    model = mw.from_torch(Of(function), (X, torch.tensor(1)))
    for i in (2, -6, -5):
        np.testing.assert_array_equal(model(model.params, X.numpy(), np.int32(i))[0], X[:, i:][:, :4])
    for i in (3, 9, -4, -1, -7, -12):
        parts = model(model.params, X.numpy(), np.int32(i))
        assert np.isnan(parts[0]).all() and np.isnan(parts[2]).all()
        assert np.isnan(parts[1]).all() == (i not in (-4,))


def test_lengths_are_of_what_positions_are_when_they_are_read(refuses):
    def function(self, x, i):
        pair = i + torch.tensor([0, 1])
        start, stop = pair[0], pair[0] + 2
        pair.add_(1)
        return x[:, start:stop]

    with refuses(errors.ImportProgramError, "aten.slice.Tensor"):
        mw.from_torch(Of(function), (X, torch.tensor(1)))


BYTES = {
    "read": lambda self, x, m: x[m].sum(0) * x[:, m[[0, 1, 2, 0, 1, 2]]].sum(),
    "scalar": lambda self, x, m: x[m[1]].sum(0) + x[:, m[0]].sum(1).sum(0),
    "written": lambda self, x, m: x.clone().index_put_((m,), x[:1] * 2),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_truth_values_and_no_positions(name):
    masks = [torch.tensor(m, dtype=torch.uint8) for m in ([1, 0, 1], [0, 1, 1])]
    module = Of(BYTES[name])
    model = mw.from_torch(module, (X, masks[0]))
    for mask in masks:
        got = model(model.params, X.numpy(), mask.numpy())
        np.testing.assert_allclose(got, module(X, mask), rtol=1e-5, atol=1e-5)


def test_positions_outside_are_not_a_number():
    """Torch raises."""
    index = torch.tensor([[0, 2], [1, -3]])
    module = Of(lambda self, x, i: (x[i], x[:, i], self.rows.long()[i], x[i] > 9))
    model = mw.from_torch(module, (X, index))
    for got, want in zip(model(model.params, X.numpy(), index.numpy()), module(X, index)):
        np.testing.assert_array_equal(got, want)
    for outside in (3, -4):
        got = model(model.params, X.numpy(), np.array([[0, outside], [1, 2]], np.int32))[0]
        assert np.isnan(got[0, 1]).all() and not np.isnan(np.delete(got.reshape(4, 6), 1, 0)).any()
    slope = mw.grad(lambda x: mw.numpy.nansum(model(model.params, x, np.array([[0, 2], [1, 3]], np.int32))[0]))
    np.testing.assert_array_equal(slope(X.numpy()), np.ones((3, 6)))
