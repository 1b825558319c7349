"""``torch.func`` within compiled functions: values, and the gradients that go through, are PyTorch's."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, func = torch.nn, torch.func

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


def compiled(f, **options):
    return torch.compile(f, backend=mw.interop.torch.backend, **options)


def of_module(module, size):
    """The loss of a module, of its parameters and an input."""
    torch.manual_seed(0)
    params = {name: p.detach() for name, p in module.named_parameters()}
    return params, lambda p, x: func.functional_call(module, p, (x.reshape(size),)).square().sum()


def _networks():
    convolutions = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.AvgPool2d(2, ceil_mode=True),
        nn.ConvTranspose2d(4, 2, 2, groups=2), nn.GELU(), nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    attention = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
    dense = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
    return {
        "dense": (dense.eval(), (-1, 6)),
        "convolutions": (convolutions.eval(), (-1, 1, 4, 6)),
        "attention": (attention, (-1, 4, 6)),  # which has a fused form without derivatives where it is only evaluated
    }


def pulled_later(x):
    out, pulled = func.vjp(lambda y: y.exp().tanh(), x)
    return out, pulled(x)[0] + pulled(2 * x)[0]


def written(x):
    def f(y):
        z = y.sin()
        z.mul_(y)
        return z.sum()

    return func.grad(f)(x)


def dual(x):
    with torch.autograd.forward_ad.dual_level():
        both = torch.autograd.forward_ad.make_dual(x, x.cos())
        primal, tangent = torch.autograd.forward_ad.unpack_dual(both.sin() * 2)
    return primal + 3 * tangent


FUNCTIONS = {
    "dual": dual,
    "grad": lambda x: func.grad(lambda y: (y.exp() * x).tanh().sum())(x.sin()) * x,
    "grad_and_value": lambda x: func.grad_and_value(lambda y: (y.sin().sum(), y.cos()), has_aux=True)(x),
    "twice": lambda x: func.grad(lambda z: func.grad(lambda y: y.sin().sum())(z).sum())(x),
    "vjp": pulled_later,
    "vjp view": lambda x: func.vjp(lambda y: y.view(-1), x)[0],
    "jvp": lambda x: func.jvp(torch.sin, (x,), (x.cos(),)),
    "jvp mapped": lambda x: func.vmap(lambda v: func.jvp(torch.sin, (x[0],), (v,))[1])(x),
    "linearize": lambda x: func.linearize(torch.sin, x)[1](x),
    "jacrev": lambda x: func.jacrev(lambda y: y.sin().sum(0))(x),
    "jacfwd": lambda x: func.jacfwd(lambda y: y.sin().sum(0))(x),
    "hessian": lambda x: func.hessian(lambda y: y.sin().prod())(x[0]),
    "chunks": lambda x: func.vmap(func.grad(lambda r: r.sin().sum()), chunk_size=2)(x),
    "batches behind": lambda x: func.vmap(lambda r: torch.outer(r, r), out_dims=-1)(x),
    "batches behind gradients": lambda x: func.vmap(torch.sin, out_dims=1)(func.vmap(func.grad(torch.sum))(x) * x),
    "written": written,
}


def _both(f, x):
    """What a function and its compiled form give, and the gradients by ``x`` of what has some."""
    found = []
    for run in (f, compiled(f)):
        given = x.clone().requires_grad_()
        outs = [o for o in torch.utils._pytree.tree_leaves(run(given)) if isinstance(o, torch.Tensor)]
        loss = sum(o.square().sum() for o in outs if o.requires_grad)
        found.append([[o.detach() for o in outs], torch.autograd.grad(loss, given)[0]])
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformations_are_torchs(name):
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    want, got = _both(FUNCTIONS[name], x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    run = compiled(FUNCTIONS[name], dynamic=False if name in ("dual", "jvp") else None)
    for rows in (2, 5):  # for the second, sizes are symbols to Dynamo, which cannot follow these so
        torch.testing.assert_close(run(x[:rows]), FUNCTIONS[name](x[:rows]), rtol=1e-4, atol=1e-5)


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.parametrize("name", ["dual", "batches behind", "batches behind gradients"])
def test_transformations_within_modules(name):
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    got, f = mw.from_torch(Of(FUNCTIONS[name]), (x,))({}, x.numpy()), FUNCTIONS[name]
    torch.testing.assert_close(mw.interop.torch.to_torch(got), f(x), rtol=1e-4, atol=1e-5)


def assigned(y, i, j):
    z = y.clone()
    z[i] = y[0] ** 2
    z[2, j] = 3.0
    z[-1, j] = y[0, 0].double() * 2
    z[:, j] = y[:, 1].exp()
    return (z**3).sum()


AT_POSITIONS = {
    "assigned": lambda x, i, j: func.grad(assigned)(x, i, j),
    "grad": lambda x, i, j: func.grad(lambda y: (y[i] ** 2).sum() + y[..., j].exp().sum() * y[i, 1:].sum())(x),
    "jacrev": lambda x, i, j: func.jacrev(lambda y: y[i] * y[j])(x),
    "hessian": lambda x, i, j: func.hessian(lambda y: (y[i] * y[j]).sin().sum())(x[:, :2]),
    "written elsewhere": lambda x, i, j: func.grad(lambda y: (torch.zeros(6).add_(y[0]) * y[i, j]).sum())(x),
    "vmap": lambda x, i, j: torch.vmap(lambda row: row[i] * row)(x),
    "vmap over positions": lambda x, i, j: torch.vmap(lambda row, k: row[k] * row[i])(x, torch.arange(4) - i),
}


@pytest.mark.parametrize("name", AT_POSITIONS)
def test_positions_within_transformations(name):
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    model = mw.from_torch(Of(AT_POSITIONS[name]), (x, torch.tensor(1), torch.tensor(0)))
    for i, j in ((1, 0), (2, 3), (-1, -2)):
        got = model({}, x.numpy(), mw.numpy.int32(i), mw.numpy.int32(j))
        want = AT_POSITIONS[name](x, torch.tensor(i), torch.tensor(j))
        torch.testing.assert_close(mw.interop.torch.to_torch(got), want, rtol=1e-4, atol=1e-5)


def test_a_position_of_what_is_written_to_is_no_copy(refuses):
    def f(y, i):
        y = y * 1
        y[i].mul_(2)
        return (y * y).sum()

    with refuses(errors.ImportProgramError, "depend on values"):
        mw.from_torch(Of(lambda x, i: func.grad(f)(x, i)), (torch.ones(4, 6), torch.tensor(1)))


@pytest.mark.parametrize("name", ["dense", "convolutions", "attention"])
def test_gradients_of_each_sample(name):
    params, loss = of_module(*_networks()[name])
    x = torch.linspace(-1, 2, 48).reshape(2, 4, 6)
    f = func.grad(loss) if name == "attention" else func.vmap(func.grad(loss), (None, 0))  # which Dynamo cannot follow
    torch.testing.assert_close(compiled(f)(params, x), f(params, x), rtol=1e-4, atol=1e-4)


def test_each_sample_draws_its_own_numbers():
    run = compiled(func.vmap(func.grad(lambda r: nn.functional.dropout(r, 0.5).sum()), randomness="different"))
    grads = run(torch.ones(8, 64))
    assert set(grads.unique().tolist()) == {0.0, 2.0} and not torch.equal(grads[0], grads[1])


def _stopped(y):
    with torch.no_grad():
        z = y.cos()
    return (y * z).sum()


def test_regions_without_gradients_are_those_of_the_transformation_or_refused(refuses):
    x, f = torch.linspace(-1, 2, 6), func.grad(_stopped)
    torch.testing.assert_close(compiled(f)(x), f(x))
    with refuses(errors.RuleError, "torch.no_grad", "torch.func", "test_torch_transformations.py", "detach()"):
        compiled(f)(x.requires_grad_())


def test_what_stops_within_a_level_leaves_none():
    def f(x):
        return func.jvp(lambda y: torch.linalg.eig(y.view(2, 2))[0].to(torch.complex32).abs(), (x,), (x,))[1]

    with pytest.raises(errors.MeshwrightError):
        compiled(f)(torch.ones(4))
    assert torch.autograd.forward_ad._current_level == -1
    torch.testing.assert_close(func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))[1], torch.ones(2).cos())
