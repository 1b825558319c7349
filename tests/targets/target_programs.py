"""Programs that are compiled for targets, and what compilers made of them, kept as text.

``python tests/targets/target_programs.py`` compiles them again where the extras are installed (``.[tpu,cuda]``) and
writes ``compiled/``: the compilers' answers, from which reports are made without them.
"""

import dataclasses
import gzip
import json
import re
from pathlib import Path

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.runtime.pjrt.plugins import compiler
from meshwright.stablehlo.hlo import module_bytecode
from meshwright.targets.child import Answer, compile_in_child
from meshwright.targets.compiling import Subject, job_of, report_of
from meshwright.targets.report import Prediction

KEPT = Path(__file__).with_name("compiled")


def mlp(sizes=(4, 2)):
    """A layer up and one down, Megatron's way, with their gradients: all-reduces, two of them combined."""

    def loss(x, w1, w2):
        y = mnp.tanh(x @ w1) @ w2
        return (y * y).mean()

    types = [mw.ShapeDtypeStruct(s, np.float32) for s in ((512, 256), (256, 1024), (1024, 256))]
    specs = (P("data"), P(None, "model"), P("model"))
    return partitioned(mw.value_and_grad(loss, argnums=(1, 2)), types, specs, None, sizes)


def layers():
    """Three layers in a scan, their weights split over both axes: gathers that go on beside products."""

    def loss(x, ws):
        def layer(h, w):
            return h + mnp.tanh(h @ w[0]) @ w[1], None

        h, _ = mw.lax.scan(layer, x, ws)
        return (h * h).mean()

    shapes = (4096, 2048), (3, 2048, 8192), (3, 8192, 2048)
    x, up, down = (mw.ShapeDtypeStruct(s, mnp.bfloat16) for s in shapes)
    split = P(None, "data", "model"), P(None, "model", "data")
    return partitioned(
        mw.value_and_grad(loss, argnums=1), (x, (up, down)), (P("data"), split), (P(), split), (2, 4)
    )  # fmt: skip


def moves():
    """Values that change their layout: permutes, an all-to-all, a shifted window, and a sum."""

    def f(x):
        a = mw.lax.with_sharding_constraint(x.T @ x, P("data", "model"))
        b = mw.lax.with_sharding_constraint(a, P("model", "data"))
        c = mw.lax.with_sharding_constraint(mnp.roll(b @ a, 3, axis=0), P(("data", "model")))
        return c.at[0].add(c.mean())

    x = mw.ShapeDtypeStruct((512, 512), np.float32)
    return partitioned(f, [x], (P("data", "model"),), P(None, "model"), (2, 4))


def partitioned(f, args, ins, outs, sizes):
    with mw.set_mesh(mw.AbstractMesh(sizes, ("data", "model"))):
        return mw.jit(f, in_shardings=ins, out_shardings=outs).lower(*args).partition()


def subject(part, platform="tpu"):
    module = module_bytecode(part.module(platform))
    return Subject(part.name, module, part.mesh, part.collectives, Prediction(part.memory, part.bytes_sent))


#: what is kept, and for what it is compiled
COMPILED = {
    "mlp_v5e": (mlp, "v5e:2x4"),
    "mlp_h100": (mlp, "h100:8"),
    "layers_v5e": (layers, "v5e:2x4"),
    "moves_v5e": (moves, "v5e:2x4"),
}


def kept_report(name):
    """The report of what a compiler gave when it was asked."""
    program, where = COMPILED[name]
    found = json.loads(gzip.decompress((KEPT / f"{name}.json.gz").read_bytes()))
    what, target = subject(program()), mw.target(where)
    return report_of(what, target, target.order_of(what.mesh), Answer(**found))


def main():
    KEPT.mkdir(exist_ok=True)
    for name, (program, where) in COMPILED.items():
        what, target = subject(program()), mw.target(where)
        found = compile_in_child(job_of(what, target), compiler(target.platform, where))
        text = re.sub(r'"[^"\n]*/([\w.]+\.py)"', r'"\1"', found.text)  # no folders of the machine it was made on
        found = dataclasses.replace(found, text=text, executable=b"", devices=())
        fields = {k: v for k, v in dataclasses.asdict(found).items() if k != "executable"}
        data = gzip.compress(json.dumps(fields).encode(), mtime=0)
        (KEPT / f"{name}.json.gz").write_bytes(data)
        print(name, len(found.text), len(data), found.seconds)


if __name__ == "__main__":
    main()
