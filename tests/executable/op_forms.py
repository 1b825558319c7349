"""One operation in one form: its text, the dimension that is split, and what partitioning it may send.

Each form is partitioned for 4 devices, which divide most sizes here, for 3, which do not, and for 5, which leave a
device without rows. All three programs are compared with XLA's run of the text on one device, and what they send with
what is allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir

import meshwright as mw
from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.lowering.batched import virtual_program
from meshwright.runtime.array import Array, default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.runtime.pjrt.buffers import execute
from meshwright.runtime.pjrt.compiler import compile_module
from meshwright.runtime.values import buffer_of
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.driver import partition
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.report import collectives
from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.hlo import module_bytecode

DEVICES = (4, 3, 5)
RNG = np.random.default_rng(31)


def floats(*shape: int) -> np.ndarray:
    """Distinct numbers in random order."""
    return RNG.permutation(np.arange(np.prod(shape)) / 7 - 3).reshape(shape).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 9) -> np.ndarray:
    """Random integers."""
    return RNG.integers(low, high, shape).astype(np.int32)


def T(*shape: int, e: str = "f32") -> str:
    """The MLIR type of an array of ``shape``."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{e}>"


@dataclass(frozen=True)
class Form:
    """``split`` gives the dimension that is split to names of arguments; ``sends`` are the kinds of collectives that
    may be used, each of them by one mesh at least; ``most`` bounds the bytes that a device sends by those of gathering
    the split arguments; ``gathers`` says that some are, and reported. ``want`` are the results, if XLA cannot compute
    them."""

    name: str
    text: str
    args: Mapping[str, np.ndarray]
    split: Mapping[str, int]
    sends: tuple[str, ...] = ()
    most: float = 0.0
    tol: float = 1e-5
    gathers: bool = False
    want: Sequence[np.ndarray] | None = None

    def __str__(self) -> str:
        return self.name


def mlir_type(x: np.ndarray) -> str:
    """The MLIR type of an array."""
    kind = {"f": "f", "i": "i", "u": "ui", "b": "i"}[x.dtype.kind]
    bits = 1 if x.dtype == np.bool_ else 8 * x.dtype.itemsize
    return f"tensor<{''.join(f'{n}x' for n in x.shape)}{kind}{bits}>"


def form(
    name: str, split: Mapping[str, int], body: str, returns: str, *, sends: Sequence[str] = (), most: float = 0.0,
    tol: float = 1e-5, gathers: bool = False, want: Sequence[np.ndarray] | None = None, **args: np.ndarray,
) -> Form:  # fmt: skip
    """A form from the body of its function, what that returns (values and types), and its arguments by name."""
    types = returns.partition(" : ")[2]
    parameters = ", ".join(f"%{n}: {mlir_type(x)}" for n, x in args.items())
    text = f"func.func @main({parameters}) -> ({types}) {{\n{body}\n  return {returns}\n}}"
    return Form(name, text, args, split, tuple(sends), most, tol, gathers, want)


# --- running ------------------------------------------------------------------------------------------------
def xla_run(text: str, args: Sequence[np.ndarray], out_avals: Sequence[ShapedArray]) -> list[np.ndarray]:
    """XLA's results for a module on one device."""
    module = ir.Module.parse(text, new_context())
    outs = execute(compile_module(module_bytecode(module), "oracle"), [buffer_of(x) for x in args])
    return [np.asarray(Array(a, b, default_sharding(), False)) for a, b in zip(out_avals, outs)]


def run_all(programs: Sequence[ClosedJaxpr], args: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """The results of programs with the same parameters, compiled as one."""
    avals = [typeof(x) for x in args]
    whole = trace_to_jaxpr(lambda *xs: [y for p in programs for y in eval_jaxpr(p, p.consts, *xs)], avals)
    executable = compile_jaxpr(whole, "forms", [default_sharding()] * len(whole.out_avals))
    outs = iter([np.asarray(y) for y in executable(args)])
    return [[next(outs) for _ in p.out_avals] for p in programs]


def partition_form(f: Form, devices: int) -> Partition:
    """The program of one of ``devices`` devices; the results' layouts are chosen."""
    program = mw.load(f.text)
    assert not [e.op for e in all_eqns(program.jaxpr.jaxpr) if e.op.name == "opaque"], "kept as it is: runs replicated"
    mesh = AbstractMesh((devices,), ("x",))
    ins = [
        Layout(tuple(mesh.atoms_of("x") if f.split.get(name) == d else () for d in range(x.ndim)))
        for name, x in f.args.items()
    ]
    part = partition(program.jaxpr, mesh, ins, [None] * len(program.out_avals))
    verify(part.jaxpr, "per-device program")
    return part


def check_form(f: Form, devices: Sequence[int] = DEVICES) -> None:
    """Partition, run, compare; look at what is sent."""
    args = list(f.args.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [partition_form(f, n) for n in devices]
    want = f.want or xla_run(f.text, args, parts[0].source.out_avals)
    for n, outs in zip(devices, run_all([virtual_program(p) for p in parts], args)):
        for number, (got, expected) in enumerate(zip(outs, want, strict=True)):
            _assert_same(got, expected, f.tol, f"{n} devices, result {number}")
    _check_traffic(f, parts)


def _assert_same(got: np.ndarray, want: np.ndarray, tol: float, where: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), where
    if not dtypes.is_inexact(want.dtype):
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol * scale, err_msg=where)


def _check_traffic(f: Form, parts: Sequence[Partition]) -> None:
    used = set()
    for part in parts:
        (devices,) = part.mesh.axis_sizes
        found = collectives(part.jaxpr.jaxpr)
        text = "\n".join(map(str, found))
        used.update(c.kind for c in found)
        assert used <= set(f.sends), f"{devices} devices send {text}"
        tiles = sum(
            -(-x.shape[f.split[name]] // devices) * x.nbytes // x.shape[f.split[name]]
            for name, x in f.args.items()
            if name in f.split
        )
        gathered = tiles * (devices - 1)
        sent = sum(c.bytes_sent for c in found)
        assert sent <= f.most * gathered, f"{devices} devices send {sent} B of {gathered} B:\n{text}"
        assert bool(part.replicated) <= f.gathers, part.replicated
    assert used == set(f.sends), f"{set(f.sends) - used} is not used"
