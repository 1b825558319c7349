"""``flex_attention``: its functions of scores and positions, the gradients by what these capture, and the mask."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import errors  # noqa: E402

flexible = pytest.importorskip("torch.nn.attention.flex_attention")
N = 16


class Biased(nn.Module):
    """Relative positions, sequences of lengths, and more heads of queries than of keys."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8, 16)
        self.bias = nn.Parameter(torch.randn(2 * N - 1))
        self.call = call

    def forward(self, x, lengths):
        query = self.project(x).unflatten(-1, (4, 4)).transpose(1, 2)
        key = query[:, :2] * 2
        return self.call(query, key, key.sin(), self.bias, lengths)


def flex(query, key, value, bias, lengths):
    def causal(b, h, i, j):
        return (i > j) & (j < lengths[b])  # the first position sees nothing

    mask = flexible.create_block_mask(causal, query.shape[0], None, N, N, device="cpu")
    score = lambda s, b, h, i, j: torch.tanh(s) + bias[i - j + N - 1] * h  # noqa: E731
    return flexible.flex_attention(query, key, value, score, mask, enable_gqa=True)


def plain(query, key, value, bias, lengths):
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    scores = torch.tanh(query @ key.mT * 0.5) + bias[i - j + N - 1] * torch.arange(4)[:, None, None]
    mask = (i > j) & (j < lengths[:, None, None, None])
    return torch.nan_to_num(scores.masked_fill(~mask, -torch.inf).softmax(-1)) @ value


@pytest.mark.slow
def test_scores_and_masks_are_followed():
    x, lengths = torch.linspace(-1, 1, 2 * N * 8).reshape(2, N, 8), torch.tensor([3, N])
    module, want = Biased(flex), Biased(plain)
    model = mw.from_torch(module, (x, lengths))
    y = want(x, lengths)
    np.testing.assert_allclose(model(model.params, x.numpy(), lengths.numpy()), y.detach(), atol=1e-5)
    y.square().sum().backward()
    loss = lambda p: mnp.sum(model(p, x.numpy(), lengths.numpy()) ** 2)  # noqa: E731
    for name, g in mw.grad(loss)(model.params).items():
        np.testing.assert_allclose(g, want.get_parameter(name).grad, atol=2e-4)


def test_compiled_modules_and_sums_of_scores():
    q = torch.linspace(-1, 1, 2 * 2 * N * 4).reshape(2, 2, N, 4)
    mask = flexible.create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")
    run = lambda q: flexible.flex_attention(q, q * 2, q.sin(), block_mask=mask)  # noqa: E731
    want = F.scaled_dot_product_attention(q, q * 2, q.sin(), is_causal=True)
    torch.testing.assert_close(torch.compile(run, backend=mw.interop.torch.backend)(q), want, rtol=1e-4, atol=1e-5)


class Compiled(nn.Module):
    def forward(self, q):
        return torch.compile(flexible.flex_attention)(q, q * 2, q.sin(), return_lse=True)


def test_what_is_compiled_within_a_module():
    q = torch.linspace(-1, 1, 2 * 2 * N * 4).reshape(2, 2, N, 4)
    model = mw.from_torch(Compiled(), (q,))
    y, total = model(model.params, q.numpy())
    np.testing.assert_allclose(y, F.scaled_dot_product_attention(q, q * 2, q.sin()), atol=1e-5)
    np.testing.assert_allclose(total, (q @ (q * 2).mT * 0.5).logsumexp(-1), atol=1e-5)


def test_masks_of_blocks_are_no_arguments(refuses):
    mask = flexible.create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8, device="cpu", BLOCK_SIZE=8)

    class Module(nn.Module):
        def forward(self, x, mask):
            return flexible.flex_attention(x, x, x, block_mask=mask)

    with refuses(errors.ImportProgramError, "BlockMask", "make it in the forward"):
        mw.from_torch(Module(), (torch.ones(1, 1, 8, 4), mask))
