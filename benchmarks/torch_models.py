"""PyTorch models: training steps against eager and inductor, and a tensor-parallel plan against DTensor."""

from __future__ import annotations

import os
import resource
import time
from importlib.util import find_spec
from typing import Any

from benchmarks.common import alternate, console, in_process, ratio, table
from benchmarks.torchvision_kernels import declare_kernels

LAYERS, WIDTH, HIDDEN, HEADS, BATCH, SEQUENCE, TENSOR = 4, 64, 160, 4, 4, 16, 2
COLUMNS, ROWS = ("q", "k", "v", "gate", "up"), ("out", "down")


# --- training steps -----------------------------------------------------------------------------------------
def model(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A module with random weights, its arguments, and the loss as a function of its output."""
    import torch

    torch.manual_seed(0)
    declare_kernels()  # transformers imports torchvision too
    if name == "ResNet-18":
        from torchvision.models import resnet18

        labels = torch.randint(0, 1000, (4,))
        loss = lambda y: torch.nn.functional.cross_entropy(y, labels)  # noqa: E731
        return resnet18().train(), (torch.randn(4, 3, 224, 224),), loss
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(0, 50257, (2, 128))
    config = GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    loss = lambda y: torch.nn.functional.cross_entropy(y.logits.flatten(0, 1), tokens.flatten())  # noqa: E731
    return GPT2LMHeadModel(config).train(), (tokens,), loss


def _on_one_core() -> None:
    """Restrict this process to one core, so that XLA, which starts later, also uses a single thread."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def step_seconds(name: str, backend: str) -> dict[str, float]:
    """CPU seconds of a training step (forward, backward, SGD) on one core, compiled by ``backend``.

    Returns the best of several steps, and the first one.
    """
    _on_one_core()
    import torch

    torch.set_num_threads(1)
    module, args, loss = model(name)
    if backend == "meshwright":
        from meshwright.interop.torch import backend as ours

        run = torch.compile(module, backend=ours)
    else:
        run = torch.compile(module, backend=backend) if backend != "eager" else module
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        loss(run(*args)).backward()
        optimizer.step()
        return time.process_time() - start

    first = step()
    step()
    return {"step": min(step() for _ in range(5)), "first": first}


#: kinds of XLA's kernels, by prefixes of their names
_KINDS = {
    "convolutions": ("convolution", "opaque_", "ynn_fusion"),  # by XLA, oneDNN, YNNPACK
    "matrix products": ("dot",),
    "transpositions and copies to the layouts of XLA's kernels": ("transpose", "copy", "wrapped_copy"),
    "windows": ("wrapped_reduce-window", "select-and-scatter", "slice_select"),
}
#: calls, which are recorded in addition to the kernels that they contain
_CALLS = ("chosen", "select_and_scatter_add")


def kernels(name: str) -> dict[str, float]:
    """The share of a training step's time that each kind of XLA's kernels takes, from the profiler."""
    _on_one_core()
    import glob
    import tempfile

    import torch
    from jax.profiler import ProfileData

    import meshwright as mw

    module, args, loss = model(name)
    run = torch.compile(module, backend=mw.interop.torch.backend)
    for _ in range(2):
        loss(run(*args)).backward()
    with tempfile.TemporaryDirectory() as folder:
        with mw.profiler.trace(folder):
            loss(run(*args)).backward()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        lines = [line for plane in ProfileData.from_file(file).planes for line in plane.lines]
    taken: dict[str, float] = {}
    events = (e for line in lines for e in line.events if any(key == "hlo_op" for key, _ in e.stats))
    for event in (e for e in events if not e.name.startswith(_CALLS)):
        kind = next((k for k, begins in _KINDS.items() if event.name.startswith(begins)), "sums and elementwise ops")
        taken[kind] = taken.get(kind, 0) + event.duration_ns
    return {kind: t / sum(taken.values()) for kind, t in sorted(taken.items(), key=lambda pair: -pair[1])}


def _listed(shares: Any) -> str:
    return shares if isinstance(shares, str) else ", ".join(f"{share:.0%} are {kind}" for kind, share in shares.items())


# --- a tensor-parallel plan ---------------------------------------------------------------------------------
def decoder() -> Any:
    """A decoder like LLaMA's, in plain torch."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for n in ("q", "k", "v", "out"):
                self.add_module(n, nn.Linear(WIDTH, WIDTH, bias=False))
            self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
            self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

        def forward(self, x: Any) -> Any:
            h = self.first(x)
            heads = lambda y: y.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)  # noqa: E731
            q, k, v = heads(self.q(h)), heads(self.k(h)), heads(self.v(h))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(-2))
            h = self.second(x)
            return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))

    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def dtensor() -> dict[str, Any]:
    """What DTensor sends in forward and backward pass under the plan: its own counts, with the bytes of a ring."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    dist.init_process_group("fake", rank=0, world_size=TENSOR, store=FakeStore())
    mesh = init_device_mesh("cpu", (TENSOR,))
    plan = {n: ColwiseParallel() for n in COLUMNS} | {n: RowwiseParallel() for n in ROWS}
    module = decoder()
    for layer in module:
        parallelize_module(layer, mesh, plan)
    part = (TENSOR - 1) / TENSOR
    factors = {"all_reduce": 2 * part, "all_gather": part * TENSOR, "reduce_scatter": part}
    sent = [0.0]

    class Bytes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for kind, factor in factors.items():
                if func.name().startswith(f"_c10d_functional::{kind}"):
                    sent[0] += factor * args[0].nbytes
            return func(*args, **(kwargs or {}))

    with CommDebugMode() as counted, Bytes():
        module(torch.randn(BATCH, SEQUENCE, WIDTH, requires_grad=True)).sum().backward()
    return {"collectives": counted.get_total_counts(), "bytes": sent[0]}


def planned() -> dict[str, Any]:
    """What the same plan sends here."""
    import torch

    import meshwright as mw

    mesh = mw.AbstractMesh((TENSOR,), ("tp",))
    converted = mw.from_torch(decoder(), (torch.randn(BATCH, SEQUENCE, WIDTH),))
    plan = {f"*.{n}": "colwise" for n in COLUMNS} | {f"*.{n}": "rowwise" for n in ROWS}
    weights = mw.interop.torch.tp_shardings(plan, converted.params, mesh)
    whole = mw.NamedSharding(mesh, mw.P())
    gradient = mw.jit(
        mw.grad(lambda p, x: converted(p, x).sum(), argnums=(0, 1)),
        in_shardings=(weights, whole),
        out_shardings=(weights, whole),
    )
    x = mw.ShapeDtypeStruct((BATCH, SEQUENCE, WIDTH), "float32")
    part = gradient.lower(converted.params, x).partition()
    part.verify()
    return {"collectives": len(part.collectives), "bytes": part.bytes_sent}


# --- large models, from their shapes ------------------------------------------------------------------------
def llama_8b() -> dict[str, float]:
    """LLaMA-3-8B on the meta device, forward and backward on DP 8 × TP 8: CPU seconds per stage, and peak memory."""
    import torch

    declare_kernels()
    from transformers import AutoModelForCausalLM, LlamaConfig

    import meshwright as mw

    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False,
    )  # fmt: skip
    start = time.process_time()
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tokens = torch.zeros((8, 2048), dtype=torch.int64)
    converted = mw.from_torch(module, (tokens,))
    exported = time.process_time()
    mesh = mw.AbstractMesh((8, 8), ("data", "tp"))
    plan = {f"model.{k}": v for k, v in config.base_model_tp_plan.items()} | {"lm_head": "colwise"}
    weights = mw.interop.torch.tp_shardings(plan, converted.params, mesh)
    rows = mw.NamedSharding(mesh, mw.P("data"))

    def loss(params: Any, tokens: Any) -> Any:
        return converted(params, tokens)["logits"].astype("float32").mean()

    gradient = mw.jit(mw.grad(loss), in_shardings=(weights, rows), out_shardings=weights)
    lowered = gradient.lower(converted.params, mw.ShapeDtypeStruct((8, 2048), "int32"))
    traced = time.process_time()
    part = lowered.partition()
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    activations = 8 * 2048 * 4096 * 2 // 8
    ring = 2 * 7 / 8
    parameters = sum(a.nbytes for a in part.jaxpr.in_avals[:-1])
    textbook = 4 * 32 * activations * ring + parameters * ring
    return {
        "export": exported - start, "trace": traced - exported, "partition": done - traced, "total": done - start,
        "gigabytes": peak / 1e9, "bytes": part.bytes_sent, "textbook": textbook,
    }  # fmt: skip


