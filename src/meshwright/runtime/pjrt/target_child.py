"""The child process that compiles for a target: ``python target_child.py FOLDER SITE…``. Imports only jaxlib and NumPy.

``FOLDER`` contains ``request.json`` and the module's bytecode. The answer is written there too: ``answer.json``, the
optimized HLO text, and the executable. Hardware plugins (libtpu, XLA for CUDA), with their threads, locks and
environment, are loaded only in this process.
"""

import importlib
import json
import os
import runpy
import sys
import time
from pathlib import Path

sys.path[:0] = sys.argv[2:]
FOLDER = Path(sys.argv[1])
REQUEST = json.loads((FOLDER / "request.json").read_text())
os.environ.update(REQUEST["environment"])
CORE = Path(__file__).parents[2] / "core"
runpy.run_path(str(CORE / "with_parent.py"))["end_with_parent"]()

import numpy as np
from jaxlib import _jax
from jaxlib import xla_client as xc
from jaxlib.cpu import _lapack
from jaxlib.mlir import ir

#: the fields of ``CompiledMemoryStats`` that are returned, without ``_in_bytes``
SIZES = ("argument_size", "output_size", "alias_size", "temp_size", "generated_code_size", "peak_memory",
         "host_argument_size", "host_output_size", "host_alias_size", "host_temp_size")  # fmt: skip

new_context = runpy.run_path(str(Path(__file__).parents[2] / "stablehlo" / "dialects.py"))["new_context"]


def topology():
    """The requested topology, after loading its plugin."""
    api = xc.load_pjrt_plugin_dynamically(REQUEST["platform"], REQUEST["library"])
    xc.initialize_pjrt_plugin(REQUEST["platform"])
    for name, capsule in custom_calls():
        register(api, name, capsule)
    return xc.make_c_api_device_topology(api, REQUEST["topology"], **REQUEST["options"])


def custom_calls():
    """The library calls (cuSOLVER, cuFFT, …) of the plugin's companion package, by name."""
    for module in REQUEST["kernels"]:
        try:
            yield from importlib.import_module(module).registrations().items()
        except ImportError:  # a module may need a library that only machines with a GPU have
            continue


def register(api, name, function):
    extension = importlib.import_module(REQUEST["kernels"][0].rpartition(".")[0] + ".cuda_plugin_extension")
    extension.register_custom_call_target(api, name, function, "CUDA", 1)


def options(ids):
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = REQUEST["replicas"], REQUEST["partitions"]
    options.device_assignment = xc.DeviceAssignment.create(
        np.reshape(ids, (REQUEST["replicas"], REQUEST["partitions"]))
    )
    options.executable_build_options.use_spmd_partitioning = REQUEST["partitions"] > 1
    options.executable_build_options.use_shardy_partitioner = REQUEST["shardy"]
    if REQUEST["free_results"]:
        options.executable_build_options.allow_spmd_sharding_propagation_to_output = [True]
    options.env_option_overrides = [(name, value) for name, value in REQUEST["flags"]]
    return options


def compiled(module):
    """The executable and its devices."""
    ids = REQUEST["device_ids"]
    if REQUEST["platform"] == "cpu":
        for name, kernel in _lapack.registrations().items():
            if name.endswith("_ffi"):
                xc.register_custom_call_target(name, kernel, platform="cpu", api_version=1)
        client = xc.make_cpu_client(num_devices=len(ids))
        devices = client.local_devices()
        return client.compile_and_load(module, _jax.DeviceList(tuple(devices)), options(ids)), devices
    devices = topology()._make_compile_only_devices()
    by_id = {d.id: d for d in devices}
    chosen = _jax.DeviceList(tuple(by_id[i] for i in ids))
    return devices[0].client.compile(module, chosen, options(ids)), devices


def described(device):
    return [device.id, list(getattr(device, "coords", ())), getattr(device, "core_on_chip", 0), device.process_index]


def answer():
    start = time.perf_counter()
    if REQUEST["module"] is None:  # the request is for the devices of the topology
        return {"devices": [described(d) for d in topology()._make_compile_only_devices()]}
    module = ir.Module.parse((FOLDER / REQUEST["module"]).read_bytes(), new_context())
    executable, devices = compiled(module)
    seconds = time.perf_counter() - start
    stats = executable.get_compiled_memory_stats()
    record = {
        "seconds": seconds,
        "memory": {name: getattr(stats, name + "_in_bytes") for name in SIZES},
        "devices": [described(d) for d in devices],
        "device_kind": devices[0].device_kind,
        "version": devices[0].client.platform_version,
    }
    (FOLDER / "module.hlo").write_text(executable.hlo_modules()[0].to_string())
    (FOLDER / "executable").write_bytes(executable.serialize())
    return record


try:
    reply = answer()
except Exception as error:
    reply = {"refused": f"{type(error).__name__}: {error}"}
(FOLDER / "answer.tmp").write_text(json.dumps(reply))
os.replace(FOLDER / "answer.tmp", FOLDER / "answer.json")
sys.stderr.flush()
os._exit(0)  # plugins have threads that never end
