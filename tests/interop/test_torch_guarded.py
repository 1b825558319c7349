"""Checks of values in a forward are left out with a warning; branches that do anything else are refused."""

import logging
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

LOG = logging.getLogger(__name__)


class Checked(torch.nn.Module):
    def __init__(self, check):
        super().__init__()
        self.check = check

    def forward(self, x, n):
        self.check(x, n)
        return 2 * x + n


def asserted(x, n):
    assert (x > 0).all(), f"found {x.min()}"


def raised(x, n):
    if n is not None and n.max() >= 10:
        many = "many" if x.ndim else "one"
        raise ValueError(many)


def one_or_the_other(x, n):
    if (x < 0).any() or not (n < 10).all():
        raise ValueError


def without_gradients(x, n):
    with torch.no_grad():
        assert torch.isfinite(x).all()


def in_a_loop(x, n):
    for k in range(3):
        try:
            if not torch.all(x < 100 * k + 100):
                raise RuntimeError(k)
        finally:
            x = x + 1


def several(x, n):
    if x.min() < -5:
        if n.max() > 5:
            raise ValueError
    if not ((x > 0).all() or (x < 0).all()):  # an assert that pytest does not write in another way
        raise AssertionError
    if (x > 5).any() and not (x > 4).all():
        raise ValueError("few")
    if (x > 6).any() and (n > 2).any():
        raise ValueError


def numbers(x, n):
    assert x.max().item() < 100
    if n.max().item() > 10:
        raise ValueError


@pytest.mark.parametrize("check", (asserted, raised, one_or_the_other, without_gradients, in_a_loop, numbers, several))
def test_checks_that_only_raise_are_left_out(check):
    module, x, n = Checked(check), torch.rand(4) + 1, torch.arange(4)
    with pytest.warns(
        errors.ValueCheckWarning, match=rf"Checked raises .* test_torch_guarded.py:\d+ \({check.__name__}\)"
    ):
        model = mw.from_torch(module, (x, n))
    np.testing.assert_array_equal(model({}, x.numpy(), n.numpy()), module(x, n))
    assert {node.target for node in model.program.graph.nodes if node.op == "call_function"} == {
        torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor
    }  # fmt: skip


def caught(x, n):
    try:
        asserted(x, n)
    except AssertionError:
        x.mul_(2)


def corrected(x, n):
    if x.max() > 3:
        x.mul_(2)


def changed_and_checked(x, n):
    if x.max() > 3:
        x.mul_(2)
        if n.max() > 3:
            raise ValueError


def counted_and_checked(x, n, seen=[0]):  # noqa: B006
    if x.max() > 3:
        seen[0] += 1
        assert n.max() < 3


def returned(x, n):
    if x.max() > 3:
        return x
    raise NotImplementedError if x.min() > 2 else ValueError


@pytest.mark.parametrize("check", (caught, corrected, changed_and_checked, counted_and_checked))
def test_branches_that_compute_are_refused(check):
    with pytest.raises(errors.ImportProgramError, match=r"test_torch_guarded.py:\d+ \((?s:.*)torch\.where"):
        mw.from_torch(Checked(check), (torch.ones(4), torch.arange(4)))


def test_answers_are_those_that_raise_nothing():
    with pytest.warns(errors.ValueCheckWarning, match=r"\(returned\)"):
        model = mw.from_torch(Checked(returned), (torch.ones(4), torch.arange(4)))
    np.testing.assert_array_equal(model({}, np.ones(4, np.float32), np.arange(4)), 2 + np.arange(4))


