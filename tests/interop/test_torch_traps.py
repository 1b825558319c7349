"""What an import of PyTorch's programs can get wrong without a word, one test each."""

import copy
import importlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import errors  # noqa: E402
from meshwright.ir.jaxpr import all_eqns  # noqa: E402


def close(got, want, tolerance=1e-5):
    want = want.detach().float().numpy()
    np.testing.assert_allclose(
        np.asarray(got, np.float32), want, rtol=tolerance, atol=tolerance * max(abs(want).max(), 1)
    )


def gradients(model, module, *inputs, loss=lambda y: (y * y).sum()):
    """Ours and torch's, by the parameters' names."""
    arrays = [x.numpy() for x in inputs]
    got = mw.jit(mw.grad(lambda p: loss(model(p, *arrays))))(model.params)
    module.zero_grad()
    loss(module(*inputs)).backward()
    return got, {n: p.grad for n, p in module.named_parameters()}


def check(module, *inputs):
    model = mw.from_torch(module, inputs)
    close(model(model.params, *[x.numpy() for x in inputs]), module(*inputs))
    got, want = gradients(model, module, *inputs)
    for name, value in want.items():
        close(got[name], value, 2e-5)
    return model


def test_one_example_for_several_arguments():
    """Attention asks whether queries are keys."""
    x, others = torch.ones(2, 3, 4), [torch.randn(2, 3, 4) for _ in range(3)]
    module = nn.MultiheadAttention(4, 2, batch_first=True)
    model = mw.from_torch(module, (x, x, x))
    close(model(model.params, *others)[0], module(*others)[0])


def test_threads_that_convert_at_once():
    """Torch's functions are exchanged while one does."""
    modules, x = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)], torch.randn(5, 3)
    with ThreadPoolExecutor(2) as pool:
        models = list(pool.map(lambda m: mw.from_torch(m, (x,)), modules))
    for model, module in zip(models, modules):
        close(model(model.params, x.numpy()), module(x))
    assert torch.backends.mha.get_fastpath_enabled()


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, *, scale=1.0):
        with torch.autocast("cpu", enabled=False):
            y = self.linear(x)
        return scale * self.out(y.relu()), y


def test_a_module_that_is_converted_where_torch_casts_is_one_that_casts():
    module, x = Casting(), torch.randn(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = mw.from_torch(module, (x,), {"scale": 2.0})
        want = module(x, scale=2.0)
        assert torch.is_autocast_enabled("cpu")
    got = mw.jit(lambda p, x: model(p, x, scale=2.0))(model.params, x.numpy())
    assert [str(y.dtype) for y in got] == ["bfloat16", "float32"]
    close(got[0], want[0], 0.02)
    close(got[1], want[1])
    assert "forward" not in vars(module)
    close(mw.from_torch(module, (x,))(model.params, x.numpy())[0], module(x)[0])


class Holding(nn.Module):
    """Has its tensors in an object, and a list, too."""

    class Cache:
        pass

    def __init__(self, forward):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("rows", torch.zeros(4, 3))
        self.linear = nn.Linear(3, 3)
        self.cache, self.weights = self.Cache(), [self.linear.weight]
        self.cache.count, self.cache.rows, self.cache.row = self.count, self.rows, self.rows[1]
        self.last, self.old = None, torch.zeros(3)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def stepping(self, x):
    at = self.cache.count + torch.arange(1)
    self.cache.count.add_(1)
    with torch.no_grad():
        self.cache.rows.index_copy_(0, at, x)
    return F.linear(self.rows, self.weights[0]).sum(0) + self.count


def test_buffers_and_parameters_are_these_wherever_a_module_has_them():
    """Their values are those of the call, and converting a module leaves its own."""
    module = Holding(stepping)
    theirs, x = copy.deepcopy(module), torch.randn(1, 3)
    model = mw.from_torch(module, (x,))
    assert module.count == 0 and set(model.buffers) == {"count", "rows"}
    step = mw.jit(model.apply)
    buffers = model.buffers
    for i in range(3):
        out, buffers = step(model.params, buffers, x.numpy() + i)
        close(out, theirs(x + i))
    close(buffers["rows"], theirs.rows)
    assert buffers["count"] == 3
    grads = mw.grad(lambda p: step(p, buffers, x.numpy())[0].sum())(model.params)
    theirs(x).sum().backward()
    close(grads["linear.weight"], theirs.linear.weight.grad)


def accumulating(self, x):
    self.old = self.old + x
    return self.old * 2


def remembering(self, x):
    self.last = x * 2
    return self.last + 1


def test_state_that_is_no_buffer_is_refused_or_told(refuses):
    x = torch.randn(1, 3)
    with refuses(errors.ImportProgramError, "self.old", "register_buffer"):
        mw.from_torch(Holding(accumulating), (x,))
    with refuses(errors.ImportProgramError, "view of rows", "in the forward"):
        mw.from_torch(Holding(lambda self, x: x + self.cache.row), (x,))
    with pytest.warns(errors.MutationWarning, match=r"self\.last"):
        model = mw.from_torch(Holding(remembering), (x,))
    close(model(model.params, x.numpy()), x * 2 + 1)


class Asks(nn.Module):
    def forward(self, x):
        y = x * 2
        return y if y.sum() > 0 else y + 1


class Misfits(nn.Module):
    def forward(self, x):
        return x.nonzero().float() @ x.new_ones(5, 3)


@pytest.mark.parametrize("module", [Asks(), Misfits()])
def test_torch_prints_nothing_of_what_is_refused(module, capfd, caplog):
    with pytest.raises(errors.ImportProgramError, match="forward"):
        mw.from_torch(module, (torch.ones(4),))
    assert capfd.readouterr() == ("", "")
    assert not [r for r in caplog.records if r.levelno > 10]


class Sines(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * 7


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))

    def forward(self, x):
        return Sines.apply(x * self.scale)


