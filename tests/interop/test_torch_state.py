"""Forwards of PyTorch modules that read or write state: buffers in Python, parameters, data, attributes."""

import copy
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


class Stateful(nn.Module):
    """Runs a function of itself and the argument, on a parameter and some buffers."""

    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0]))
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("on", torch.tensor([1], dtype=torch.uint8))
        self.function, self.calls = function, 0

    def forward(self, x):
        return self.function(self, x)


def check(function, warns=None, fixed=()):
    """Results, new buffers and gradients are torch's."""
    module, x = Stateful(function), torch.randn(4, 3)
    theirs = copy.deepcopy(module)
    if warns is None:
        model = mw.from_torch(module, (x,))
    else:
        with pytest.warns(errors.MutationWarning, match=warns):
            model = mw.from_torch(module, (x,))
    assert set(model.buffers) == {"scale", "count", "on"}.difference(fixed)
    assert torch.equal(module.w, theirs.w) and module.calls == theirs.calls
    out, buffers = model.apply(model.params, model.buffers, x.numpy())
    grads = mw.grad(lambda p: (model(p, x.numpy()) ** 2).sum())(model.params)
    want = theirs(x)
    (want**2).sum().backward()
    np.testing.assert_allclose(out, want.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads["w"], theirs.w.grad, rtol=1e-5)
    for name, value in buffers.items():
        np.testing.assert_allclose(value, getattr(theirs, name), rtol=1e-6)
    return model


