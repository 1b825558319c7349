"""Compiles a per-device program for a target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import CompileError
from meshwright.runtime.pjrt.plugins import compiler
from meshwright.sharding import AbstractMesh, Mesh
from meshwright.spmd.report import Collective
from meshwright.targets.child import Answer, Job, Progress, compile_in_child
from meshwright.targets.hlo import parse_hlo
from meshwright.targets.matching import matched
from meshwright.targets.report import Prediction, TargetMemory, TargetReport
from meshwright.targets.saved import SavedExecutable
from meshwright.targets.schedule import schedule_of
from meshwright.targets.topology import CompileTarget

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([\d.]+)([KMGT]?)\b")


@dataclass(frozen=True)
class Subject:
    """A per-device program to compile: its module as bytecode, with replicas numbered by mesh position."""

    name: str
    module: bytes
    mesh: Mesh | AbstractMesh
    collectives: Sequence[Collective]
    predicted: Prediction


def compile_for(subject: Subject, target: CompileTarget, progress: Progress | None = None) -> TargetReport:
    """Compile for ``target`` in a child process, and report the result.

    Raises:
      MissingExtraError: the compiler for ``target`` is not installed. MeshError: the mesh does not fit the target.
      CompileError: the compiler rejects the program for a reason other than its size.
    """
    job = job_of(subject, target)
    answer = compile_in_child(
        job, None if target.platform == "cpu" else compiler(target.platform, target.name), progress
    )
    return report_of(subject, target, job.device_ids, answer)


def job_of(subject: Subject, target: CompileTarget) -> Job:
    """The compile job for ``subject`` on ``target``."""
    topology, options = described(target)
    return Job(subject.name, subject.module, target.platform, topology, options, target.order_of(subject.mesh))


def report_of(subject: Subject, target: CompileTarget, ids: Sequence[int], answer: Answer) -> TargetReport:
    """The report of a compiler's answer; ``ids`` are the device ids in mesh order."""
    if answer.refused:
        return _refused(subject, target, answer)
    schedule = schedule_of(parse_hlo(answer.text), len(ids))
    assert answer.memory is not None
    return TargetReport(
        subject.name, target, subject.predicted, TargetMemory.of(dict(answer.memory)),
        matched(schedule, subject.collectives, subject.mesh.abstract_mesh), schedule, answer.text, answer.seconds,
        SavedExecutable(subject.name, target.name, target.platform, answer.version, dict(subject.mesh.shape),
                        tuple(ids), answer.executable),
    )  # fmt: skip


def described(target: CompileTarget) -> tuple[str, dict[str, Any]]:
    """The name of a target's topology for its compiler, and options."""
    machine = target.machine
    if target.platform == "cpu":
        return "", {}
    if target.platform == "cuda":
        text = resources.files("meshwright").joinpath("data", f"{machine.chip.name}.txtpb").read_text()
        return "", {"topology": f"1x{machine.nodes}x{machine.shape[0]}", "target_config": text}
    options: dict[str, Any] = {"num_slices": machine.slices} if machine.slices > 1 else {}
    if machine.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip are one device
    host = [min(n, most) for n, most in zip((*machine.shape, 1), (2, 2, 1))]
    if host != [2, 2, 1]:
        options["chips_per_host_bounds"] = host
    return f"{machine.chip.name}:{'x'.join(map(str, machine.shape))}", options


def _refused(subject: Subject, target: CompileTarget, answer: Answer) -> TargetReport:
    """The report of a program that does not fit into memory.

    Raises:
      CompileError: the compiler rejected the program for another reason.
    """
    if "RESOURCE_EXHAUSTED" not in answer.refused:
        raise CompileError(f"compile: {subject.name!r} for {target.name}: the compiler refuses it: {answer.refused}")
    complaint = " ".join(answer.refused.partition("RESOURCE_EXHAUSTED:")[2].split())
    size, memory = needed(complaint), subject.predicted.memory
    if size is not None and "temporaries" in complaint:
        size += memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    return TargetReport(subject.name, target, subject.predicted, refused=complaint, needed_bytes=size)


def needed(complaint: str) -> int | None:
    """The bytes that the program (or its temporaries) would need by XLA's out-of-memory message; None if it has none.

    >>> needed("Used 24.00G of 15.75G hbm. Exceeded hbm capacity by 8.25G.") == 24 * 2**30
    True
    """
    match = re.search(r"(?:Used|\() ?([\d.]+[KMGT]?)(?: of|\))", complaint)
    size = _SIZE.match(match[1]) if match else None
    return int(float(size[1]) * _UNITS[size[2]]) if size else None
