"""Writes in a forward: who sees them, and that those which nobody else sees need no second trace of torch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
F = torch.nn.functional

import meshwright as mw  # noqa: E402


class All(torch.nn.Module):
    """The results of several functions of copies of one tensor."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        return [f(x.clone()) for f in self.functions]


def agree(functions):
    """Results and gradients are torch's."""
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    module = All(functions).eval()
    model = mw.from_torch(module, (x,))

    def loss(x):
        outs = model({}, x)
        return sum((y.astype(np.float32) ** 2).sum() for some in outs for y in some), outs

    grad, outs = mw.jit(mw.grad(loss, has_aux=True))(x.numpy())
    given = x.clone().requires_grad_()
    want = module(given)
    for i, (some, others) in enumerate(zip(outs, want)):
        for a, b in zip(some, others):
            np.testing.assert_allclose(a, b.detach(), rtol=1e-5, atol=1e-6, err_msg=str(i))
    sum((y.float() ** 2).sum() for some in want for y in some).backward()
    np.testing.assert_allclose(grad, given.grad, rtol=1e-4, atol=1e-5)


def chained(x):
    y = F.relu(F.linear(x, x) + 1, inplace=True).mul(2)
    y += x
    return [y.masked_fill_(y < 0.2, 0.0)]


def read_before(x):
    y = x.sin()
    twice = y * 2
    z = y.add_(twice)
    z.mul_(3)
    return y, z, twice, y.view(-1)


def constants(x):
    return [x * torch.tensor(2.0) + torch.tensor([1.0, 2, 3, 4])]


def detached(x):
    y = x.sin()
    before = y * 3
    y.detach_()
    return before, y * x


def rounded(x):
    y = (x > 0).to(torch.int32)
    y *= 2
    z = x.half().mul(3)
    z.add_(x)
    return y, z, (x * 1.5).clamp_(-1, 1)


def test_writes_that_nobody_else_sees_are_traced_once(monkeypatch):
    def again(*_):
        raise AssertionError("traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", again)
    agree([chained, read_before, constants, detached])


def viewed(read):
    """A function that reads a value before it is written to, and returns what is read."""

    def function(x):
        y = x.sin()
        seen = read(y)
        y.add_(1)
        return seen, y

    return function


def viewed_again(x):
    y = x.sin()
    y.mul_(2)
    z = y.view(-1)
    z[:3] += 1
    return y, z


def test_views_see_what_is_written():
    views = [
        lambda y: y.view(-1), lambda y: F.dropout(y, 0.5, False), lambda y: torch.dropout(y, 0.0, True),
        lambda y: torch.nn.Dropout(0.5).eval()(y)[1:], lambda y: torch.broadcast_tensors(y, y.new_ones(2, 1, 1))[0],
        lambda y: torch.einsum("ij->ji", y), lambda y: torch.einsum("ii->i", y), lambda y: torch.einsum("ij->i", y),
        lambda y: torch.meshgrid(y[0], y[1, :3], indexing="xy")[0], lambda y: torch.meshgrid(y[0], indexing="ij")[0],
        lambda y: y.type_as(y), lambda y: y.to(torch.float32), lambda y: torch.atleast_3d(y),
        lambda y: y.tensor_split(2)[1],
    ]  # fmt: skip
    agree([viewed_again, rounded, *map(viewed, views)])


class Statistics(torch.nn.Module):
    """Norms in training, one of them twice, and buffers that are read before and after they are written to."""

    def __init__(self, sees):
        super().__init__()
        self.norm, self.other = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, momentum=None if sees else 0.3)
        self.register_buffer("count", torch.zeros(4))
        self.sees = sees

    def forward(self, x):
        before = self.count * 2
        seen = self.count.view(2, 2) if self.sees else before
        x = F.relu(self.norm(x), inplace=True)
        self.count += x.detach().sum(0)
        self.count.mul_(2)
        y = self.other(self.norm(x)) * self.norm.running_mean + self.count
        return y.add_(before), self.count, seen


@pytest.mark.parametrize("sees", [False, True])
def test_what_is_written_to_buffers_comes_out(sees, monkeypatch):
    if not sees:
        monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    torch.manual_seed(0)
    x, module = torch.randn(6, 4), Statistics(sees)
    model = mw.from_torch(module, (x,))
    for _ in range(2):
        outs, buffers = model.apply(model.params, model.buffers, x.numpy())
        for a, b in zip(outs, module(x)):
            np.testing.assert_allclose(a, b.detach(), rtol=1e-5, atol=1e-5)
        assert buffers.keys() == model.buffers.keys() == dict(module.named_buffers()).keys()
        for name, b in module.named_buffers():
            np.testing.assert_allclose(buffers[name], b, rtol=1e-5, atol=1e-6, err_msg=name)
        model.buffers = buffers