def padded_by_a_buffer(self, x):
    if self.on[0] == 1:
        x = F.pad(x, (self.count - 1, max(self.count // 2, 0)))
    rows = torch.zeros(self.count, 3) + self.w
    return x[..., : -self.count + 1][:, :3] * rows.expand(2, 3)[self.count - 1]


def test_buffers_that_python_reads_are_constants_of_the_program(refuses):
    model = check(padded_by_a_buffer, fixed={"on", "count"})
    with refuses(errors.ArgumentError, "left over are ['count']"):
        model.apply(model.params, {**model.buffers, "count": np.int64(3)}, np.ones((4, 3), np.float32))


def test_buffers_that_python_does_not_read_stay_arguments():
    check(lambda self, x: x * self.w * self.scale * self.count + torch.stack([self.count, self.count]).sum())


def counting(self, x):
    self.count += 1
    return x * self.w if self.count > 2 else x


def counted_later(self, x):
    y = x * self.w if self.count > 1 else x
    self.count.add_(1)
    return y


def test_buffers_that_python_reads_and_the_forward_writes_are_refused(refuses):
    for function in (counting, counted_later):
        with refuses(errors.ImportProgramError, "depend", "values"):
            mw.from_torch(Stateful(function), (torch.ones(4, 3),))


def clipped(self, x):
    with torch.no_grad():
        self.w.clamp_(-1.5, 1.5)
    return x * self.w


def renormalized(self, x):
    self.w.data = torch.renorm(self.w.data[None], 2, 0, 1.0)[0]
    return x * self.w


def exchanged(self, x):
    """Views of what was there before keep its values."""
    old = self.w.data
    self.w.data = self.scale * self.w * 3
    y = x * self.w
    self.w.data = old
    return y + x * self.w


def written_after(self, x):
    with torch.no_grad():
        self.w.data = self.w * 2
        self.w.mul_(3)
    return x * self.w


@pytest.mark.parametrize("function", [clipped, renormalized, exchanged, written_after])
def test_parameters_that_the_forward_writes(function):
    check(function, warns="its parameter 'w' in place; the function made of it computes with what is written")


def averaged(self, x):
    self.scale.data = self.scale * 0.9 + x.detach().mean(0) * 0.1
    y = x * self.w
    y.data = y.data * 2
    return y * self.scale


def test_data_of_buffers_and_of_results_is_assigned():
    check(averaged)


def resized(self, x):
    self.w.data = x.sum()
    return x * self.w


def test_data_of_another_shape_is_refused(refuses):
    with refuses(errors.RuleError, "(3,)", "()", "Assign to a variable"):
        mw.from_torch(Stateful(resized), (torch.ones(4, 3),))


def calls_counted(self, x):
    self.calls += 1
    return x * self.w * self.calls


def test_attributes_are_as_they_were():
    check(calls_counted)


def test_norms_that_only_read_their_statistics_are_traced_once(monkeypatch):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.InstanceNorm1d(3, track_running_stats=True)).eval()
    x = torch.randn(4, 3)
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    model = mw.from_torch(module[:2], (x,))
    np.testing.assert_allclose(model(model.params, x.numpy()), module[:2](x).detach(), rtol=1e-5, atol=1e-6)


def selected(self, x):
    """By masks of a buffer, of constants, beside positions."""
    y = (x * self.w)[:, :, None] * x[:, None]
    mask = torch.ones(3, 3).tril() == 1
    rows, columns = torch.where(mask)
    y = y.clone()
    y[torch.tensor([True, False] * 2), 1] = self.w
    picked = y[:, self.on.bool().expand(3)], y[:, mask], y[:, rows, columns], y.masked_select(mask).reshape(4, -1)
    some = y[:, torch.unique(torch.tensor([2, 0, 2]))], torch.combinations(y[0, 0])[None].expand(4, -1, -1)
    return torch.cat([p.reshape(4, -1) for p in (*picked, *some)], 1) + torch.nonzero(mask).sum()


def test_shapes_that_come_from_values_which_are_the_same_in_every_call():
    check(selected, fixed={"on"})


class Cache:
    def __init__(self, rows, count):
        self.rows, self.count = rows, count


class Caching(torch.nn.Module):
    def forward(self, x, cache):
        return x.sum(), Cache([torch.roll(r, 1) + x for r in cache.rows], cache.count + 1)


def test_classes_that_torch_knows_come_out_by_name_and_go_in_again(refuses):
    rows = [torch.arange(3.0), torch.ones(3)]
    x, cache = torch.ones(3), Cache(rows, torch.tensor(0))
    with refuses(errors.ImportProgramError, "register_pytree_node", "use_cache=False"):
        mw.from_torch(Caching(), (x, cache))
    torch.utils._pytree.register_pytree_node(
        Cache,
        lambda c: ([c.rows, c.count], ["rows", "count"]),
        lambda parts, names: Cache(*parts),
        flatten_with_keys_fn=lambda c: (
            [(torch.utils._pytree.MappingKey(n), v) for n, v in vars(c).items()],
            ["rows", "count"],
        ),
    )
    model = mw.from_torch(Caching(), (x, cache))
    out, want = cache, cache
    for step in (lambda c: model({}, x, c)[1], mw.jit(lambda c: model({}, x, c)[1])):
        out, want = step(out), Caching()(x, want)[1]
    np.testing.assert_allclose(np.stack(out.rows), torch.stack(want.rows))
    assert out.count == 2
    with refuses(errors.ArgumentError, "of another structure"):
        model({}, x, mw.interop.torch.Outputs(rows=rows))


def test_numpy_arrays_of_what_is_the_same_in_every_call():
    """Schedulers of diffusers interpolate their noise levels by NumPy."""

    class Schedule(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.linspace(1.0, 0.1, 5))
            self.levels = torch.linspace(0.1, 2.0, 5)

        def forward(self, x):
            levels = (((1 - self.kept) / self.kept) ** 0.5).numpy() + self.levels.numpy()
            some = np.interp(np.linspace(0, 4, 3), np.arange(5), levels)
            return x * torch.from_numpy(some).float() + float(self.kept.cpu().numpy().sum())

    module, x = Schedule(), torch.randn(3)
    model = mw.from_torch(module, (x,))
    assert not model.buffers
    np.testing.assert_allclose(model({}, x.numpy()), module(x), rtol=1e-6)


@pytest.mark.parametrize("read", (lambda s, x: np.asarray(x).sum(), lambda s, x: s.scale.numpy().fill(2.0)))
def test_numpy_arrays_of_arguments_and_writes_to_them_are_refused(read):
    with pytest.raises(errors.ImportProgramError, match=r"test_torch_state.py:\d+"):
        mw.from_torch(Stateful(lambda s, x: x * (read(s, x) or 1.0)), (torch.ones(3),))


class Shared(nn.Module):
    """Which has a norm of which it trains the statistics twice, and a buffer under a second name."""

    def __init__(self, part):
        super().__init__()
        self.norm, self.w = nn.BatchNorm1d(3), nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.again = self.norm
        self.register_buffer("sums", torch.zeros(2, 3))
        self.register_buffer("same", part(self.sums))

    def forward(self, x):
        self.sums += x[:2].detach()
        return self.again(self.norm(x * self.w) * 2) + self.same[0]


def test_buffers_of_several_names_are_one(refuses):
    torch.manual_seed(0)
    module, x = Shared(lambda sums: sums.detach()), torch.randn(4, 3)
    model = mw.from_torch(copy.deepcopy(module), (x,))
    assert set(model.buffers) == {
        "sums",
        *(f"norm.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")),
    }
    out, buffers = model.apply(model.params, model.buffers, x.numpy())
    np.testing.assert_allclose(out, module(x).detach(), rtol=1e-5, atol=1e-6)
    for name, value in buffers.items():
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-5, atol=1e-6)
    with refuses(errors.ImportProgramError, "sums, same", "share"):
        mw.from_torch(Shared(lambda sums: sums[:1]), (x,))


