"""Plans as transformers, DTensor and FSDP write them; a model on the meta device, planned without a byte of it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

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
    with refuses(errors.ShardingError, "order"):
        mw.interop.torch.to_placements(late)
    with refuses(errors.ShardingError, "split_factor=4"):
        mw.interop.torch.from_placements((_StridedShard(0, split_factor=4), Shard(0)), mesh, 2)
    with refuses(errors.ShardingError, "pending sum"):
        mw.interop.torch.from_placements((Partial(), Replicate()), mesh, 2)


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
