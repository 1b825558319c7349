"""What Python asks a forward's tensors for, and what is the same in every call."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from test_torch_rows import Of  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

COUNTS = torch.tensor([2, 0, 3])


@pytest.mark.parametrize(
    "repeated",
    (
        lambda x: torch.repeat_interleave(x, COUNTS, dim=0),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1]), -1, output_size=4),
        lambda x: x.repeat_interleave(repeats=torch.tensor([k % 3 for k in range(12)])),
        lambda x: x.repeat_interleave(torch.tensor(2), dim=1),
        lambda x: x.repeat_interleave(torch.tensor([3]), dim=1),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: torch.repeat_interleave(COUNTS) + x[0, 0],
        lambda x: x[torch.arange(3).repeat_interleave(torch.tensor([len(row) for row in x]))],
    ),
)
def test_repetitions_of_known_numbers(repeated):
    x = torch.randn(3, 4, requires_grad=True)
    model = mw.from_torch(Of(repeated), (x.detach(),))
    want = repeated(x)
    want.square().sum().backward()
    np.testing.assert_allclose(model({}, x.detach().numpy()), want.detach(), rtol=1e-6)
    got = mw.grad(lambda x: (model({}, x) ** 2).sum())(x.detach().numpy())
    np.testing.assert_allclose(got, x.grad, rtol=1e-6)


def test_repetitions_of_numbers_of_a_run_are_refused(refuses):
    with refuses(errors.ImportProgramError, "depend on values"):
        mw.from_torch(Of(lambda x, n: x.repeat_interleave(n, 0)), (torch.ones(3), COUNTS))


def test_numbers_of_bins_that_depend_on_values_say_how_to_count(refuses):
    with refuses(errors.ImportProgramError, "aten.bincount", "torch.zeros(n).index_add(0, x, weights)"):
        mw.from_torch(Of(lambda n: torch.bincount(n, minlength=5)), (COUNTS,))
    model = mw.from_torch(Of(lambda n, w: torch.zeros(5).index_add(0, n, w)), (COUNTS, torch.ones(3)))
    np.testing.assert_array_equal(model({}, COUNTS.numpy(), np.ones(3, np.float32)), [1, 0, 1, 1, 0])


def test_ops_that_do_something_are_refused_by_name(refuses):
    def printed(x):
        torch.ops.aten._print("here")
        return 2 * x

    with refuses(errors.RuleError, "aten._print.default, at test_torch_rows.py", "leave them out"):
        mw.from_torch(Of(printed), (torch.ones(2),))


class Compared(torch.nn.Module):
    def __init__(self, compare):
        super().__init__()
        self.compare = compare
        self.width = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x, n):
        return x + 1 if self.compare(x, n, self.width) else x + 2


def written(x, n, width):
    y = x.clone()
    before = y * 2
    y.add_(1)
    return torch.equal(before, y * 2)


@pytest.mark.parametrize(
    "compare, equal",
    (
        (lambda x, n, width: torch.equal(x / width, x / width), True),
        (lambda x, n, width: n.equal(n), True),
        (lambda x, n, width: x.equal(x[:2]), False),
        (lambda x, n, width: torch.equal(torch.ones(2), torch.arange(1.0, 3)), False),
        (lambda x, n, width: torch.equal(torch.ones(2), torch.arange(1.0, 2, 0.5).floor()), True),
    ),
)
def test_equality_that_is_the_same_in_every_call(compare, equal):
    x, n = torch.randn(3), torch.arange(3)
    model = mw.from_torch(Compared(compare), (x, n))
    np.testing.assert_allclose(model(model.params, x.numpy(), n.numpy()), x + (1 if equal else 2))


@pytest.mark.parametrize(
    "compare",
    (
        written,
        lambda x, n, width: torch.equal(x, x),  # which asks for NaN
        lambda x, n, width: torch.equal(x, 2 * x),
        lambda x, n, width: torch.equal(torch.rand(3), torch.rand(3)),
    ),
)
def test_equality_that_values_decide_about_is_refused(compare, refuses):
    with refuses(errors.ImportProgramError, "depend on values"):
        mw.from_torch(Compared(compare), (torch.ones(3), torch.arange(3)))


def test_a_forward_may_move_its_module_to_where_it_is():
    class Moved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            self.to(x)
            return self.layer.to("cpu", torch.float32)(x)

    module, x = Moved(), torch.randn(4, 3)
    model = mw.from_torch(module, (x,))
    np.testing.assert_allclose(model(model.params, x.numpy()), module(x).detach(), rtol=1e-5)
    with pytest.raises(errors.ImportProgramError, match="cannot be exported"):
        mw.from_torch(module, (x.double(),))


class Grouped(torch.nn.Module):
    """As the positions of images and words are computed from what the tokens are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kinds", torch.tensor([0, 0, 1, 1, 1, 0], dtype=torch.int32))

    def forward(self, x):
        kinds = self.kinds.tolist()
        parts = [torch.arange(kinds[:n].count(0)) for n in range(len(kinds))]
        largest = torch.tensor([[part.sum() + 1, self.kinds[2]] for part in parts])
        return x * largest.to(x.dtype), largest


def test_lists_of_known_numbers():
    module, x = Grouped(), torch.randn(6, 2)
    model = mw.from_torch(module, (x,))
    for got, want in zip(model(model.params, x.numpy()), module(x)):
        np.testing.assert_array_equal(got, want)