class Assigning(nn.Module):
    """Buffers that are assigned to, after one that is None."""

    def __init__(self):
        super().__init__()
        self.register_buffer("nothing", None)
        self.register_buffer("p", torch.arange(3.0))
        self.register_buffer("q", torch.ones(3))

    def forward(self, x):
        old = self.p
        self.p, self.q = self.q * x.mean(0), self.p
        return old, old[1:], x + self.p


class Holding(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("make", [Assigning, lambda: Holding(Assigning())], ids=["outermost", "inner"])
def test_buffers_that_are_assigned_to_are_written(make):
    module, x = make(), torch.linspace(-1, 2, 12).reshape(4, 3)
    model = mw.from_torch(module, (x,))
    outs, buffers = model.apply(model.params, model.buffers, x.numpy())
    assert not any(isinstance(b, torch._subclasses.FakeTensor) for b in module.buffers())
    for got, want in zip(outs, module(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert buffers.keys() == dict(module.named_buffers()).keys()
    for name, want in module.named_buffers():
        np.testing.assert_allclose(buffers[name], want, rtol=1e-6)


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", None, persistent=False)

    def forward(self, x):
        if self.bias is None:
            self.register_buffer("bias", torch.arange(3.0), persistent=False)
        return x + self.bias, x


@pytest.mark.parametrize("make", [Keeping, lambda: Holding(Keeping())], ids=["outermost", "inner"])
def test_buffers_that_a_forward_registers_are_not_left_without_values(make):
    module, x = make(), torch.linspace(-1, 2, 12).reshape(4, 3)
    with pytest.warns(errors.MutationWarning, match=r"assigns tensors to self\.(inner\.)?bias;"):
        model = mw.from_torch(module, (x,))
    for got, want in zip(model(model.params, x.numpy()), module(x), strict=True):
        assert type(want) is torch.Tensor
        np.testing.assert_array_equal(got, want)


def test_buffers_that_grow_are_refused(refuses):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(1, 3))

        def forward(self, x):
            self.rows = torch.cat([self.rows, x])
            return self.rows.sum(0)

    with refuses(errors.ImportProgramError, "the buffer rows", "shape (1, 3)", "shape (5, 3)"):
        mw.from_torch(Growing(), (torch.ones(4, 3),))


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x[1:]], ids=["same", "view"])
def test_buffers_of_one_memory_that_part_are_refused(make, refuses):
    class Parting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.inner.register_buffer("rows", torch.arange(3.0))
            self.register_buffer("same", make(self.inner.rows))

        def forward(self, x):
            self.inner.rows = self.inner.rows + x
            return self.same.sum()

    with refuses(errors.ImportProgramError, "same", "inner.rows", "copy_"):
        mw.from_torch(Parting(), (torch.ones(3),))


def test_functions_that_kept_tensors_without_values_are_told_of(refuses):
    @functools.cache
    def table(n):
        return torch.arange(float(n))

    class Module(nn.Module):
        def forward(self, x):
            return x + table(x.shape[-1])

    mw.from_torch(Module(), (torch.ones(3),))
    with refuses(errors.ImportProgramError, "functools.lru_cache", "cache_clear()"):
        mw.from_torch(Module(), (torch.ones(3),))
    table.cache_clear()
    mw.from_torch(Module(), (torch.ones(3),))
