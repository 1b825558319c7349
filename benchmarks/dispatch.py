"""Dispatch: the cost of an import and of a warm call, and memory with thousands of calls in flight."""

from __future__ import annotations

import importlib
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import alternate, in_process, ratio, seconds_per_call, table


def _rss() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def import_seconds(module: str) -> float:
    """CPU seconds of importing a module in this process."""
    start = time.process_time()
    importlib.import_module(module)
    return time.process_time() - start


def ours_call(devices: int) -> float:
    """Seconds of one warm jitted call on small arrays."""
    import meshwright as mw

    x = np.ones((8, 8), np.float32)
    if devices > 1:
        mesh = mw.make_mesh((devices,), ("data",))
        x = mw.device_put(x, mw.NamedSharding(mesh, mw.PartitionSpec("data")))
    else:
        x = mw.device_put(x)
    f = mw.jit(lambda a: a + a)
    return seconds_per_call(lambda: f(x), mw.block_until_ready)


def jax_call(devices: int) -> float:
    """The same with JAX; on several devices each call is waited for, as it may hang otherwise."""
    import jax

    x = np.ones((8, 8), np.float32)
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        x = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
        f = jax.jit(lambda a: a + a)
        return seconds_per_call(lambda: f(x).block_until_ready(), jax.block_until_ready)
    x = jax.device_put(x)
    f = jax.jit(lambda a: a + a)
    return seconds_per_call(lambda: f(x), jax.block_until_ready)


def _flood(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Seconds of ``calls`` calls without waiting, and the largest growth of the process in MiB."""
    out, before, peak, start = None, _rss(), 0.0, time.perf_counter()
    for i in range(calls):
        out = call()
        if i % 100 == 0:
            peak = max(peak, _rss())
    out.block_until_ready()
    return {"seconds": time.perf_counter() - start, "grown": max(peak, _rss()) - before}


def ours_flood(calls: int) -> dict[str, Any]:
    """Asynchronous calls: a product of two f32[1024,1024] sharded 2×2 over 4 virtual devices."""
    import meshwright as mw

    mesh = mw.make_mesh((2, 2), ("x", "y"))
    sharding = mw.NamedSharding(mesh, mw.PartitionSpec("x", "y"))
    a = mw.device_put(np.ones((1024, 1024), np.float32), sharding)
    b = mw.device_put(np.ones((1024, 1024), np.float32), sharding)
    f = mw.jit(lambda p, q: p @ q)
    out = f(a, b).block_until_ready()
    for _ in range(100):
        out = f(a, b)
    out.block_until_ready()
    return _flood(lambda: f(a, b), calls)


def jax_flood(calls: int) -> dict[str, Any]:
    """The same with JAX's forced host devices."""
    import jax

    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    a = jax.device_put(np.ones((1024, 1024), np.float32), sharding)
    b = jax.device_put(np.ones((1024, 1024), np.float32), sharding)
    f = jax.jit(lambda p, q: p @ q)
    f(a, b).block_until_ready()
    return _flood(lambda: f(a, b), calls)


def _imports() -> None:
    modules = ("meshwright", "jax")
    with tempfile.TemporaryDirectory() as folder:
        env = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}  # bytecode, as when installed
        runs = {m: lambda m=m: in_process("benchmarks.dispatch", "import_seconds", m, env=env) for m in modules}
        for first in runs.values():
            first()
        found = alternate(runs, rounds=7)
    shown = [f"{found[m]:.3f} s" if isinstance(found[m], float) else str(found[m]) for m in modules]
    table(
        "Importing it, processor time", ["", "Meshwright", "JAX", "ours / JAX"],
        [["import", *shown, ratio(*(found[m] for m in modules))]], "target: ≤ 0.7",
    )  # fmt: skip


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def steps_of(library: str, steps: int, width: int) -> dict[str, float]:
    """Elapsed and CPU seconds of training steps on 8 real devices.

    Ours are not waited for; JAX's are, as it hangs otherwise. The model is ``tanh(x @ w)`` on a batch of ``width``
    rows, on a 4×2 mesh.
    """
    numpy, tree, mesh_of, sharding, spec = _names(library)
    mesh = mesh_of((4, 2))
    w = tree.device_put(np.ones((width, width), np.float32), sharding(mesh, spec(None, "y")))
    x = tree.device_put(np.ones((width, width), np.float32) / width, sharding(mesh, spec("x")))

    @tree.jit
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * tree.grad(lambda w: (numpy.tanh(x @ w) ** 2).mean())(w)

    for _ in range(20):
        w = step(w, x)
        w.block_until_ready()
    start, cpu = time.perf_counter(), _cpu()
    for _ in range(steps):
        w = step(w, x)
        if library == "jax":
            w.block_until_ready()
    w.block_until_ready()
    return {"seconds": time.perf_counter() - start, "cpu": _cpu() - cpu}