def test_1_functions_have_the_backward_of_their_own():
    check(WithFunction(), torch.ones(3))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_2_tied_weights_are_one_parameter(device):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    ids = torch.tensor([[1, 2, 3]])
    with torch.device(device):
        module = Tied()
    model = mw.from_torch(module, (ids,)) if device == "meta" else check(module, ids)
    assert list(model.params) == ["table.weight"] and model.tied == {"head.weight": "table.weight"}


def test_2_parts_of_one_memory_are_refused(refuses):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            whole = torch.ones(4, 4)
            self.a, self.b = nn.Parameter(whole[:3]), nn.Parameter(whole[1:])

        def forward(self, x):
            return x @ self.a.mT + x @ self.b.mT

    with refuses(ValueError, "'a'", "'b'", "share memory"):
        mw.from_torch(Parts(), (torch.ones(2, 4),))


def test_3_embeddings_whose_gradient_is_another():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Embedding(6, 3, padding_idx=2)
            self.b = nn.Embedding(6, 3, scale_grad_by_freq=True)

        def forward(self, ids):
            return self.a(ids) + self.b(ids)

    check(Table(), torch.tensor([[2, 1, 1], [5, 2, 1]]))


def test_3_positions_that_a_table_has_not_are_seen():
    table = nn.Embedding(6, 3)
    model = mw.from_torch(table, (torch.tensor([0, 5]),))
    for outside in (6, -1):
        out = np.asarray(model(model.params, np.array([5, outside])))
        assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()
    gradients = mw.grad(lambda p: model(p, np.array([5, 6]))[0].sum())(model.params)
    np.testing.assert_array_equal(gradients["weight"], [[0.0] * 3] * 5 + [[1.0] * 3])


