"""Plans as transformers, DTensor and FSDP write them; a model on the meta device, planned without a byte of it."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
import torch.distributed._functional_collectives as collectives  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

PLAN = {"up": "colwise", "down": "rowwise"}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def model(device="cpu", count=3):
    with torch.device(device):
        module = torch.nn.Sequential(*(Layer() for _ in range(count)))
    return mw.from_torch(module, (torch.ones(4, 8),))


def test_a_tp_plan_costs_one_all_reduce_a_layer(refuses):
    made = model("meta")
    assert all(isinstance(p, mw.ShapeDtypeStruct) for p in made.params.values())
    mesh = mw.AbstractMesh((4, 2), ("data", "tp"))
    plan = {f"*.{n}": style for n, style in PLAN.items()}
    shardings = mw.interop.torch.tp_shardings(plan, made.params, mesh)
    assert shardings["1.up.weight"].spec == mw.P("tp", None) and shardings["1.up.bias"].spec == mw.P("tp")
    assert shardings["2.down.weight"].spec == mw.P(None, "tp") and shardings["2.down.bias"].spec == mw.P(None)
    split = mw.NamedSharding(mesh, mw.P("data"))
    f = mw.jit(made, in_shardings=(shardings, split), out_shardings=split)
    part = f.lower(made.params, np.ones((4, 8), "f4")).partition()
    assert [(c.kind, c.axes) for c in part.collectives] == [("all_reduce", ("tp",))] * 3, part.explain()
    with refuses(errors.ArgumentError, "'sideways'", "colwise"):
        mw.interop.torch.tp_shardings({"*.up": "sideways"}, made.params, mesh)
    with refuses(errors.ShardingError, "'model'"):
        mw.interop.torch.tp_shardings(plan, made.params, mesh, axis="model")


def test_placements_both_ways(refuses):
    mesh = mw.AbstractMesh((4, 2), ("fsdp", "tp"))
    cases = {
        (Shard(0), Replicate()): mw.P("fsdp", None),
        (Shard(0), Shard(0)): mw.P(("fsdp", "tp"), None),
        (Shard(1), Shard(0)): mw.P("tp", "fsdp"),
        (Replicate(), Shard(-1)): mw.P(None, "tp"),
    }
    for placements, spec in cases.items():
        sharding = mw.interop.torch.from_placements(placements, mesh, 2)
        assert sharding.spec == spec
        assert mw.interop.torch.from_placements(mw.interop.torch.to_placements(sharding), mesh, 2) == sharding
    late = mw.interop.torch.from_placements((_StridedShard(0, split_factor=2), Shard(0)), mesh, 2)
    assert late.spec == mw.P(("tp", "fsdp"), None)
    with refuses(errors.ShardingError, "2 dimensions"):
        mw.interop.torch.from_placements((Shard(5), Replicate()), mesh, 2)
    with refuses(errors.ShardingError, "0 dimensions"):
        mw.interop.torch.from_placements((Shard(0), Replicate()), mesh, 0)
    with refuses(errors.ArgumentTypeError, "placements", "'replicate'"):
        mw.interop.torch.from_placements(("replicate", Replicate()), mesh, 2)
    with refuses(errors.ArgumentTypeError, "NamedSharding"):
        mw.interop.torch.to_placements(mw.P("tp"))
    with refuses(errors.ShardingError, "split_factor=4"):
        mw.interop.torch.from_placements((_StridedShard(0, split_factor=4), Shard(0)), mesh, 2)
    with refuses(errors.ShardingError, "pending sum"):
        mw.interop.torch.from_placements((Partial(), Replicate()), mesh, 2)


def _parts_of_torch(placements, sizes, n):
    """Which of ``n`` rows each device has, as torch splits them."""
    parts = {}
    for place in itertools.product(*map(range, sizes)):
        rows = torch.arange(n)
        for placement, at, size in zip(placements, place, sizes):
            if not isinstance(placement, Replicate):
                rows = placement._split_tensor(rows, size, with_padding=False)[0][at]
        parts[place] = rows.tolist()
    return parts


def _parts(sharding, n):
    """Which of ``n`` rows each device has under a sharding of ours."""
    names, sizes = sharding.mesh.axis_names, tuple(sharding.mesh.shape.values())
    entry = sharding.spec[0]
    axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    parts = {}
    for place in itertools.product(*map(range, sizes)):
        at, size = 0, n
        for axis in axes:
            i = names.index(axis)
            at, size = at * sizes[i] + place[i], size // sizes[i]
        parts[place] = list(range(at * size, (at + 1) * size))
    return parts


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 3, 2), (2, 2, 2)])
def test_orders_of_axes_are_placements_as_torch_applies_them(sizes):
    mesh = mw.AbstractMesh(sizes, tuple("abc"[: len(sizes)]))
    for count in range(len(sizes) + 1):
        for axes in itertools.permutations(mesh.axis_names, count):
            sharding = mw.NamedSharding(mesh, mw.P(axes))
            placements = mw.interop.torch.to_placements(sharding)
            assert _parts_of_torch(placements, sizes, 24) == _parts(sharding, 24), placements
            assert _parts(mw.interop.torch.from_placements(placements, mesh, 1), 24) == _parts(sharding, 24)
    each = [Replicate(), Shard(0), *(_StridedShard(0, split_factor=f) for f in (2, 3, 4))]
    taken = 0
    for placements in itertools.product(each, repeat=len(sizes)):
        try:
            sharding = mw.interop.torch.from_placements(placements, mesh, 1)
        except errors.ShardingError:
            continue
        taken += 1
        assert _parts_of_torch(placements, sizes, 24) == _parts(sharding, 24), placements
    assert taken >= 5


def test_meshes_both_ways(refuses):
    mesh = mw.AbstractMesh((4, 2), ("fsdp", "tp"))
    with refuses(errors.MeshError, "init_process_group"):
        mw.interop.torch.to_device_mesh(mesh)
    with refuses(errors.ArgumentTypeError, "DeviceMesh", "AbstractMesh"):
        mw.interop.torch.from_device_mesh(mesh)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        theirs = mw.interop.torch.to_device_mesh(mesh)
        assert theirs.mesh_dim_names == ("fsdp", "tp")
        assert theirs.mesh.tolist() == np.arange(8).reshape(4, 2).tolist()
        assert mw.interop.torch.from_device_mesh(theirs) == mesh
        assert mw.interop.torch.from_placements((Shard(0), Replicate()), theirs, 1).spec == mw.P("fsdp")
        with refuses(errors.MeshError, "of 8 processes"):
            mw.interop.torch.to_device_mesh(mw.AbstractMesh((16,), ("x",)))
    finally:
        torch.distributed.destroy_process_group()


def _specs(plan, shapes, axis="tp"):
    params = {n: mw.ShapeDtypeStruct(s, "float32") for n, s in shapes.items()}
    shardings = mw.interop.torch.tp_shardings(plan, params, mw.AbstractMesh((2,), (axis,)), axis)
    return {n: tuple(s.spec) for n, s in shardings.items()}


class Gathered(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh

    def forward(self, x):
        return DTensor.from_local(x, self.mesh, [Shard(0)]).full_tensor()


class Reduced(Gathered):
    def forward(self, x):
        return collectives.all_reduce(x, "sum", self.mesh)


def test_what_torch_spreads_over_its_processes_is_refused(refuses):
    """A DTensor has none of its values in memory of its own, where an array would read others."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh, x = init_device_mesh("cpu", (4,)), torch.ones(4, 8)
        spread = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        with refuses(errors.ArgumentTypeError, "DTensor (S(0))", "full_tensor()", "from_placements"):
            mw.interop.torch.from_tensors(spread)
        with refuses(errors.ArgumentTypeError, "argument x", "DTensor", "full_tensor()"):
            mw.from_torch(Layer(), (spread.t(),))
        split = parallelize_module(Layer(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        with refuses(errors.ArgumentTypeError, "parameter up.weight of Layer", "DTensor", "full_tensor()"):
            mw.from_torch(split, (x,))
        with refuses(errors.RuleError, "DTensor", "tp_shardings"):
            torch.compile(split, backend=mw.interop.torch.backend)(x)
        with refuses(errors.RuleError, "DTensor", "tp_shardings"):
            mw.from_torch(Gathered(mesh), (x,))
        with refuses(errors.RuleError, "all_reduce", "leave them out"):
            mw.from_torch(Reduced(mesh), (x,))
        with refuses(errors.ArgumentTypeError, "DistributedDataParallel", ".module"):
            mw.from_torch(torch.nn.parallel.DistributedDataParallel(Layer()), (x,))
    finally:
        torch.distributed.destroy_process_group()


def test_styles_of_experts_split_what_transformers_splits():
    shapes = {"experts.gate_up_proj": (4, 12, 8), "experts.down_proj": (4, 8, 6), "experts.down_proj.bias": (8,)}
    plan = {"experts": "moe_tp_experts", "experts.gate_up_proj": "packed_colwise", "experts.down_proj": "rowwise"}
    assert _specs(plan, shapes) == {
        "experts.gate_up_proj": (None, "tp", None),
        "experts.down_proj": (None, None, "tp"),
        "experts.down_proj.bias": (None,),
    }
    experts = {"experts": "ep_dispatch_experts", "experts.gate_up_proj": "grouped_gemm"}
    assert _specs(experts, {"experts.gate_up_proj": (4, 12, 8)}) == {"experts.gate_up_proj": ("tp", None, None)}
    assert _specs({"embed": "embedding_colwise"}, {"embed.weight": (10, 8)}) == {"embed.weight": (None, "tp")}
    assert _specs({"scale": "colwise"}, {"scale": ()}) == {"scale": ()}


def test_all_styles_of_transformers_are_known():
    parallel = pytest.importorskip("transformers.distributed.tensor_parallel", reason="transformers is not installed")
    from meshwright.interop.torch.plans import _STYLES

    assert set(parallel.ALL_PARALLEL_STYLES.keys()) - set(_STYLES) == set()


def test_the_entry_that_says_most_counts(refuses):
    shapes = {"model.layers.0.up.weight": (8, 4), "model.layers.1.up.weight": (8, 4), "model.layers.1.up.bias": (8,)}
    plan = {"up": "colwise", "layers.1.up": "rowwise", "layers.*.up": "replicate"}
    assert list(_specs(plan, shapes).values()) == [(None, None), (None, "tp"), (None,)]
    with pytest.warns(errors.PlanWarning, match="layers"):  # a * is one part of a name
        assert _specs({"layers.*": "colwise"}, shapes)["model.layers.0.up.weight"] == (None, None)
    with refuses(errors.ArgumentError, "'0.*' is 'rowwise'", "'*.up' is 'colwise'", "layers.0.up.weight"):
        _specs({"*.up": "colwise", "0.*": "rowwise"}, shapes)


def test_plans_that_are_none_are_refused_and_names_that_are_none_are_told(refuses):
    shapes = {"layers.0.up.weight": (8, 4)}
    with pytest.warns(errors.PlanWarning, match=r"'layers\.\*\.upp'.*did you mean 'layers\.\*\.up'"):
        _specs({"layers.*.upp": "colwise", "norm": "sequence_parallel"}, shapes)
    with refuses(errors.ArgumentTypeError, "styles by name", "None"):
        _specs(None, shapes)
    with refuses(errors.ArgumentError, "['colwise']"):
        _specs({"up": ["colwise"]}, shapes)
    made, mesh = model(count=1), mw.AbstractMesh((2,), ("tp",))
    with refuses(errors.ArgumentTypeError, "model.params", "TorchModel"):
        mw.interop.torch.tp_shardings({"up": "colwise"}, made, mesh)
    with refuses(errors.ArgumentTypeError, "DeviceMesh", "None"):
        mw.interop.torch.tp_shardings({"up": "colwise"}, made.params, None)
    with refuses(errors.ArgumentError, "'uq'"):
        mw.interop.torch.fully_sharded(made.params, mesh, "tp", within={"uq": mw.NamedSharding(mesh, mw.P())})


def test_a_model_of_types_says_that_it_has_no_values(refuses):
    made = model("meta", count=1)
    with refuses(errors.ArgumentTypeError, "has no values", "lower"):
        made(made.params, np.ones((4, 8), "f4"))


class Turned(torch.nn.Module):
    """Attention as LLaMA has it: heads turned by angles, which are a buffer that no checkpoint has, and a step counted
    in a scalar."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24, bias=False), torch.nn.Linear(8, 8, bias=False)
        self.register_buffer("angles", torch.ones(2), persistent=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1], device=x.device).float()
        turn = torch.outer(places, self.angles).repeat(1, 2).cos().to(x.dtype)
        y = torch.nn.functional.scaled_dot_product_attention(q * turn, k * turn, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(-2)) * self.scale.to(x.dtype)


def test_buffers_without_values_are_planned_and_not_run(refuses):
    with torch.device("meta"):
        module = torch.nn.Sequential(Turned()).bfloat16()
    model = mw.from_torch(module, (torch.ones(4, 6, 8, dtype=torch.bfloat16),))
    mesh = mw.AbstractMesh((2, 2), ("data", "tp"))
    weights = mw.interop.torch.tp_shardings({"*.qkv": "colwise", "*.out": "rowwise"}, model.params, mesh)
    rows = mw.NamedSharding(mesh, mw.P("data"))
    x = mw.ShapeDtypeStruct((4, 6, 8), "bfloat16")

    def planned(loss, *given):
        whole = [None] * (len(given) - 1)
        gradient = mw.jit(mw.grad(loss), in_shardings=(weights, *whole, rows), out_shardings=weights)
        return gradient.lower(model.params, *given).partition()

    part = planned(lambda p, x: model(p, x).astype("float32").sum(), x)
    assert part.bytes_sent and "all_reduce" in part.explain()
    with refuses(errors.VerificationError, "2 arrays without values", "apply(params, buffers"):
        part.verify()
    given = planned(lambda p, b, x: model.apply(p, b, x)[0].astype("float32").sum(), model.buffers, x)
    assert given.bytes_sent == part.bytes_sent


def test_fully_sharded_is_on_top_of_tensor_parallelism():
    made = model(count=1)
    mesh = mw.AbstractMesh((4, 2), ("fsdp", "tp"))
    inner = mw.interop.torch.tp_shardings({f"*.{n}": s for n, s in PLAN.items()}, made.params, mesh)
    both = mw.interop.torch.fully_sharded(made.params, mesh, within=inner)
    assert both["0.up.weight"].spec == mw.P(("tp", "fsdp"), None)
    assert both["0.down.weight"].spec == mw.P("fsdp", "tp")
    assert both["0.down.bias"].spec == mw.P("fsdp")


def test_the_forward_of_vit_b_split_by_its_batch_sends_nothing():
    vision = pytest.importorskip("torchvision.models", reason="torchvision is not installed: make test-torch")
    with torch.device("meta"):
        module, x = vision.vit_b_16().eval(), torch.zeros(8, 3, 224, 224)
    model = mw.from_torch(module, (x,))
    rows = mw.NamedSharding(mw.AbstractMesh((8,), ("data",)), mw.P("data"))
    run = mw.jit(model, in_shardings=(None, rows), out_shardings=rows)
    part = run.lower(model.params, mw.ShapeDtypeStruct(x.shape, "float32")).partition()
    assert part.collectives == [], part.explain()