def vit_collectives() -> int:
    """The number of collectives in the forward pass of ViT-B/16 with the batch split over 8 devices."""
    import torch

    declare_kernels()
    from torchvision.models import vit_b_16

    import meshwright as mw

    with torch.device("meta"):
        module, x = vit_b_16().eval(), torch.zeros(8, 3, 224, 224)
    converted = mw.from_torch(module, (x,))
    mesh = mw.AbstractMesh((8,), ("data",))
    rows = mw.NamedSharding(mesh, mw.P("data"))
    run = mw.jit(converted, in_shardings=(None, rows), out_shardings=rows)
    return len(run.lower(converted.params, mw.ShapeDtypeStruct(x.shape, "float32")).partition().collectives)


def _here(function: str, *args: Any, limit: float = 600) -> Any:
    return in_process("benchmarks.torch_models", function, *args, limit=limit)


def _shown(value: Any, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)


def _of_plan(name: str, found: Any, peer: Any) -> list[str]:
    """The row for the bytes sent, or for the failure."""
    if isinstance(found, str):
        return [name, found, "-", "-"]
    of_peer = "-" if isinstance(peer, str) else ratio(found["bytes"], peer["bytes"])
    return [name, str(found["collectives"]), f"{found['bytes']:,.0f}", of_peer]