def test_4_what_torch_writes_to_is_copied():
    module = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    x = torch.randn(4, 64)
    for train in (True, False):
        model = mw.from_torch(module.train(train), (x,))
        before = np.array(model.params["0.weight"])
        shared = np.asarray(model.params["0.weight"]).ctypes.data == module[0].weight.data_ptr()
        assert shared is (not train)
        if train:
            with torch.no_grad():
                module[0].weight.add_(1)
                module(x)  # writes to the running statistics
            np.testing.assert_array_equal(model.params["0.weight"], before)
            np.testing.assert_array_equal(model.buffers["1.running_mean"], np.zeros(64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_5_dlpack_of_every_dtype(dtype):
    tensor = torch.linspace(-2, 2, 64).to(dtype)
    array = mnp.from_dlpack(tensor)
    assert array.dtype.name == str(dtype).split(".")[1]
    back = torch.from_dlpack(array)
    assert back.dtype == dtype and torch.equal(back.float().real, tensor.float().real)
    assert back.data_ptr() == tensor.data_ptr() or tensor.data_ptr() % 64


def test_5_strided_tensors_are_refused_or_right(refuses):
    np.testing.assert_array_equal(mnp.from_dlpack(torch.arange(6.0).reshape(2, 3).t()), [[0, 3], [1, 4], [2, 5]])
    with refuses(BufferError, "contiguous"):
        mnp.from_dlpack(torch.ones(2, 3).bfloat16().t())


def test_6_large_ops_stay_whole():
    module = nn.LSTM(3, 5, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(2, 50, 3)
    model = mw.from_torch(module, (x,))
    out, (h, c) = model(model.params, x.numpy())
    want, (wh, wc) = module(x)
    for got, value in ((out, want), (h, wh), (c, wc)):
        close(got, value)
    assert len(list(all_eqns(mw.make_jaxpr(model)(model.params, x.numpy()).jaxpr))) < 250
    gru = nn.GRU(3, 4)
    model = mw.from_torch(gru, (x,))
    close(model(model.params, x.numpy())[0], gru(x)[0])


class Masked(nn.Module):
    def forward(self, x):
        return x[x > 0].cumsum(0)


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


@pytest.mark.parametrize("module", [Masked(), Branching()])
def test_7_shapes_that_depend_on_values_are_refused(module, refuses):
    with refuses(errors.ImportProgramError, "depend on values", "test_torch_traps.py"):
        mw.from_torch(module, (torch.ones(3),))


_VALUES = {
    "f32": torch.ones(2), "f16": torch.ones(2, dtype=torch.float16), "i32": torch.ones(2, dtype=torch.int32),
    "bool": torch.ones(2, dtype=torch.bool),
    "f32 0-d": torch.tensor(2.0), "i32 0-d": torch.tensor(2, dtype=torch.int32),
    "bf16 0-d": torch.tensor(2.0, dtype=torch.bfloat16), "c64 0-d": torch.tensor(2j), "1": 1, "1.5": 1.5, "True": True,
}  # fmt: skip


def test_8_promotion_is_by_category():
    pairs = [(a, b) for a in _VALUES for b in _VALUES if isinstance(_VALUES[a], torch.Tensor)]
    pairs = [p for p in pairs if not {"f16", "c64 0-d"} <= set(p)]  # torch's complex32 is complex64 here

    class Sums(nn.Module):
        def forward(self, values):
            values = {**_VALUES, **values}
            return [values[a] * values[b] for a, b in pairs]

    tensors = {k: v for k, v in _VALUES.items() if isinstance(v, torch.Tensor)}
    model = mw.from_torch(Sums(), (tensors,))
    outs = model({}, tensors)
    for (a, b), got, want in zip(pairs, outs, Sums()(tensors)):
        assert got.dtype.name == str(want.dtype).split(".")[1].replace("int64", "int32"), (a, b)


def test_9_statistics_come_out_and_dropout_takes_a_key(refuses):
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).train()
    x = torch.randn(16, 4)
    model = mw.from_torch(module, (x,))
    key = mw.random.key(0)
    y, buffers = model.apply(model.params, model.buffers, x, key=key)
    other, _ = model.apply(model.params, model.buffers, x, key=mw.random.key(1))
    module(x)
    for name, want in module.named_buffers():
        close(buffers[name], want)
    dropped = np.asarray(y) == 0
    assert 0.3 < dropped.mean() < 0.7 and (dropped != (np.asarray(other) == 0)).any()
    normal = nn.Sequential(*module[:2])(x).detach().numpy()
    np.testing.assert_allclose(np.asarray(y)[~dropped], 2 * normal[~dropped], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.buffers["1.running_mean"], np.zeros(8))
    with refuses(errors.ArgumentError, "key"):
        model(model.params, x)


def test_10_attention_with_the_batch_split_gathers_nothing():
    module = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(8, 6, 16)
    model = mw.from_torch(module, (x, x, x), {"need_weights": False})
    close(model(model.params, x, x, x, need_weights=False)[0], module(x, x, x, need_weights=False)[0])
    mesh = mw.make_mesh((8,), ("data",))
    split = mw.NamedSharding(mesh, mw.P("data"))
    f = mw.jit(lambda p, x: model(p, x, x, x, need_weights=False)[0], in_shardings=(None, split), out_shardings=split)
    part = f.lower(model.params, x.numpy()).partition()
    assert [c.kind for c in part.collectives if c.kind != "all_to_all"] == [], part.explain()
    part.verify()


# --- beyond the ten -----------------------------------------------------------------------------------------
class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        y = self.a(x)
        with torch.no_grad():
            fixed = self.a(x) * 2
        self.calls += y.detach().sum(0)
        changed = y.clone()
        changed[:, 0] = self.b(x)[:, 1]
        return (changed * fixed + self.b(x).detach()).relu_()


def test_what_has_no_gradient_in_torch_has_none_here():
    model = check(NoGrad(), torch.randn(4, 3))
    _, buffers = model.apply(model.params, model.buffers, np.ones((4, 3), np.float32))
    assert np.abs(buffers["calls"]).sum() > 0


class NoGradNorWrites(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            fixed = self.a(x) * 2
            with torch.enable_grad():
                y = self.b(x)
        return (self.a(x) * fixed + y.detach() + self.b(x)).reshape(-1).unflatten(0, (3, -1)).flatten()


def test_programs_without_writes_are_traced_once(monkeypatch):
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    check(NoGradNorWrites(), torch.randn(4, 3))


def test_lines_and_names_of_the_users_module():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.second(torch.sin(self.first(x)))

    model = mw.from_torch(Two(), (torch.ones(4, 8),))
    mesh = mw.AbstractMesh((2,), ("model",))
    cut = {
        "first.weight": mw.P("model"),
        "first.bias": mw.P("model"),
        "second.weight": mw.P(None, "model"),
        "second.bias": mw.P(),
    }
    shardings = {n: mw.NamedSharding(mesh, s) for n, s in cut.items()}
    part = (
        mw.jit(model, in_shardings=(shardings, mw.NamedSharding(mesh, mw.P())))
        .lower(model.params, np.ones((4, 8), "f4"))
        .partition()
    )
    (reduce,) = part.collectives
    assert reduce.kind == "all_reduce" and "test_torch_traps.py" in str(reduce.source)
    assert any("first.weight" in name for name in part.names)
    jaxpr = mw.make_jaxpr(model)(model.params, np.ones((4, 8), "f4")).jaxpr
    assert all("test_torch_traps.py" in str(e.source) for e in all_eqns(jaxpr))
    assert {e.source.name_stack for e in all_eqns(jaxpr)} >= {"first", "second"}


def test_an_op_that_is_missing_is_named_and_can_be_registered(refuses):
    torch.library.define("mwtest::doubled", "(Tensor x) -> Tensor")
    torch.library.impl("mwtest::doubled", "CompositeExplicitAutograd")(lambda x: 2 * x)
    torch.library.register_fake("mwtest::doubled")(lambda x: torch.empty_like(x))

    class Doubled(nn.Module):
        def forward(self, x):
            return torch.ops.mwtest.doubled(x)

    with refuses(errors.RuleError, "mwtest.doubled", "test_torch_traps.py", "interop.torch.register"):
        mw.from_torch(Doubled(), (torch.ones(3),))
    mw.interop.torch.register(torch.ops.mwtest.doubled)(lambda x: 2 * x)
    np.testing.assert_array_equal(mw.from_torch(Doubled(), (torch.ones(3),))({}, np.ones(3, "f4")), [2, 2, 2])


class Named(nn.Module):
    def forward(self, batch, *others):
        return batch["x"] + others[0]


def test_dimensions_that_may_vary(refuses):
    module = nn.Sequential(nn.Linear(3, 4), nn.Flatten(0))
    model = mw.from_torch(module, (torch.ones(2, 3),), dynamic=({0: "batch"},))
    x = torch.randn(5, 3)
    close(model(model.params, x), module(x))
    with refuses(errors.ShapeError, "exported for"):
        model(model.params, np.ones((5, 2), "f4"))
    fixed = mw.from_torch(module, (torch.ones(2, 3),))
    with refuses(errors.ShapeError, "dynamic"):
        fixed(fixed.params, x)
    with refuses(errors.DTypeError, "int32", "float32"):
        fixed(fixed.params, np.ones((2, 3), int))
    with refuses(errors.ArgumentError, "missing are ['0.bias']"):
        fixed({"0.weight": 1}, x)
    dims = {0: torch.export.Dim("length", max=16)}
    bounded = mw.from_torch(Named(), ({"x": torch.ones(2)}, torch.ones(2)), dynamic=({"x": dims}, (dims,)))
    with refuses(errors.ShapeError, "argument batch['x'] has shape (17,)", "0 to 16"):
        bounded({}, {"x": np.ones(17, "f4")}, np.ones(17, "f4"))
    with refuses(errors.ShapeError, "argument args[1] has shape (3, 1)"):
        bounded({}, {"x": np.ones(3, "f4")}, np.ones((3, 1), "f4"))
    with refuses(errors.ArgumentError, "expected batch['x'], args[1], got batch"):
        bounded({}, np.ones(3, "f4"))


def test_control_flow_of_torch():
    class Chosen(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    class Unseen(Chosen):
        def forward(self, x):
            with torch.no_grad():
                return super().forward(x)

    for module in (Chosen(), Unseen()):
        model = mw.from_torch(module, (torch.ones(3),))
        for x in (torch.ones(3), -torch.ones(3)):
            close(model({}, x), module(x))


def test_transformations_and_tensors_back():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).bfloat16()
    x = torch.randn(5, 3).bfloat16()
    model = mw.from_torch(module, (x[0],))
    batched = mw.vmap(model, in_axes=(None, 0))(model.params, mnp.from_dlpack(x))
    back = mw.interop.torch.to_torch(batched)
    assert back.dtype == torch.bfloat16
    close(back.float(), module(x), 1e-2)


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return torch.vmap(lambda v: torch.tanh(self.inner(v)).sum())(x)


class MappedFunction(nn.Module):
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 3.5 * cotangent * ctx.saved_tensors[0] ** 2

    def __init__(self, mapped):
        super().__init__()
        self.function = torch.vmap(self.Cube.apply) if mapped else self.Cube.apply

    def forward(self, x):
        return self.function(x).sum()


def test_maps_of_torch_and_ours(refuses):
    check(Mapped(), torch.randn(4, 3))
    x = np.arange(6, dtype="f4").reshape(2, 3)
    model = mw.from_torch(MappedFunction(False), (torch.ones(3),))
    np.testing.assert_allclose(mw.vmap(mw.grad(lambda x: model({}, x)))(x), 3.5 * x**2, rtol=1e-6)
    np.testing.assert_allclose(mw.vmap(lambda x: model({}, x))(x), (x**3).sum(1), rtol=1e-6)
    with refuses(errors.ImportProgramError, "test_torch_traps.py", "meshwright.vmap"):
        mw.from_torch(MappedFunction(True), (torch.ones(2, 3),))


def test_tensors_that_no_array_stands_for_are_named(refuses):
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with refuses(errors.ArgumentTypeError, "argument x", "quantized", "dequantize"):
        mw.from_torch(nn.Identity(), (), {"x": quantized})
    with refuses(errors.ArgumentTypeError, "argument input2", "sparse", "to_dense"):
        mw.from_torch(nn.Bilinear(3, 3, 3), (torch.eye(3), torch.eye(3).to_sparse()))
    for layout in (torch.strided, torch.jagged):
        with refuses(errors.ArgumentTypeError, "argument input of Identity is nested", "to_padded_tensor"):
            mw.from_torch(nn.Identity(), (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout),))
    module = nn.Linear(3, 3)
    module.weight = nn.Parameter(torch.eye(3).to_sparse())
    with refuses(errors.ArgumentTypeError, "parameter weight", "sparse"):
        mw.from_torch(module, (torch.eye(3),))
    with refuses(errors.ImportProgramError, "reduction dim"):
        mw.from_torch(nn.Linear(3, 3), (torch.ones(2, 4),))


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 3), nn.Linear(4, 3))

    def forward(self, x):
        return self.layers(x)


