"""``PartitionedProgram``: the per-device program, its collectives with their causes, and its verification."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from meshwright.api.calls import Taken, called, leaves_for
from meshwright.api.changes import Changes, changes
from meshwright.api.compiled import Compiled
from meshwright.api.page import page
from meshwright.api.shardings import orders_of, refuse_orders
from meshwright.api.stage import Stage
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.expected import refused
from meshwright.core.files import write_text
from meshwright.core.late import LateModule
from meshwright.core.source import warn
from meshwright.core.words import counted
from meshwright.errors import (
    ArgumentError,
    DonationWarning,
    MeshError,
    PaddingWarning,
    RedundancyWarning,
    ReplicationWarning,
)  # fmt: skip
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import run_passes
from meshwright.ir.pretty import format_jaxpr
from meshwright.ir.program import Program
from meshwright.lowering.batched import described, on_target, virtual_program
from meshwright.lowering.lower import FAST_FORMS, DeviceProgram, first_passes, lower
from meshwright.lowering.target import Target
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.runtime.compiling import one_device
from meshwright.runtime.executable import Executable, Results
from meshwright.runtime.pjrt.replicas import compiled_for_replicas
from meshwright.runtime.scratch import in_blocks
from meshwright.runtime.spread import compile_spread, needs_spread
from meshwright.runtime.warm import compile_lowered
from meshwright.sharding import UNCONSTRAINED, AbstractMesh, Layout, Mesh, NamedSharding, PartitionSpec
from meshwright.sharding.kinds import in_users_kind, says_explicitly
from meshwright.spmd import report
from meshwright.spmd.device_order import Orders, in_orders
from meshwright.spmd.explain.explanation import Explanation, advised, entries, headline, quicker_alone
from meshwright.spmd.explain.repeated import advised_to_share, repeated_entries
from meshwright.spmd.explain.suggest import Advisor, Progress
from meshwright.spmd.memory.compilers import platform_of
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.passes.pipeline import target_passes
from meshwright.spmd.steptime.report import Time, time_of
from meshwright.spmd.work import Work, work_of
from meshwright.stablehlo.emit import LoweringOptions, lower_with_callbacks
from meshwright.stablehlo.hlo import hlo_text, module_bytecode, module_text
from meshwright.verification.progress import Report, on_terminal
from meshwright.verification.request import Request
from meshwright.verification.result import Verification
from meshwright.verification.verify import verify

if TYPE_CHECKING:
    from meshwright.targets import CompileTarget, TargetReport
    from meshwright.targets.child import Progress as CompileProgress

#: imported late: few programs are compiled for other hardware
_targets = LateModule("meshwright.api.targets")

__all__ = ["PartitionedProgram", "Verification", "warn_of_donations"]


class PartitionedProgram(Stage):
    """The program that every device runs, with reports about it."""

    def __init__(self, program: Program, part: Partition, platform: str | None = None) -> None:
        assert program.mesh is not None
        #: the only platform that the program is for, if it chooses by platform
        self.platform = platform
        self.program = program
        self.name = program.name
        self.part = part
        self.mesh = program.mesh

    def __getstate__(self) -> dict[str, Any]:
        # Executables belong to this process; another one compiles again.
        return {
            k: v
            for k, v in self.__dict__.items()
            if k not in ("executable", "device_executable", "memory", "memory_before", "_time")
        }

    @property
    def names(self) -> list[str]:
        """The user's names of the inputs."""
        return self.program.names

    @cached_property
    def jaxpr(self) -> ClosedJaxpr:
        """The per-device closed jaxpr; its collectives name mesh axes."""
        return in_orders(self.part.jaxpr, self.mesh.abstract_mesh, *self._orders, self.program.called)

    @cached_property
    def _orders(self) -> tuple[Orders, Orders]:
        return orders_of(self.program, self.mesh)

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @cached_property
    def in_shardings(self) -> list[NamedSharding]:
        shardings = self._shardings(self.part.in_layouts, self.in_avals, [a.sharding for a in self.program.arguments])
        return [self.program.arguments[i].sharding if i in self._orders[0] else s for i, s in enumerate(shardings)]

    @cached_property
    def out_shardings(self) -> list[NamedSharding]:
        shardings = self._shardings(self.part.out_layouts, self.out_avals, self.program.out_shardings)
        return [self.program.out_shardings[i] if i in self._orders[1] else s for i, s in enumerate(shardings)]

    def _shardings(
        self, layouts: Sequence[Layout], avals: Sequence[ShapedArray], stated: Sequence[Any]
    ) -> list[NamedSharding]:
        cut = [replace(lo, dims=lo.dims[: a.ndim]) for lo, a in zip(layouts, avals)]
        spelled = [s if says_explicitly(s, self.mesh, lo) else self._spelled(lo) for s, lo in zip(stated, cut)]
        return [s.with_memory_kind(a.memory) for s, a in zip(spelled, avals)]

    @cached_property
    def _written(self) -> list[tuple[NamedSharding, int]]:
        """Shardings as the user wrote them, with the ranks of their values."""
        program = self.program
        pairs: list[tuple[Any, ShapedArray]] = [*zip(program.out_shardings, program.out_avals)]
        pairs += [(s, v.aval) for e in program.jaxpr.eqns for s, v in zip(e.op.stated_shardings(), e.outvars)]
        pairs += [(a.sharding, a.aval) for a in program.arguments]
        return [(s, a.ndim) for s, a in pairs if isinstance(s, NamedSharding) and UNCONSTRAINED not in s.spec]

    def _spelled(self, layout: Layout) -> NamedSharding:
        """The sharding of a layout, as the user wrote it if they did: ``P("x", None)`` stays so, and axes of size 1
        stay named. Else the spec ends at the last dimension that is split, as in JAX."""
        rank = len(layout.dims)
        fitting = (s for s, n in self._written if n == rank and s.mesh == self.mesh and s.layout(n) == layout)
        split = max((i + 1 for i, axes in enumerate(layout.dims) if axes), default=0)
        return next(fitting, None) or NamedSharding.from_layout(self.mesh, replace(layout, dims=layout.dims[:split]))

    # --- costs ----------------------------------------------------------------------------------------------
    @cached_property
    def collectives(self) -> list[report.Collective]:
        """Every collective, in program order, with its bytes, source line and reason."""
        return report.collectives(self.jaxpr.jaxpr, self.mesh.abstract_mesh)

    @property
    def bytes_sent(self) -> int:
        """Bytes that one device sends in one run."""
        return sum(c.bytes_sent for c in self.collectives)

    @cached_property
    def memory(self) -> Memory:
        """The predicted memory of one device, without compiling; printed, it lists the largest buffers at the peak.

        It is that of the mesh's machine (XLA's compilers differ), or of CPUs if none is given.
        """
        mesh, known = self.mesh.abstract_mesh, self.part.stands_for
        with self.program.precision():
            return predict(self.jaxpr_for(platform_of(mesh)), mesh, self.donated, known, self.names)

    @cached_property
    def memory_before(self) -> Memory:
        """The predicted memory of the unpartitioned program on one device."""
        with self.program.precision():
            mesh = self.mesh.abstract_mesh
            return predict(without_constraints(self.part.source), mesh, self.donated, names=self.names)

    @property
    def reshardings(self) -> list[report.Resharding]:
        """The values that are resharded, in program order, with the collectives used."""
        return report.reshardings(self.collectives)

    @cached_property
    def work(self) -> Work:
        """The arithmetic of one device; ``work.redundancy`` is the total of all devices divided by that of the program
        (1: no redundant work)."""
        return work_of(self.jaxpr.jaxpr, self.part.source.jaxpr, self.mesh.abstract_mesh)

    def time(self) -> Time:
        """The predicted time of a run on the mesh's machine (a generic accelerator if none is given): ``.seconds``,
        ``.compute``, ``.memory``, ``.communication``, the critical path, and what bounds each part."""
        return self._time

    @cached_property
    def _time(self) -> Time:
        return time_of(self.jaxpr.jaxpr, self.mesh.abstract_mesh)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of one device: arguments, results and temporaries."""
        return self.memory.peak_bytes

    @cached_property
    def _padding(self) -> list[tuple[str, str]]:
        """The padded values (``"input 0"``), each with a description of the padding."""
        padded = []
        sides = (
            ("input", self.part.in_layouts, self.part.source.in_avals),
            ("output", self.part.out_layouts, self.part.source.out_avals),
        )
        for side, layouts, avals in sides:
            for number, (layout, aval) in enumerate(zip(layouts, avals)):
                name = self.program.called.of(side, number)
                uneven = report.uneven_dims(layout, aval, self.mesh.abstract_mesh)
                padded += [(f"{side} {number}", f"{name}: {how}") for how in uneven]
        return padded

    @property
    def padded(self) -> list[str]:
        """Descriptions of inputs and outputs that have dimensions which the mesh does not divide."""
        return [text for _, text in self._padding]

    @property
    def notes(self) -> list[str]:
        """Descriptions of what was replicated, padded or computed redundantly, of pending annotations, and of the
        changes made by communication passes."""
        redundant = [self.work.warning] if self.work.warning else []
        strategy = self.part.described_strategy
        changes = (f"communication pass: {c}" for c in self.part.changes)
        return [*map(str, self.part.replicated), *self.padded, *redundant, *strategy, *changes]

    def explain(
        self, suggest: bool = False, *, seconds: float = 10.0, tries: int = 200, progress: Progress | None = None
    ) -> Explanation:
        """Every collective, the longest first, with its causes and source line; then redundant arithmetic, with the
        axes that are idle there; then what was padded or replicated.

        With ``suggest``, also the annotation that would remove it and saves most time. To find it, the program is
        partitioned again with one sharding added or changed, for at most ``seconds`` and ``tries``. ``progress`` is
        called with the number of collectives done, their total, and the number of tries.
        """
        mesh = self.mesh.abstract_mesh
        ranked = entries(self.collectives, self.part.propagation.origins, mesh, self.names)
        time = self.time()
        repeated = repeated_entries(self.work, self.part, time, self.names)
        notes = list(self.notes)
        if suggest and (ranked or repeated):
            with self.program.precision():
                advisor = Advisor(self.part, self.names, seconds, tries)
                repeated = advised_to_share(repeated, self.part, advisor)
                ranked, more = advised(ranked, advisor, progress)
            notes += more
        notes += quicker_alone(without_constraints(self.part.source), mesh, time.seconds)
        head = headline(self.collectives, mesh, self.peak_bytes, self.work, time)
        return Explanation(head, ranked, notes, repeated)

    def warn(self) -> None:
        """Warn about operands that had to be replicated, redundant arithmetic, and dimensions that given shardings
        padded."""
        for gathered in self.part.replicated:
            warn(f"{gathered}; explain(suggest=True) looks for shardings that need no gather", ReplicationWarning)
        if self.work.warning:
            warn(f"{self.work.warning}; explain(suggest=True) says how", RedundancyWarning)
        chosen = self.program.open_shardings()
        for what, text in self._padding:
            if what not in chosen:
                warn(text, PaddingWarning)

    # --- texts ----------------------------------------------------------------------------------------------
    def module(self, platform: str = "") -> Any:
        """The StableHLO module. If ``platform`` (``cpu``, ``cuda``, ``tpu``) is given, it may differ from that of the
        mesh's devices, and replicas are positions of the mesh."""
        return self._emitted(platform)[0]

    def _emitted(self, platform: str = "", prefix: str = "spmd") -> tuple[Any, list[Any]]:
        """:meth:`module`, and the Python functions that it calls by number."""
        target = Target.all_real(self.mesh.abstract_mesh if platform else self.mesh)
        options = LoweringOptions(
            name=f"{prefix}_{self.name}",
            scope=f"jit({self.name})",
            arg_names=self.names,
            groups=target.grid,
            num_replicas=target.num_devices,
            donated=dict.fromkeys(self.donated),
            platform=platform,
        )
        with self.program.precision():
            return lower_with_callbacks(self.jaxpr_for(platform), options)

    def jaxpr_for(self, platform: str) -> ClosedJaxpr:
        """The per-device program in the form that the compiler of a platform is given."""
        passes = target_passes(platform, self.mesh.abstract_mesh, self.part.in_layouts)
        with self.program.precision():
            steps = first_passes(self.donated, platform or config.platform)
            return run_passes(passes.run(self.jaxpr)[0], (*steps, *FAST_FORMS.get(platform, ())))

    def as_text(self, dialect: str = "jaxpr") -> str:
        """The per-device program as ``"jaxpr"``, ``"stablehlo"`` or ``"hlo"`` (with device numbers)."""
        match dialect:
            case "jaxpr":
                return format_jaxpr(self.jaxpr)
            case "stablehlo":
                return module_text(self.module())
            case "hlo":
                return hlo_text(self.module())
        raise ArgumentError(f"as_text: expected 'jaxpr', 'stablehlo' or 'hlo', got {dialect!r}")

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML report: collectives and their causes, shardings, step time, memory, the program."""
        return write_text("report: path", path, page(self))

    def diff(self, other: PartitionedProgram) -> Changes:
        """The changes from this program to ``other``: collectives, bytes, memory, work, replication and padding."""
        if not isinstance(other, PartitionedProgram):
            raise refused("diff", "another partitioned program, as lowered.partition() gives it", other)
        return changes(self, other)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.explain()._repr_html_()}"

    def __repr__(self) -> str:
        sent = report.human_bytes(self.bytes_sent)
        return (
            f"PartitionedProgram({self.name!r}, {self.mesh}, {counted(len(self.jaxpr.eqns), 'op')}, "
            f"{counted(len(self.collectives), 'collective')}, {sent} sent a run)"
        )

    # --- running --------------------------------------------------------------------------------------------
    @cached_property
    def executable(self) -> Executable:
        """The program compiled for the mesh's devices, virtual or real, with global arrays as arguments and results."""
        program = self.program
        shardings = [in_users_kind(s, a.shape) for s, a in zip(self.out_shardings, self.out_avals)]
        results = Results(self.out_avals, shardings, True)
        with program.precision():
            part, ends = described(self.part), (program.aliases, self.names)
            if isinstance(self.mesh, Mesh) and needs_spread(self.mesh):
                refuse_orders(self.name, self._orders)
                wiring, lowered = Target.of(self.mesh).wiring, partial(self._on_real_devices, self.mesh)
                source, flags = (self.name, part, wiring, *ends), program.compiler_options
                return compile_spread(source, lowered, results, self.mesh, self.in_shardings, flags)
            place = one_device(NamedSharding(self.mesh, PartitionSpec()), self.in_shardings)
            flags = (*in_blocks(self.part.jaxpr, self.num_devices), *program.compiler_options)
            return compile_lowered((self.name, part, *ends), self._on_virtual_devices, results, place, flags)

    def _on_virtual_devices(self) -> DeviceProgram:
        """The program of all devices, on one real device."""
        return lower(virtual_program(self.part), self.name, donated=self.program.aliases, arg_names=self.names)

    def _on_real_devices(self, mesh: Mesh) -> DeviceProgram:
        """The program of each real device. Donated parts are reused where argument and result parts have the same
        type."""
        with self.program.precision():
            jaxpr = on_target(self.part, target := Target.of(mesh))
            ins, outs = ([(a.shape, a.dtype) for a in avals] for avals in (jaxpr.in_avals, jaxpr.out_avals))
            donated = {i: o for i, o in self.program.aliases.items() if ins[i] == outs[o]}
            return lower(jaxpr, self.name, target, donated, self.names)

    @overload
    def compile(self, target: None = None) -> Compiled: ...
    @overload
    def compile(self, target: str | CompileTarget, *, progress: CompileProgress | None = None) -> TargetReport: ...
    def compile(self, target: Any = None, *, progress: Any = None) -> Compiled | TargetReport:
        """Compile the program for the mesh's devices, or with ``target`` for hardware that need not be present.

        Args:
          target: ``mw.target("v5e:4x4")``, or its name. Its compiler runs in a separate process, limited by
            ``config.target_seconds`` and ``config.target_memory``.
          progress: called with the seconds passed and the bytes that the compiler holds; by default, a terminal shows
            them.

        Returns:
          The compiled program; for a target a :class:`TargetReport`: whether the program fits, its memory, scheduled
          collectives, kernels, text, and the executable to save.

        Raises:
          CompileError: XLA rejected the program. MeshError: the mesh has no devices, or does not fit the target.
          MissingExtraError: the target's compiler is not installed; says what to install.
        """
        if target is not None:
            return _targets.compile_for_target(self, target, progress)
        if isinstance(self.mesh, AbstractMesh):
            raise MeshError(
                f"compile: {self.name!r} is laid out on {self.mesh}, which has no devices; use .partition() to read, "
                "explain and cost it, .compile(target) for hardware that is not here, or a mesh from make_mesh to run "
                "it"
            )
        shardings = [in_users_kind(s, a.shape) for s, a in zip(self.in_shardings, self.in_avals)]
        return Compiled(self, self.executable, shardings, lambda: self.device_executable)

    @cached_property
    def device_executable(self) -> Any:
        """XLA's executable of the per-device program, for inspection: the one that runs if all devices are real, else
        one for as many CPU devices as the mesh has. May raise CompileError."""
        if isinstance(self.mesh, Mesh) and needs_spread(self.mesh) and not Target.of(self.mesh).virtual:
            return self.executable.inspected
        module, callbacks = self._emitted("cpu", prefix="jit")
        source = module if callbacks else module_bytecode(module)
        return compiled_for_replicas(source, self.num_devices, self.program.compiler_options, callbacks)

    @cached_property
    def _taken(self) -> Taken:
        place = NamedSharding(self.mesh, PartitionSpec())
        return Taken(self.program, "partitioned", self.in_shardings, place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on arguments with the types and trees that it was partitioned for.

        Raises:
          ArgumentError: the structure of the arguments differs. ArgumentTypeError: an argument is not an array.
          ShapeError: an array has another type.
          MeshError: an array was placed on other devices, or the mesh has no devices.
        """
        if isinstance(self.mesh, AbstractMesh):
            raise MeshError(
                f"{self.name!r} is partitioned for {self.mesh}, which has no devices; use a mesh from make_mesh to "
                "run it, or .verify() to compare it with the unpartitioned program"
            )
        return called(self._taken, self.executable, args, kwargs)

    def verify(
        self,
        *args: Any,
        rtol: float = 1e-9,
        atol: float = 0.0,
        seed: int = 0,
        finite: float = 0.99,
        progress: Report | None = None,
    ) -> Verification:
        """Run this program and the unpartitioned one on the same inputs, and compare their outputs.

        Without ``args``, random inputs are drawn from ``seed``, each in the domain of the ops that use it (nonnegative
        under a root, in range for an index), and several times if that takes no longer than compiling. As a loop that
        runs until it converges may not end for them, loops that do not count up to a number end after 1,000 runs then,
        in both programs. Both compute in float64, where they agree almost exactly if the partitioning is right.
        ``progress`` is called with the current step, the number of steps done and their total; by default, a terminal
        shows them.

        Elements may differ by ``atol + rtol`` times their magnitude (and a thousandth of that of the largest), or by
        the effect of rounding: the difference between the unpartitioned program in its own types and in float64, scaled
        by the ratio of the precisions. Where nothing of a value remains in its own types, its sums are rounded
        differently in float64; differences of that size are allowed too, and noted. That proves nothing for chaotic
        programs, so smaller inputs are drawn then. Integers and bools must be equal.

        Returns the largest difference of each output; it prints as a table.

        Raises:
          VerificationError: an output differs by more (names the first op after which the programs differ), rounding
            affects it too much to tell, or less than the fraction ``finite`` of an output is neither infinite nor NaN.
          ArgumentError: the number of arrays differs, or a tolerance or the seed is negative.
          ArgumentTypeError: an argument is not an array, or an option not a number. ShapeError: an array has another
            shape.
          CallbackError: a callback of the program raises, for all drawn inputs or for ``args``.
        """
        values = leaves_for("verify", self.program, args) if args else None
        with nullcontext(progress) if progress else on_terminal(f"verifying {self.name}") as report:
            return verify(Request(self.part, self.name, rtol, atol, seed, finite, report, self.program.called), values)


def warn_of_donations(name: str, unused: Sequence[Any]) -> None:
    """Warn about donated arguments (with ``name`` and ``aval``) whose memory no result can reuse."""
    if unused:
        listed = ", ".join(f"{a.name} ({a.aval})" for a in unused)
        warn(  # begins as JAX's does, which programs look for to ignore it
            f"Some donated buffers were not usable: {name}: {listed} cannot be reused, since no result, or no "
            "further one, has that type; they stay valid. Donate only arguments that are replaced by a result of the "
            "same shape and dtype",
            DonationWarning,
        )