def test_checks_of_known_values_are_made():
    class Known(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("limit", torch.tensor(3))

        def forward(self, x):
            assert self.limit > 4, "the limit is low"
            return x

    with pytest.raises(errors.ImportProgramError, match="the limit is low"):
        mw.from_torch(Known(), (torch.ones(2),))


class Experts(torch.nn.Module):
    """As transformers' models: all have the entry in their configuration, whether they have such experts or not."""

    def __init__(self, can_be_told):
        super().__init__()
        self.config = type("Config", (), {"_experts_implementation": "eager"})()
        self._can_set_experts_implementation = lambda: can_be_told

    def forward(self, x, chosen):
        for k in chosen.unique():
            x = x + k
        return x


@pytest.mark.parametrize("can_be_told", [True, False])
def test_experts_one_by_one_say_what_to_choose(can_be_told):
    with pytest.raises(errors.ImportProgramError, match=r"can be a buffer") as error:
        mw.from_torch(Experts(can_be_told), (torch.ones(2), torch.arange(2)))
    assert ('set_experts_implementation("batched_mm")' in str(error.value)) == can_be_told


def test_rows_of_each_expert_say_how_to_compute_all():
    class Mixture(torch.nn.Module):
        def forward(self, x, mask):
            out = torch.zeros_like(x)
            for i in mask.sum(1).nonzero():
                rows = torch.where(mask[i[0]])[0]
                out.index_add_(0, rows, x[rows] * i)
            return out

    with pytest.raises(errors.ImportProgramError, match=r"range\(n\), and add weight \* f_i\(x\)"):
        mw.from_torch(Mixture(), (torch.ones(3, 2), torch.ones(4, 3, dtype=torch.bool)))


def warned(x, n):
    if x.min() < 0 or (n > 8).any() or not torch.isfinite(x).all():
        warnings.warn(f"found {x}", UserWarning, stacklevel=2)
    if x.max() > 7:
        LOG.warning("large")


def warned_by_a_call(x, n):
    if x.max() > 7:
        logging.getLogger(__name__).warning("large")


def warned_and_corrected(x, n):
    if x.min() < 0:
        warnings.warn("negative", stacklevel=2)
        x.abs_()


def warned_or_corrected(x, n):
    if x.min() < 0:
        warnings.warn("negative", stacklevel=2)
    else:
        x.mul_(2)


def test_branches_that_only_warn_are_left_out():
    module = Checked(warned)
    with pytest.warns(errors.ValueCheckWarning, match=r"Checked raises errors, or warns, .*(\(warned\).*){2}"):
        model = mw.from_torch(module, (torch.ones(4), torch.arange(4)))
    np.testing.assert_array_equal(model({}, np.full(4, -1, np.float32), np.arange(4)), np.arange(4) - 2)


@pytest.mark.parametrize("check", (warned_and_corrected, warned_or_corrected, warned_by_a_call))
def test_branches_that_warn_and_compute_are_refused(check):
    with pytest.raises(errors.ImportProgramError, match=check.__name__):
        mw.from_torch(Checked(check), (torch.ones(4), torch.arange(4)))


def test_errors_of_exports_that_a_forward_catches_are_refused():
    """linear_operator takes another root of a matrix where a Cholesky decomposition raises a RuntimeError."""

    class Root(torch.nn.Module):
        def forward(self, a):
            try:
                factor, info = torch.linalg.cholesky_ex(a)
                if info.any():
                    raise NotImplementedError
                return factor if a.max() < 100 else 2 * factor
            except RuntimeError:
                values, vectors = torch.linalg.eigh(a)
                return vectors * values.sqrt()

    class Equal(torch.nn.Module):
        def forward(self, x, y):
            try:
                return 2 * x if torch.equal(x, y) else y
            except RuntimeError:
                return x

    with pytest.raises(errors.ImportProgramError, match=r"value at test_torch_guarded.py:\d+ \(forward\)(?s:.*)try"):
        mw.from_torch(Root(), (torch.eye(3),))
    with pytest.raises(errors.ImportProgramError, match=r"value at test_torch_guarded.py:\d+ \(forward\)(?s:.*)try"):
        mw.from_torch(Equal(), (torch.eye(3), torch.eye(3)))