def _names(library: str) -> Any:
    """A library's NumPy functions, transformations, mesh constructor, shardings and specs."""
    if library == "jax":
        import jax

        auto = (jax.sharding.AxisType.Auto,) * 2
        mesh = lambda shape: jax.make_mesh(shape, ("x", "y"), axis_types=auto)  # noqa: E731
        return jax.numpy, jax, mesh, jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    import meshwright as mw

    return mw.numpy, mw, lambda shape: mw.make_mesh(shape, ("x", "y")), mw.NamedSharding, mw.PartitionSpec


def real_devices(steps: int = 3000) -> None:
    """Print the results of :func:`steps_of`, with alternating contenders.

    With more devices than cores, elapsed seconds depend on the scheduler too; CPU seconds do not.
    """
    devices = {"MESHWRIGHT_REAL_DEVICES": "8", "MESHWRIGHT_NUM_DEVICES": "8"}
    forced = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    contenders = {
        "Meshwright": ("meshwright", devices),
        "JAX": ("jax", forced),
        "JAX, as many threads": ("jax", {**forced, "NPROC": "16"}),
    }
    rows = []
    for width in (8, 256):
        runs = {
            name: lambda n=library, e=env, w=width: in_process("benchmarks.dispatch", "steps_of", n, steps, w, env=e)
            for name, (library, env) in contenders.items()
        }
        found = alternate(runs, rounds=3)
        shown = [f"{f['seconds']:.2f} s, {f['cpu']:.2f} s" if isinstance(f, dict) else str(f) for f in found.values()]
        rows.append([f"f32[{width},{width}]", *shown])
    table(
        f"{steps} steps on 8 real devices: seconds, seconds of processors", ["", *contenders], rows,
        "JAX is waited for at each step; with a thread for each device, as it has them, steps in flight hang",
    )  # fmt: skip


def main() -> None:
    _imports()
    rows = []
    for devices in (1, 8):
        forced = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
        found = alternate(
            {
                "ours": lambda n=devices: in_process(
                    "benchmarks.dispatch", "ours_call", n, env={"MESHWRIGHT_NUM_DEVICES": str(n)}
                ),
                "jax": lambda n=devices, e=forced: in_process("benchmarks.dispatch", "jax_call", n, env=e, limit=60),
            },
            rounds=3,
        )
        shown = [f"{v * 1e6:.1f} µs" if isinstance(v, float) else str(v) for v in (found["ours"], found["jax"])]
        rows.append([f"{devices} device{'s' * (devices > 1)}", *shown, ratio(found["ours"], found["jax"])])
    table(
        "One warm jitted call on f32[8,8]", ["", "Meshwright", "JAX", "ours / JAX"], rows,
        "targets: ≤ 2 on one device, < 1 on 8 (JAX blocks there: it may hang otherwise)",
    )  # fmt: skip
    calls = 3000
    forced = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    results = {
        "Meshwright": in_process("benchmarks.dispatch", "ours_flood", calls, env={"MESHWRIGHT_NUM_DEVICES": "4"}),
        "JAX": in_process("benchmarks.dispatch", "jax_flood", calls, env=forced, limit=180),
    }
    rows = [
        [name, f"{r['seconds']:.1f} s", f"{r['grown']:.0f} MiB"] if isinstance(r, dict) else [name, r, "-"]
        for name, r in results.items()
    ]
    table(
        f"{calls} calls in flight: f32[1024,1024] @ f32[1024,1024], 2×2 over 4 virtual devices",
        ["", "time", "memory grown by"], rows, "target: finishes, memory flat",
    )  # fmt: skip
    real_devices()
