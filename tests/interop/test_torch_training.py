"""Training as torch does it: AdamW on LLaMA, train mode with dropout and statistics."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import meshwright as mw  # noqa: E402


def torchs_adamw(params, losses, steps, **options):
    optimizer = torch.optim.AdamW(params, **options)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = losses()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_five_steps_of_adamw_on_llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=64, max_position_embeddings=32, use_cache=False, initializer_range=0.2,
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (4, 12))
    model = mw.from_torch(module, (), {"input_ids": ids, "labels": ids}, share=False)
    optimizer = mw.optim.adamw(3e-4, weight_decay=0.1)
    tokens = ids.numpy()

    @mw.jit
    def step(params, state):
        loss, grads = mw.value_and_grad(lambda p: model(p, input_ids=tokens, labels=tokens)["loss"])(params)
        return *optimizer.update(grads, state, params), loss

    params, state, losses = model.params, optimizer.init(model.params), []
    for _ in range(5):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    want = torchs_adamw(
        module.parameters(), lambda: module(input_ids=ids, labels=ids).loss, 5, lr=3e-4, weight_decay=0.1
    )
    np.testing.assert_allclose(losses, want, rtol=2e-5)
    assert want[-1] < want[0]
    for name, p in module.named_parameters():
        np.testing.assert_allclose(params[name], p.detach(), atol=2e-5 * max(1, float(p.abs().max())), rtol=0)


def test_steps_with_statistics_carried_on_and_dropout_by_key():
    torch.manual_seed(0)
    nn = torch.nn
    module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).train()
    x = torch.randn(32, 6)
    model = mw.from_torch(module, (x,))
    array = x.numpy()

    @mw.jit
    def step(params, buffers):
        def loss(p):
            y, new = model.apply(p, buffers, array)
            return (y**2).mean(), new

        (value, new), grads = mw.value_and_grad(loss, has_aux=True)(params)
        return {n: p - 0.1 * grads[n] for n, p in params.items()}, new, value

    params, buffers = model.params, model.buffers
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(4):
        params, buffers, loss = step(params, buffers)
        optimizer.zero_grad()
        want = (module(x) ** 2).mean()
        want.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, want.detach(), rtol=1e-5)
    for name, value in module.state_dict().items():
        np.testing.assert_allclose({**params, **buffers}[name], value, rtol=2e-5, atol=2e-6)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = torch.nn.Embedding(24, 8), torch.nn.Linear(8, 24, bias=False)
        self.middle, self.norm = torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8)
        self.out.weight = self.rows.weight
        self.middle.weight.requires_grad_(False)

    def forward(self, ids):
        x = self.norm(self.middle(self.rows(ids)).mT).mT
        return torch.nn.functional.cross_entropy(self.out(x.tanh()).flatten(0, 1), ids.flatten())


def test_ten_steps_on_4_by_2_of_tied_and_frozen_parameters():
    """Clipped, with running statistics, weights split over one axis and the batch over the other."""
    torch.manual_seed(0)
    module, ids = Tied(), torch.randint(0, 24, (8, 5))
    model = mw.from_torch(module, (ids,), share=False)
    trained = {n: p for n, p in model.params.items() if n != "middle.weight"}
    fixed = {n: p for n, p in model.params.items() if n not in trained}
    optimizer = mw.optim.adamw(mw.optim.cosine_decay(0.02, 10), weight_decay=0.1)
    mesh = mw.make_mesh((4, 2), ("data", "model"))

    def step(params, fixed, buffers, state, ids):
        run = lambda p: model.apply({**p, **fixed}, buffers, ids)  # noqa: E731
        (loss, buffers), grads = mw.value_and_grad(run, has_aux=True)(params)
        params, state = optimizer.update(mw.optim.clip_by_global_norm(grads, 0.5), state, params)
        return params, buffers, state, loss

    def place(p):
        return mw.NamedSharding(mesh, mw.P("model") if p.ndim > 1 else mw.P())

    shardings = {n: place(p) for n, p in trained.items()}
    by_batch = mw.NamedSharding(mesh, mw.P("data"))
    f = mw.jit(step, in_shardings=(shardings, None, None, None, by_batch), out_shardings=(shardings, None, None, None))
    params, buffers, state, losses = trained, model.buffers, optimizer.init(trained), []
    for _ in range(10):
        params, buffers, state, loss = f(params, fixed, buffers, state, ids.numpy())
        losses.append(float(loss))

    updated = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.02, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(updated, 10)
    for got in losses:
        updated.zero_grad()
        want = module(ids)
        want.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        updated.step()
        schedule.step()
        np.testing.assert_allclose(got, want.item(), rtol=2e-5)
    for name, value in {**params, **buffers}.items():
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_a_dropouts_gradient_is_that_of_what_it_kept():
    module = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Linear(512, 1, bias=False)).train()
    x = torch.ones(1, 512)
    model = mw.from_torch(module, (x,))
    key = mw.random.key(5)
    run = lambda p, x: model(p, x, key=key).sum()  # noqa: E731
    value, (of_params, of_x) = mw.jit(mw.value_and_grad(run, argnums=(0, 1)))(model.params, x.numpy())
    kept = np.asarray(of_x)[0] != 0
    assert 0.65 < kept.mean() < 0.85
    weight = module[1].weight.detach().numpy()[0]
    np.testing.assert_allclose(np.asarray(of_x)[0], np.where(kept, weight / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(of_params["1.weight"][0], np.where(kept, 1 / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(value, (weight * kept / 0.75).sum(), rtol=1e-4, atol=1e-5)


def test_the_stream_that_dropouts_draw_from():
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.0), torch.nn.Dropout(0.25)).train()
    x, key = torch.ones(8, 16), mw.random.key(3)
    model = mw.from_torch(module, (x,))
    kept = [mw.random.bernoulli(mw.random.fold_in(key, n), share, (8, 16)) for n, share in ((1, 0.5), (2, 0.75))]
    want = np.where(np.logical_and(*kept), 1 / 0.375, 0)
    np.testing.assert_allclose(model({}, x, key=key), want, rtol=1e-6)
    np.testing.assert_array_equal(model({}, x, key=key), model.apply({}, {}, x, key=key)[0])
    assert (np.asarray(model({}, x, key=mw.random.key(4))) != want).any()


def _by_the_formula(x, weight, bias):
    mean = x.mean((0, 2))
    off = x - mean[:, None]
    var = (off * off).mean((0, 2))
    return off / mw.numpy.sqrt(var + 0.1)[:, None] * weight[:, None] + bias[:, None], mean, var


def test_derivatives_of_batch_normalization():
    """Those of the formula, to the second order; the first takes two sums over the batch."""
    from meshwright.interop.torch.ops.normalization import _affine_of_batch

    rng = np.random.default_rng(0)
    with mw.enable_x64(True):
        x, ct = 2 * rng.standard_normal((4, 3, 5)) + 1, rng.standard_normal((4, 3, 5))
        weight, bias = rng.standard_normal((2, 3))

        def derivatives(function):
            def loss(*args):
                out, mean, var = function(*args)
                return (ct * out).sum() + mw.numpy.sin(mean).sum() + mw.numpy.cos(var).sum()

            return mw.jvp(mw.grad(loss, (0, 1, 2)), (x, weight, bias), (ct, bias, weight))

        functions = lambda *args: _affine_of_batch(*args, 0.1), _by_the_formula
        ours, want = mw.jit(lambda: [mw.tree_util.tree_leaves(derivatives(f)) for f in functions])()
        for a, b in zip(ours, want):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    pulled = mw.vjp(lambda *args: _affine_of_batch(*args, 0.1)[0], *(mw.numpy.float32(v) for v in (x, weight, bias)))[1]
    backward = mw.make_jaxpr(pulled)(mw.numpy.float32(ct))
    assert sum(e.op.name == "reduce_sum" and e.invars[0].aval.ndim == 3 for e in backward.eqns) == 2
