"""Results of compiled functions that share memory with arguments, or with each other, as they do in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


def compiled(f, **options):
    return torch.compile(f, backend=mw.interop.torch.backend, **options)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -3 * g


def of_complex(x):
    z = torch.complex(x.sin(), x)
    return z, z.real, z.imag, z.conj(), z.conj().imag, torch.view_as_real(z)[1:]


def transposed(x):
    y = x.t() * 2  # of the strides of its operand
    return y, y.t(), y[1:].flatten()


def written(x):
    y = x.sin()
    row = y[0]
    row.mul_(3)
    return row, y, row[1:]


def unseen(x):
    y = x.sin()
    with torch.no_grad():
        y.mul_(2)
    return y, y[0]


def without_gradient(x):
    with torch.no_grad():
        return x.view(-1)


def several(x):
    return x.view(-1), x.detach(), x.sum(0), x.t()[1:]


FUNCTIONS = {
    "view": lambda x: x.view(-1),
    "rows": lambda x: x[1:],
    "itself": lambda x: x.contiguous(),
    "detached": lambda x: x.detach(),
    "several": several,
    "mapped": torch.vmap(lambda row: row[1:]),
    "expanded": lambda x: x[None].expand(3, -1, -1),
    "complex of input": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "integers of input": lambda x: x.detach().view(torch.int16),
    "Function of input": Reversed.apply,
    "transpose of result": lambda x: (y := x.sin(), y.T),
    "parts of result": lambda x: ((y := x.sin())[0], y[1:]),
    "same result": lambda x: (y := x.sin(), y.contiguous(), y.view(-1).detach()),
    "bytes of result": lambda x: (y := x.sin(), y.detach().view(torch.uint8)),
    "Function of result": lambda x: (Reversed.apply(y := x.sin()), y),
    "complex": of_complex,
    "strides": transposed,
    "written": written,
    "unseen": unseen,
    "no_grad": without_gradient,
}


def flat(outs):
    return [*outs] if isinstance(outs, (tuple, list)) else [outs]


def observed(run, rows, moves):
    """What can be seen of a call: which tensors share memory, values, gradients, and what a write to each changes."""
    leaf = torch.linspace(-2, 3, 4 * rows).reshape(rows, 4).requires_grad_(moves)
    x = torch.cat([torch.zeros(2, 4), leaf])[2:]  # which has an offset
    outs = flat(run(x))
    every = [x, *outs]
    shares = [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in every] for b in every]
    types = [(o.dtype, o.grad_fn is None, o.is_conj(), o.is_neg()) for o in outs]
    strides = [o.stride() for o, row in zip(outs, shares[1:]) if sum(row) > 1]
    same = [[a is b for a in every] for b in every]
    values = [o.detach().clone() for o in outs]
    loss = sum((k * o.abs() ** 2).sum() for k, o in enumerate(outs, 1) if o.grad_fn is not None)
    grads = torch.autograd.grad(loss, leaf) if isinstance(loss, torch.Tensor) else None
    changed = []
    with torch.no_grad():
        for k, tensor in enumerate(every):
            tensor.select(0, 0).fill_(k + 7)
            changed.append([t.detach().clone() for t in every])
    return (shares, same, types, strides), [values, grads, changed]


@pytest.mark.parametrize("moves", [True, False], ids=["grad", "plain"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_share_memory_as_in_torch(name, moves):
    f = FUNCTIONS[name]
    run = compiled(f)
    for rows in (4, 6):  # for the second, sizes are symbols to Dynamo
        want, got = observed(f, rows, moves), observed(run, rows, moves)
        assert got[0] == want[0]
        torch.testing.assert_close(got[1], want[1])


def test_an_argument_that_is_written_to_is_seen_in_its_views():
    def f(x, total):
        total.add_(x)
        return total, total[1:], x.view(-1)

    results = []
    for run in (f, compiled(f)):
        x, total = torch.arange(4.0).requires_grad_(), torch.ones(4)
        itself, view, other = run(x, total)
        assert itself is total and view.data_ptr() == total[1:].data_ptr() and other.data_ptr() == x.data_ptr()
        (view * view).sum().backward()
        total.detach().mul_(2)
        results.append((view.detach().clone(), other.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


def test_views_of_parameters_are_trained_through():
    module = torch.nn.Linear(3, 2)
    weight, y = compiled(lambda x: (module.weight.t(), module(x)))(torch.ones(2, 3))
    assert weight.data_ptr() == module.weight.data_ptr()
    weight.sum().backward()
    assert torch.equal(module.weight.grad, torch.ones(2, 3)) and y.requires_grad


def test_writes_to_arguments_that_share_memory_are_refused(refuses):
    def f(a, b):
        a.mul_(2)
        return b + 1

    run, x = compiled(f), torch.arange(6.0)
    torch.testing.assert_close(run(x[:3], x[3:]), torch.tensor([4.0, 5.0, 6.0]))  # which share no element
    assert x.tolist() == [0, 2, 4, 3, 4, 5]
    with refuses(errors.RuleError, "writes to l_a_", "shares memory", ".clone()"):
        run(x[:3], x[2:5])
    torch.testing.assert_close(compiled(lambda a, b: a.sin() + b)(x[:3], x[2:5]), x[:3].sin() + x[2:5])
