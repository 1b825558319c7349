"""Programs compiled for TPU pods and GPU nodes: predictions against XLA's results.

Writes ``docs/targets.md``. XLA's figures are kept in ``docs/targets.json``, with digests of our module and of the
program: what has been compiled once is not compiled again (remove an entry to measure it anew). Needs
``meshwright[tpu,cuda]``; a target without its compiler keeps its figures. ``MESHWRIGHT_ONLY`` restricts it to programs
or targets that contain one of its words.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.programs import FOLDER
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P
from meshwright.api.targets import memory_on
from meshwright.errors import CompileError, MissingExtraError
from meshwright.runtime.pjrt.plugins import compiler
from meshwright.spmd.report import human_bytes
from meshwright.stablehlo.hlo import module_bytecode, module_text
from meshwright.targets.child import compile_in_child
from meshwright.targets.compiling import Job, described
from meshwright.targets.hlo import parse_hlo
from meshwright.targets.schedule import schedule_of

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "targets.json"
#: targets of 16 devices, and of 8 for programs whose shardings are for 8
TARGETS = (("v5e:4x4", "v5e:2x4"), ("v5p:2x2x4", "v5p:2x2x2"), ("v6e:4x4", "v6e:2x4"), ("h100:8", "h100:8"),
           ("h200:2x8", "h200:2x4"))  # fmt: skip
MODELS = ("bert_fwd", "resnet_fwd", "vit_train", "gpt2_train", "clip_train")


@dataclass(frozen=True)
class Subject:
    """A program: our partition of it for a target, and the module for XLA's own partitioner, also as text."""

    part: Any
    whole: Callable[[], bytes]
    text: Callable[[], str]
    #: the shardings of results are not given
    is_free: bool = False

    def digest(self, where: str) -> str:
        """The digest of our module for a target, to which figures of our partition belong."""
        return _digest(module_text(emitted(self.part, mw.target(where).platform)))

    @cached_property
    def program(self) -> str:
        """The digest of the whole program, to which figures of XLA's partition belong."""
        return _digest(self.text())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def emitted(part: Any, platform: str) -> Any:
    """The module that the platform's compiler gets from us."""
    return part.module(platform)