def test_examples_that_do_not_fit_are_named(refuses):
    x = torch.ones(4, 6)
    with refuses(errors.ImportProgramError, "test_torch_traps.py", "(forward)"):
        mw.from_torch(Narrow(), (x,))
    with refuses(errors.ImportProgramError, "at 1 (Linear)"):
        mw.from_torch(Narrow().layers, (x,))
    with refuses(errors.ArgumentError, "Linear.forward(input", "too many", "2 arguments"):
        mw.from_torch(nn.Linear(6, 3), (x, x))
    with refuses(errors.ArgumentError, "missing", "'input'", "inp"):
        mw.from_torch(nn.Linear(6, 3), (), {"inp": x})


def test_parameters_of_other_types_are_named(refuses):
    norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    x = torch.ones(4, 6)
    model = mw.from_torch(norm, (x,))
    half = {n: p.astype("bfloat16") for n, p in model.params.items()}
    with refuses(errors.DTypeError, "0.weight: expected float32[3, 6], got bfloat16[3, 6]", "module.to"):
        model(half, x.numpy())
    wide = {**model.params, "0.weight": mnp.ones((4, 6)), "0.bias": half["0.bias"]}
    with refuses(errors.ShapeError, "0.weight: expected float32[3, 6], got float32[4, 6]", "0.bias: expected"):
        mw.jit(model)(wide, x.numpy())
    with refuses(errors.ShapeError, "buffers", "1.running_mean"):
        model.apply(model.params, {**model.buffers, "1.running_mean": mnp.zeros(4)}, x.numpy())
    with refuses(errors.ArgumentTypeError, "0.bias"):
        model({**model.params, "0.bias": "bias"}, x.numpy())


