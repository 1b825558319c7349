"""Sequences of different lengths: the loss of CTC, and packed sequences, are torch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

#: of the four targets the first two, one of which repeats a label, have paths; the third has none in 4 frames
FRAMES, COUNTS = [7, 6, 4, 2], [3, 1, 3, 0]
PADDED = torch.tensor([[1, 2, 2], [3, -1, 9], [4, 4, 4], [7, 7, 7]])
JOINED = torch.tensor([1, 2, 2, 3, 4, 4, 4])


class Of(nn.Module):
    """A function, and what it computes with."""

    def __init__(self, function, layer=None, **tensors):
        super().__init__()
        self.function, self.layer = function, layer
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def losses(_, lp, padded, joined, frames, counts):
    """Of all forms, in which targets that have no path count as 0."""
    found = [F.ctc_loss(lp, padded, FRAMES, COUNTS, reduction=r, zero_infinity=True) for r in ("none", "mean", "sum")]
    return [
        *found,
        F.ctc_loss(lp, joined, frames, counts, reduction="none", zero_infinity=True),
        F.ctc_loss(lp, padded % 4, frames, counts, blank=4, zero_infinity=True),
        F.ctc_loss(lp, joined, tuple(FRAMES), tuple(COUNTS), reduction="sum", zero_infinity=True),
        F.ctc_loss(lp[:, 0], joined[:2], (6,), (2,), reduction="none"),
        F.ctc_loss(lp[:, 0], joined[:3], frames[0], counts[0]),
        torch.ctc_loss(lp, padded, torch.tensor(FRAMES), torch.tensor(COUNTS), 0, 2, True),
        nn.CTCLoss(blank=4, zero_infinity=True)(lp.log_softmax(2) * 2, padded % 4, frames, counts),
    ]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_ctc_is_torchs(dtype, tolerance):
    torch.manual_seed(0)
    lp = (3 * torch.randn(7, 4, 5, dtype=dtype)).log_softmax(-1).requires_grad_()
    given = lp, PADDED, JOINED, torch.tensor(FRAMES), torch.tensor(COUNTS)
    module = Of(losses)
    wanted = module(*given)
    sum((n + 1) * w.sum() for n, w in enumerate(wanted)).backward()
    with mw.enable_x64(dtype == torch.float64):
        model = mw.from_torch(module, tuple(t.detach() for t in given))
        first, *others = (t.detach().numpy() for t in given)

        def loss(x):
            outs = model({}, x, *others)
            return sum((n + 1) * o.sum() for n, o in enumerate(outs)), outs

        (_, outs), gradient = mw.jit(mw.value_and_grad(loss, has_aux=True))(first)
    for got, want in zip([*outs, gradient], [*wanted, lp.grad], strict=True):
        assert got.dtype == first.dtype and got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.detach(), rtol=tolerance, atol=10 * tolerance)


def test_ctc_of_targets_without_a_path_and_of_lengths_that_do_not_fit(refuses):
    lp = torch.randn(7, 4, 5).log_softmax(-1)
    given = lp, PADDED, torch.tensor(FRAMES), torch.tensor(COUNTS)
    module = Of(lambda _, *args: F.ctc_loss(*args, reduction="none"))
    model = mw.from_torch(module, given)
    run = mw.jit(mw.value_and_grad(lambda x, *args: ((y := model({}, x, *args)).sum(), y), has_aux=True))
    arrays = [t.numpy() for t in given]
    (_, got), gradient = run(*arrays)
    leaf = lp.clone().requires_grad_()
    want = module(leaf, *given[1:])
    want.sum().backward()
    assert np.isinf(got[2])
    np.testing.assert_allclose(got, want.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-4, atol=1e-5)  # NaN where torch has it
    (_, got), _ = run(*arrays[:2], np.array([8, -1, 0, 0]), np.array([1, 1, 0, 4]))
    np.testing.assert_array_equal(np.isnan(got), [True, True, False, True])
    assert got[2] == 0
    for frames, counts, words in ([[8, 6, 4, 2], COUNTS, "between 0 and 7"], [FRAMES[:3], COUNTS, "4 sequences"]):
        with refuses(errors.ImportProgramError, "test_torch_sequences.py", "input_lengths", words):
            mw.from_torch(Of(lambda _, x, f=frames, c=counts: F.ctc_loss(x, PADDED, f, c)), (lp,))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x, *targets):
        return F.ctc_loss(self.layer(x).log_softmax(-1), *targets, zero_infinity=True)


def partitioned(model, *inputs, splits):
    mesh = mw.make_mesh((4,), ("data",))
    shardings = [mw.NamedSharding(mesh, mw.P(*s)) for s in splits]
    step = mw.jit(mw.value_and_grad(model), in_shardings=(None, *shardings))
    part = step.lower(model.params, *(x.numpy() for x in inputs)).partition()
    part.verify()
    return part


def test_ctc_with_the_batch_split_sums_gradients_alone():
    inputs = torch.randn(7, 8, 6), torch.randint(1, 5, (8, 3)), torch.randint(4, 8, (8,)), torch.randint(0, 4, (8,))
    part = partitioned(mw.from_torch(Loss(), inputs), *inputs, splits=[(None, "data"), *[("data",)] * 3])
    assert {c.kind for c in part.collectives} == {"all_reduce"}


# --- packed sequences ---------------------------------------------------------------------------------------
def padded_again(self, x, lengths, is_sorted=False, total=None):
    first = self.layer.batch_first
    packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=is_sorted)
    out, last = self.layer(packed)
    padded, counts = pad_packed_sequence(out, batch_first=first, padding_value=-2.0, total_length=total)
    return padded, counts, *(last if isinstance(last, tuple) else (last,))


_LAYERS = {
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(4, 5, batch_first=True),
    "rnn": lambda: nn.RNN(4, 5, bidirectional=True, batch_first=True),
    "projected": lambda: nn.LSTM(4, 5, proj_size=2, bias=False),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_layers_of_packed_sequences_are_torchs(name):
    torch.manual_seed(0)
    layer = _LAYERS[name]()
    x = torch.randn(3, 7, 4)
    x[1, 3:] = torch.nan  # past the end of a sequence
    x = x if layer.batch_first else x.transpose(0, 1).contiguous()
    module = Of(lambda self, x: padded_again(self, x, [6, 3, 5], total=9 if name == "gru" else None), layer)
    model = mw.from_torch(module, (x,))

    def loss(outs):
        return sum((o * o).sum() for i, o in enumerate(outs) if i != 1)

    def run(params, x):
        outs = model(params, x)
        return loss(outs), outs

    (_, outs), gradients = mw.jit(mw.value_and_grad(run, argnums=(0, 1), has_aux=True))(model.params, x.numpy())
    leaf = x.clone().requires_grad_()
    wanted = module(leaf)
    loss(wanted).backward()
    for got, want in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[1], leaf.grad, rtol=1e-4, atol=1e-5)
    for key, p in module.named_parameters():
        np.testing.assert_allclose(gradients[0][key], p.grad, rtol=1e-4, atol=1e-5)


LOOPS = {
    "lstm": (lambda: Of(lambda self, x: self.layer(x)[0], nn.LSTM(4, 5, batch_first=True)), (torch.randn(4, 3, 4),), 0),
    "ctc": (
        lambda: Of(lambda self, x, y: F.ctc_loss(x, y, torch.full((4,), 7), torch.full((4,), 3))),
        (torch.randn(7, 4, 6).log_softmax(-1), torch.randint(1, 5, (4, 3))),
        1,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_states_that_start_as_zeros_along_explicit_axes(name):
    made, inputs, batch = LOOPS[name]
    module = made()
    mesh = mw.make_mesh((2,), ("x",), axis_types=(mw.sharding.AxisType.Explicit,))
    with mw.set_mesh(mesh):
        model = mw.from_torch(module, inputs)
        splits = [mw.P(*[None] * batch, "x"), mw.P("x")]
        placed = [mw.device_put(t.numpy(), mw.NamedSharding(mesh, s)) for t, s in zip(inputs, splits)]
        got = mw.jit(model)(model.params, *placed)
    np.testing.assert_allclose(got, module(*inputs).detach(), rtol=1e-5, atol=1e-5)


def computed(self, x):
    lengths = torch.full((3,), x.shape[1]) - torch.arange(3)
    return padded_again(self, x, lengths, is_sorted=True)


def changed(self, x):
    """What is done to packed data in between; and the data themselves."""
    packed = pack_padded_sequence(x, [6, 5, 3], batch_first=True)
    out, last = self.layer(PackedSequence(packed.data * 2, packed.batch_sizes))
    out.data.mul_(3)
    return *pad_packed_sequence(out, batch_first=True), packed.data, packed.batch_sizes, last


def written_after(self, x):
    x = x * 1
    packed = pack_padded_sequence(x, [6, 5, 3], batch_first=True)
    x.mul_(3)
    return pad_packed_sequence(self.layer(packed)[0], batch_first=True)


def packed_of_several(self, xs):
    return pad_packed_sequence(nn.utils.rnn.pack_sequence([xs[0], xs[1, :5], xs[2, :1]]))


@pytest.mark.parametrize("function", [computed, changed, written_after, packed_of_several])
def test_packed_data_and_their_lengths(function):
    module = Of(function, nn.GRU(4, 5, batch_first=True))
    x = torch.randn(3, 7, 4)
    model = mw.from_torch(module, (x,))
    for got, want in zip(model(model.params, x.numpy()), module(x), strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-6)


def values_and_gradients(outs_of, *leaves):
    """Of floats among the results, by all that are to be differentiated."""

    def loss(*args):
        outs = outs_of(*args)
        return sum((o * o).sum() for o in outs if "float" in str(o.dtype)), outs

    return mw.jit(mw.value_and_grad(loss, argnums=tuple(range(len(leaves))), has_aux=True))(*leaves)


@pytest.mark.parametrize("name", _LAYERS)
def test_layers_of_sequences_whose_lengths_are_arguments_are_torchs(name):
    layer = _LAYERS[name]()
    is_sorted = name != "gru"
    module = Of(lambda self, x, n: padded_again(self, x, n, is_sorted, total=7 if is_sorted else 9), layer)
    x = torch.randn(3, 7, 4) if layer.batch_first else torch.randn(7, 3, 4)
    model = mw.from_torch(module, (x, torch.tensor([7, 4, 2])))
    for lengths in ([7, 4, 2], [5, 5, 1], [3, 2, 1] if is_sorted else [1, 6, 3]):
        n = np.array(lengths)
        (_, outs), (of_params, of_x) = values_and_gradients(lambda p, x, n=n: model(p, x, n), model.params, x.numpy())
        leaf = x.clone().requires_grad_()
        module.zero_grad()
        wanted = module(leaf, torch.tensor(lengths))
        sum((w * w).sum() for w in wanted if w.is_floating_point()).backward()
        for got, want in zip(outs, wanted, strict=True):
            np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(of_x, leaf.grad, rtol=1e-4, atol=1e-5)
        for key, p in module.named_parameters():
            np.testing.assert_allclose(of_params[key], p.grad, rtol=1e-4, atol=1e-5)
    padded, _, *lasts = model(model.params, x.numpy(), np.array([8, 3, 0]))
    for values in (padded if layer.batch_first else np.swapaxes(padded, 0, 1), *(np.swapaxes(s, 0, 1) for s in lasts)):
        is_nan = np.isnan(values).reshape(3, -1)
        assert is_nan[[0, 2]].any(1).all() and not is_nan[1].any()


def test_lengths_that_are_computed_are_those_of_their_buffers_and_writes():
    layer, x = nn.GRU(4, 5, batch_first=True), torch.randn(3, 7, 4)
    held = Of(lambda self, x: padded_again(self, x, self.counts, total=7), layer, counts=torch.tensor([3, 7, 4]))
    for module in (held, Of(written, layer)):
        model = mw.from_torch(module, (x,))
        got, want = model(model.params, x.numpy()), module(x)
        for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
            np.testing.assert_allclose(g, w.detach(), rtol=1e-5, atol=1e-5)


def written(self, x):
    lengths = torch.full((3,), 4)
    lengths[0] = 7
    return padded_again(self, x, lengths, is_sorted=True, total=7)[0]


def doubled(self, x, n):
    packed = pack_padded_sequence(x, n, batch_first=True)
    return self.layer(PackedSequence(packed.data * 2, packed.batch_sizes))[1]


def of_another(self, x, n):
    packed, other = (pack_padded_sequence(x, lengths, batch_first=True) for lengths in (n, n - 1))
    return self.layer(PackedSequence(packed.data, other.batch_sizes))[1]


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda self, x, n: padded_again(self, x, n)[0], ("pad_packed_sequence", "total_length=7", "mask", "a list")),
        (lambda self, x, n: padded_again(self, x, n, total=6)[0], ("depend on values",)),
        (lambda self, x, n: pack_padded_sequence(x, n, batch_first=True).data.mean(), ("depend on values",)),
        (lambda self, x, n: pack_padded_sequence(x, n, batch_first=True).data.size(0) * x, ("depend on values",)),
        (lambda self, x, n: pack_padded_sequence(x, n[:2], batch_first=True)[0], ("3 lengths",)),
        (lambda self, x, n: pack_padded_sequence(x.long(), n, batch_first=True)[0], ("floats",)),
        (doubled, ("gru", "changed")),
        (of_another, ("gru", "changed")),
    ],
)
def test_what_the_number_of_packed_rows_decides_is_refused_where_it_varies(function, words, refuses):
    module = Of(function, nn.GRU(4, 5, batch_first=True))
    with refuses(errors.ImportProgramError, "test_torch_sequences.py", *words):
        mw.from_torch(module, (torch.randn(3, 7, 4), torch.tensor([7, 4, 3])))


def test_lengths_that_do_not_fit_are_refused(refuses):
    for lengths, words in (([3, 7, 4], "sorted"), ([3, 0, 0], "greater than 0"), ([9, 2, 1], "do not fit")):
        with refuses(errors.ImportProgramError, "test_torch_sequences.py", words):
            module = Of(
                lambda self, x, n=lengths: padded_again(self, x, n, is_sorted=True), nn.GRU(4, 5, batch_first=True)
            )
            mw.from_torch(module, (torch.randn(3, 7, 4),))


def test_packed_sequences_with_the_batch_split_gather_nothing():
    module = Of(
        lambda self, x: (padded_again(self, x, [7, 7, 6, 6, 5, 3, 2, 1], is_sorted=True)[0] ** 2).sum(),
        nn.GRU(6, 4, batch_first=True),
    )
    x = torch.randn(8, 7, 6)
    part = partitioned(mw.from_torch(module, (x,)), x, splits=[("data",)])
    assert {c.kind for c in part.collectives} == {"all_reduce"}


def test_sequences_whose_lengths_are_arguments_gather_nothing_either():
    module = Of(
        lambda self, x, n: (padded_again(self, x, n, is_sorted=True, total=7)[0] ** 2).sum(),
        nn.GRU(6, 4, batch_first=True),
    )
    inputs = torch.randn(8, 7, 6), torch.tensor([7, 7, 6, 6, 5, 3, 2, 1])
    model, arrays = mw.from_torch(module, inputs), [x.numpy() for x in inputs]
    rows = mw.NamedSharding(mw.make_mesh((4,), ("data",)), mw.P("data"))
    part = mw.jit(mw.value_and_grad(model), in_shardings=(None, rows, rows)).lower(model.params, *arrays).partition()
    part.verify(model.params, *arrays)
    assert {c.kind for c in part.collectives} == {"all_reduce"}