def gpt(devices: int) -> Subject:
    """The training step of ``examples/gpt.py``."""
    sys.path.insert(0, str(DOCS.parent / "examples"))
    import gpt as example

    mesh = mw.AbstractMesh((devices // 4, 4), ("data", "model"))
    weights, batch = example.placements(mesh)
    params = mw.eval_shape(example.init, mw.random.key(0))
    tokens = mw.ShapeDtypeStruct((example.BATCH, example.LENGTH), np.int32)
    step = mw.jit(
        example.step,
        in_shardings=(weights, weights, weights, batch, batch, None),
        out_shardings=(None, weights, weights, weights),
        donate_argnums=(0, 1, 2),
    )
    return lowered_subject(step.lower(params, params, params, tokens, tokens, mw.ShapeDtypeStruct((), np.float32)))


def llama(devices: int) -> Subject:
    """Loss and gradients of one layer like LLaMA's, for 8 × 2048 tokens."""
    return lowered_subject(llama_step(mw.AbstractMesh((devices // 4, 4), ("data", "model")), 1, 8))


def llama_step(mesh: mw.AbstractMesh, layers: int, batch: int) -> Any:
    """Loss and gradients of layers like LLaMA's: width 4096, 32 heads (8 for keys), hidden width 14336, 2048 tokens."""
    width, heads, groups, hidden, length = 4096, 32, 8, 14336, 2048
    size = width // heads

    def layer(p: Any, x: Any) -> Any:
        h = nn.rms_norm(x, p["before"])
        q = _rotated((h @ p["q"]).reshape(batch, length, heads, size))
        k, v = ((h @ p[n]).reshape(batch, length, groups, size) for n in "kv")
        mixed = nn.dot_product_attention(q, _rotated(k), v, is_causal=True)
        x = x + mixed.reshape(batch, length, width) @ p["out"]
        h = nn.rms_norm(x, p["after"])
        return x + (nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = layer(p, x)
        return mnp.mean(mnp.square(x.astype(np.float32)))

    def on(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    columns, rows = on(None, "model"), on("model")
    shapes = {"q": (width, width), "k": (width, groups * size), "v": (width, groups * size), "out": (width, width),
              "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}  # fmt: skip
    where = dict.fromkeys(shapes, columns) | {"out": rows, "down": rows, "before": on(), "after": on()}
    shapes |= {"before": (width,), "after": (width,)}
    types = {n: mw.ShapeDtypeStruct(s, mnp.bfloat16) for n, s in shapes.items()}
    x = mw.ShapeDtypeStruct((batch, length, width), mnp.bfloat16)
    stack = [where] * layers
    step = mw.jit(mw.value_and_grad(loss), in_shardings=(stack, on("data")), out_shardings=(on(), stack))
    return step.lower([types] * layers, x)


def _rotated(x: Any) -> Any:
    """Rotary position embedding (Su et al. 2021)."""
    length, size = x.shape[1], x.shape[3]
    angles = np.outer(np.arange(length), 1e4 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    cos, sin = (mnp.asarray(f(angles), x.dtype)[None, :, None] for f in (np.cos, np.sin))
    a, b = mnp.split(x, 2, axis=-1)
    return mnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def lowered_subject(lowered: Any) -> Subject:
    """A program that was traced here."""
    module = lowered.compiler_ir
    return Subject(lowered.partition(), lambda: module_bytecode(module()), lambda: module_text(module()))


def model(name: str) -> Subject:
    """A training step or forward pass of a ``transformers`` model, lowered by JAX for 8 devices."""
    file = FOLDER / f"{name}.mlir"
    return Subject(mw.load(file).partition(), file.read_bytes, file.read_text, is_free=name.endswith("_fwd"))


@cache
def subject(name: str, devices: int) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.MeshwrightWarning)
        made = {"gpt": gpt, "llama": llama}.get(name)
        return made(devices) if made else model(name)


def cases() -> Iterator[tuple[str, str]]:
    only = os.environ.get("MESHWRIGHT_ONLY", "").split()
    for name in ("gpt", *MODELS, "llama"):
        for large, small in TARGETS:
            where = small if name in MODELS else large
            if not only or any(word in f"{name} {where}" for word in only):
                yield name, where


def measured(name: str, where: str) -> dict[str, Any]:
    """XLA's figures for our per-device program."""
    target = mw.target(where)
    found = subject(name, target.size)
    report = found.part.compile(target, progress=lambda seconds, held: None)
    return {
        "fits": report.fits, "peak": report.peak_bytes, "device": report.device_bytes,
        "arguments": report.argument_bytes, "temporaries": report.temp_bytes, "sent": report.bytes_sent,
        "collectives": len(report.collectives), "beside": sum(c.asynchronous for c in report.collectives),
        "share": report.overlapped_share, "cycles": report.estimated_cycles, "seconds": round(report.seconds, 1),
    }  # fmt: skip


def xla_cycles(name: str, where: str) -> int | None:
    """The estimated cycles of the program as partitioned by XLA, for TPUs; None for others, or if XLA rejects it."""
    target = mw.target(where)
    if target.platform != "tpu":
        return None
    found = subject(name, target.size)
    topology, options = described(target)
    ids = target.order_of(found.part.mesh)
    job = Job("whole", found.whole(), "tpu", topology, options, ids, partitions=len(ids), free_results=found.is_free)
    answer = compile_in_child(job, compiler("tpu", target.name))
    return None if answer.refused else schedule_of(parse_hlo(answer.text), len(ids)).cycles


def render(kept: dict[str, Any]) -> str:
    """The page, with a row for each program and target that was measured."""
    rows, errors = [], []
    names = "gpt", *MODELS, "llama"
    order = (f"{name} {small if name in MODELS else large}" for name in names for large, small in TARGETS)
    for key in filter(kept.__contains__, order):
        name, where = key.split(" ")
        f, memory = kept[key], _predicted(name, where)
        predicted = memory.live_bytes
        error = predicted / f["peak"] - 1
        errors.append((mw.target(where).platform, abs(memory.argument_bytes / f["arguments"] - 1), abs(error)))
        ratio = f"{f['cycles'] / f['xla_cycles']:.2f}" if f.get("cycles") and f.get("xla_cycles") else ""
        rows.append([
            name, where, "yes" if f["fits"] else "no", human_bytes(f["device"]), human_bytes(f["peak"]),
            human_bytes(predicted), f"{error:+.0%}", human_bytes(f["sent"]), f"{f['beside']} of {f['collectives']}",
            f"{f['share']:.0%}", f"{f['cycles']:,}" if f["cycles"] else "", ratio, f"{f['seconds']}",
        ])  # fmt: skip
    head = ["program", "target", "fits", "device holds", "alive at once", "predicted", "error", "sends",
            "beside other work", "share of bytes", "cycles", "of XLA's", "seconds"]  # fmt: skip
    lines = ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]
    return "\n".join([*lines, "", *(_summary(p, errors) for p in ("tpu", "cuda")), ""])


def _predicted(name: str, where: str) -> Any:
    """The predicted memory of a device of the target."""
    target = mw.target(where)
    return memory_on(subject(name, target.size).part, target)


def _summary(platform: str, errors: list[tuple[str, float, float]]) -> str:
    arguments, peaks = ([e[i] for e in errors if e[0] == platform] for i in (1, 2))
    return (
        f"- {platform}, {len(peaks)} programs and targets: predicted arguments, worst error {max(arguments):.1%}; "
        f"predicted peak, median error {statistics.median(peaks):.0%}, worst {max(peaks):.0%}."
    )


def main() -> None:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name, where in cases():
        start, found = time.perf_counter(), kept.get(f"{name} {where}", {})
        made = subject(name, mw.target(where).size)
        module, program = made.digest(where), made.program
        if found.get("module") == module and found.get("program") == program:
            continue
        try:
            whole = found["xla_cycles"] if found.get("program") == program else xla_cycles(name, where)
            of = {"module": module, "program": program, "xla_cycles": whole}
            kept[f"{name} {where}"] = of | measured(name, where)
        except (MissingExtraError, CompileError) as error:
            print(f"{name} for {where}: {error}", flush=True)
            continue
        print(f"{name} for {where}: {time.perf_counter() - start:.0f} s", flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    page = DOCS / "targets.md"
    before, mark, after = page.read_text().partition("<!-- figures -->\n")
    page.write_text(before + mark + render(kept) + "\n" + after[after.index("## ") :])