def main() -> None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        console.print("torch_models: needs torch, torchvision and transformers (make test-torch installs them)")
        return
    rows, reasons = [], []
    for name in ("GPT-2", "ResNet-18"):
        backends = ("eager", "inductor", "meshwright")
        found = alternate({b: lambda name=name, b=b: _here("step_seconds", name, b) for b in backends}, 3)
        eager = found["eager"]["step"] if isinstance(found["eager"], dict) else None
        if isinstance(found["inductor"], dict) and isinstance(found["meshwright"], dict):
            if found["inductor"]["step"] < found["meshwright"]["step"]:
                reasons.append(f"{name}, where inductor is faster: of our step {_listed(_here('kernels', name))}")
        for b in backends:
            f = found[b] if isinstance(found[b], dict) else {"step": found[b], "first": found[b]}
            rows.append([name, b, _shown(f["step"], ".3f"), ratio(f["step"], eager), _shown(f["first"], ".1f")])
    table(
        "A training step (forward, backward, SGD), CPU time on one core, best of 5, median of 3 processes",
        ["model", "", "CPU s", "of eager", "first step, CPU s"],
        rows,
        "target: at most eager's time",
    )
    for reason in reasons:
        console.print(reason)
    sent = {"DTensor": _here("dtensor"), "Meshwright": _here("planned")}
    table(
        f"The same plan over {TENSOR} devices, {LAYERS} layers of a decoder, forward and backward",
        ["", "collectives", "bytes sent", "of DTensor"],
        [_of_plan(name, found, sent["DTensor"]) for name, found in sent.items()],
        "target: at most 0.6 of DTensor's bytes",
    )
    title, large = "LLaMA-3-8B from the meta device, DP 8 × TP 8, forward and backward", _here("llama_8b")
    if isinstance(large, str):
        console.print(f"{title}: {large}")
    else:
        note = "target: 30 s, 1 GB, bytes within 2 % of the textbook's"
        table(title, list(large), [[f"{v:,.2f}" for v in large.values()]], note)
    console.print(f"ViT-B/16, forward, batch over 8 devices: {_here('vit_collectives')} collectives (target: none)")