def test_weights_that_torch_packs_are_refused(refuses):
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 3)), {nn.Linear}, dtype=torch.qint8)
    with refuses(errors.ArgumentTypeError, "0._packed_params", "quantize_dynamic", "before"):
        mw.from_torch(packed, (torch.ones(4, 6),))


def test_norms_without_a_momentum_average_all_batches():
    ours, torchs = nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
    x = torch.linspace(-1, 2, 120).reshape(2, 3, 4, 5)
    model = mw.from_torch(ours, (x,))
    buffers = model.buffers
    for i in range(1, 4):
        y, buffers = model.apply(model.params, buffers, (x * i).numpy())
        close(y, torchs(x * i))
    for name, value in torchs.named_buffers():
        close(buffers[name], value)
    assert "forward" not in vars(ours)
    weights = torch.linspace(0, 1, 120).reshape(x.shape).sqrt()
    (torchs(x.requires_grad_()) * weights).sum().backward()
    got = mw.grad(lambda x: mnp.sum(model(model.params, x) * weights.numpy()))(x.detach().numpy())
    close(got, x.grad, 1e-4)


class _Scaled(nn.Module):
    """What is measured within ``no_grad`` is the tensor itself, where a conversion has nothing to do."""

    def __init__(self, same):
        super().__init__()
        self.linear, self.same = nn.Linear(3, 5), same

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            size = self.same(y).abs().mean() * self.same(self.linear.weight).norm()
            same = self.same(y)
        return y * same / size


SAME = {
    "float": lambda x: x.float(), "like": lambda x: x.type_as(x), "flat": lambda x: x.flatten(1),
    "data": lambda x: x.data,
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_what_returns_the_tensor_that_it_is_given_keeps_its_gradient_within_no_grad(name):
    check(_Scaled(SAME[name]), torch.linspace(-1, 2, 12).reshape(4, 3))


def _loss(x, var):
    return F.gaussian_nll_loss(x, torch.zeros(4, 6), var, full=True, eps=1e-2, reduction="none")


@pytest.mark.parametrize("columns", [6, 1, None])
def test_losses_with_variances(columns):
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    var = x[:, 0].abs() if columns is None else x[:, :columns].abs() + 1e-3
    given = [x.requires_grad_(), var.detach().requires_grad_()]
    model, want = mw.from_torch(Called(_loss), (x.detach(), var.detach())), _loss(*given)
    arrays = [t.detach().numpy() for t in given]
    close(model(model.params, *arrays), want)
    got = mw.grad(lambda *a: mnp.sum(model(model.params, *a) ** 2), (0, 1))(*arrays)
    for g, w in zip(got, torch.autograd.grad(want.square().sum(), given)):
        close(g, w, 2e-5)


def test_losses_of_negative_variances_are_nan():
    x = torch.linspace(-1, 2, 24).reshape(4, 6)
    model = mw.from_torch(nn.GaussianNLLLoss(reduction="none"), (x, x + 1, x))
    assert (np.isnan(model(model.params, x.numpy(), x.numpy(), x.numpy())) == (x.numpy() < 0)).all()


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


D = torch.distributions


class Weighted(Called):
    """A function of what it is given times a parameter."""

    def __init__(self, function):
        super().__init__(function)
        self.w = nn.Parameter(torch.tensor(0.9))

    def forward(self, x):
        return self.function(x * self.w)


def _gaussians(x):
    covariance = x @ x.mT + torch.eye(3)
    return D.MultivariateNormal(torch.zeros(3), covariance).log_prob(x) + D.Normal(x, 1.0).log_prob(2 * x).sum(-1)


@pytest.mark.parametrize("f", [
    _gaussians, lambda x: D.Categorical(logits=x).entropy(),
    lambda x: D.Bernoulli(x.sigmoid()).log_prob((x.abs() > 0.5).float()),
    lambda x: D.kl_divergence(D.Gamma(x.exp(), 1.0), D.Gamma(x.abs() + 1, 2.0)),
    lambda x: D.Independent(D.Laplace(x, x.exp()), 1).log_prob(x.sin()),
    lambda x: D.TransformedDistribution(D.Normal(x, 1.0), [D.TanhTransform()]).log_prob(x.tanh() / 2),
])  # fmt: skip
def test_distributions_are_not_validated_by_values(f):
    validated = D.Distribution._validate_args
    torch.manual_seed(0)
    check(Weighted(f), torch.randn(3, 3))
    assert D.Distribution._validate_args is validated


def test_distributions_that_are_told_to_validate_look_at_values(refuses):
    with refuses(errors.ImportProgramError, "depend on values"):
        mw.from_torch(Called(lambda x: D.Normal(x, 1.0, validate_args=True).log_prob(x)), (torch.randn(3),))


class Translated(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, x, y):
        return self.model(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(y.shape[1]))


def test_masks_of_transformers_are_not_looked_at():
    torch.manual_seed(0)
    check(Translated(), torch.randn(2, 5, 8), torch.randn(2, 4, 8))


def _chosen_by_constants(x):
    mask = torch.ones(3)
    mask[mask == 2] = 5.0
    if (mask > 1).any().item() or bool((mask < 1).any()):
        return x
    return x * int(mask.sum()) + float(mask[0])


def _chosen_by_what_is_written(x):
    mask = torch.zeros(3)
    mask.copy_(x)
    return x * 2 if mask.sum() > 0 else x


def test_values_that_are_the_same_in_every_call_may_choose(refuses):
    check(Weighted(_chosen_by_constants), torch.randn(3))
    with refuses(errors.ImportProgramError, "depend on values"):
        mw.from_torch(Called(_chosen_by_what_is_written), (torch.ones(3),))


# --- methods that export cannot follow ----------------------------------------------------------------------
class Biased(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias, self.wide = bias, nn.Linear(4, 4)

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(self.wide(q), k, v, attn_mask=self.bias(q.shape[-2], k.shape[-2]))


@pytest.mark.parametrize("name", ["causal_lower_right", "causal_upper_left"])
@pytest.mark.parametrize("queries", [3, 5])
def test_causal_masks_that_only_hold_sizes(name, queries):
    """Torch makes a tensor of another class, which it cannot while it exports."""
    make = getattr(importlib.import_module("torch.nn.attention.bias"), name)
    check(Biased(make), torch.randn(1, 2, queries, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    assert type(make(2, 3)) is torch.nn.attention.bias.CausalBias


@pytest.mark.parametrize("targets", [[0, 3, 5, 11, 19, 4, 9], [1, 2], 12])
def test_adaptive_softmax(targets):
    """Torch picks the rows of each cluster, whose number depends on the targets."""
    module = nn.AdaptiveLogSoftmaxWithLoss(32, 20, [4, 10], head_bias=True)
    x, target = torch.randn(*np.shape(targets), 32), torch.tensor(targets)
    model = mw.from_torch(module, (x, target))
    got = model(model.params, x.numpy(), target.numpy())
    for ours, theirs in zip(got, module(x, target)):
        close(ours, theirs)
    loss = mw.grad(lambda p: model(p, x.numpy(), target.numpy())[1])(model.params)
    module(x, target).loss.backward()
    for name, p in module.named_parameters():
        close(loss[name], torch.zeros_like(p) if p.grad is None else p.grad, 2e-5)
    outside = mw.jit(model)(model.params, x.numpy(), np.full_like(target.numpy(), 20))  # refused by torch
    assert np.isnan(np.asarray(outside[1]))


class Likeliest(nn.AdaptiveLogSoftmaxWithLoss):
    def forward(self, x):
        return self.predict(x)


def test_the_likeliest_class_of_an_adaptive_softmax():
    module, x = Likeliest(32, 20, [4, 10]), torch.randn(7, 32)
    model = mw.from_torch(module, (x,))
    np.testing.assert_array_equal(model(model.params, x.numpy()), module(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_sums_with_products_are_rounded_once(dtype):
    """They were rounded four times, which Newton's iterations of ``torch.optim.Muon`` amplify."""

    class Sum(nn.Module):
        def forward(self, a, b, c):
            return torch.addmm(a, b, c, beta=-4.775, alpha=2.03).float()

    a, b, c = (torch.randn(16, 16).to(dtype) for _ in range(3))
    model = mw.from_torch(Sum(), (a, b, c))
    got = model(model.params, *(mw.interop.torch.from_tensors(x) for x in (a, b, c)))
    assert (np.asarray(got) != Sum()(a, b, c).numpy()).mean() < 0.05


def test_parts_do_not_see_what_others_hold():
    x = torch.arange(10.0)
    x[0] = torch.inf
    model = mw.from_torch(nn.AdaptiveAvgPool1d(3), (x[None],))
    np.testing.assert_allclose(model({}, x[None].numpy()), nn.AdaptiveAvgPool1d(3)(x[None]))


_SPREADS = {
    "norm": lambda x: torch.linalg.vector_norm(x, 6, 1), "length": lambda x: x.norm(dim=1),
    "deviation": lambda x: torch.std(x, 1), "units": lambda x: F.normalize(x, p=5.0),
    "angles": lambda x: F.cosine_similarity(x, x.flip(0)), "distances": lambda x: F.pairwise_distance(x, x * 2, p=5.0),
    "windows": lambda x: F.avg_pool1d(x[None].abs() * 40, 3), "parts": lambda x: F.adaptive_avg_pool1d(x[None] * 40, 2),
    "matrix": lambda x: torch.linalg.matrix_norm(x), "weights": lambda x: torch._weight_norm(x, x[:, :1]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", _SPREADS)
def test_squares_of_half_width_do_not_overflow(name, dtype):
    """They were summed in ``float16``, which ends at 65504: norms were infinite, and what is divided by them 0."""
    x = torch.linspace(-1500, 1200, 30).reshape(6, 5).to(dtype)
    model = mw.from_torch(Called(_SPREADS[name]), (x,))
    close(model({}, mw.interop.torch.from_tensors(x)), _SPREADS[name](x), 1e-2 if dtype is torch.bfloat16 else 2e-3)
