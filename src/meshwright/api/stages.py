"""The stages of a jitted function: traced, lowered, partitioned, compiled."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshwright.api.arguments import lowering_platforms as platforms_of
from meshwright.api.compiled import Compiled, single_device
from meshwright.api.other_sizes import program_with_sizes_of
from meshwright.api.pruning import pruned
from meshwright.api.shardings import is_on_other_machine, placed, program_on
from meshwright.api.stage import Stage
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.core.late import LateModule
from meshwright.core.tracebacks import boundary
from meshwright.errors import ArgumentError, ConstantsWarning
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.passes import run_passes
from meshwright.ir.pretty import format_jaxpr
from meshwright.ir.program import Program
from meshwright.ir.tracing import typeof
from meshwright.lowering.channels_last import CHANNELS_LAST
from meshwright.lowering.convolutions import CONVOLVING_PRODUCTS
from meshwright.lowering.joined import JOINED_REDUCTIONS
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.lowering.onednn import ONEDNN
from meshwright.lowering.products import SWAPPED_PRODUCTS
from meshwright.lowering.regions import with_manual_regions
from meshwright.lowering.target import Target
from meshwright.ops.control.platform import on_platform
from meshwright.ops.primitive import without_primitives
from meshwright.ops.random.keys import words_aval
from meshwright.ops.sharding.inspect_sharding import InspectSharding
from meshwright.runtime.compiling import one_device
from meshwright.runtime.executable import Results
from meshwright.runtime.scratch import in_blocks
from meshwright.runtime.warm import compile_lowered
from meshwright.sharding import AbstractMesh, AnyMesh, Mesh, NamedSharding, Sharding
from meshwright.sharding.asked import mesh_asked
from meshwright.sharding.current_mesh import get_mesh
from meshwright.sharding.sdy import SdySharding
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import hlo_text, module_text, to_hlo
from meshwright.transforms.keys import on_words

if TYPE_CHECKING:
    from meshwright.api import partitioned, partitioning
    from meshwright.api.partitioned import PartitionedProgram
else:  # the partitioner is not imported for programs for one device
    partitioned = LateModule("meshwright.api.partitioned")
    partitioning = LateModule("meshwright.api.partitioning")

#: builds a program on a mesh (or number of devices), for stages whose one-device program leaves out its shardings
Bound = Callable[[AnyMesh | None, int | None], Program]


class Traced(Stage):
    """A function traced at the types of its arguments."""

    def __init__(self, program: Program, bound: Bound | None = None) -> None:
        self.program = program
        self._bound = bound
        self.fun_name = program.name

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.program.jaxpr

    def lower(
        self,
        *,
        lowering_platforms: Sequence[str] | None = None,
        compiler_options: Mapping[str, Any] | None = None,
    ) -> Lowered:
        """Lower to StableHLO for the current platform, or for those of ``lowering_platforms`` (``"cpu"``, ``"cuda"``,
        ``"rocm"``, ``"tpu"``); ``compiler_options`` are XLA flags by name, in addition to those of ``jit``.

        Raises:
          ArgumentError: a platform is not known.
        """
        platforms = () if lowering_platforms is None else platforms_of(lowering_platforms, "lower: lowering_platforms")
        return Lowered(_with_options(self.program, compiler_options), self._bound, platforms)

    def __repr__(self) -> str:
        return f"Traced({self.fun_name!r}, {len(self.jaxpr.eqns)} eqns)"

    def __str__(self) -> str:
        return format_jaxpr(self.jaxpr)

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><pre>{html.escape(str(self))}</pre>"


class Lowered(Stage):
    """The whole program, for all devices, before partitioning."""

    def __init__(self, program: Program, bound: Bound | None = None, platforms: Sequence[str] = ()) -> None:
        self.program = placed(pruned(_of_ops(program)))
        self._bound = bound
        #: those of which the module is written in the form; none: the current one
        self.platforms = tuple(platforms)
        _warn_of_constants(self.program)

    def __getstate__(self) -> dict[str, Any]:
        # Modules and executables belong to this process.
        return {"program": self.program, "_bound": self._bound, "platforms": self.platforms}

    @cached_property
    def module(self) -> Any:
        """The StableHLO module, with sharding annotations on parameters and results, and manual regions.

        Raises:
          ArgumentError: the module differs between the platforms to lower for.
        """
        first, *others = map(self.module_for, self.platforms or (config.platform,))
        if others and any(module_text(first) != module_text(other) for other in others):
            raise ArgumentError(
                f"lower: the modules of {self.program.name!r} for {', '.join(self.platforms)} differ; name one of them "
                "in lowering_platforms, or export the program, which keeps a module for each"
            )
        return first

    def module_for(self, platform: str) -> Any:
        """The StableHLO module in the form for a platform."""
        program, mesh = self.program, self.program.mesh
        options = LoweringOptions(
            name=f"jit_{program.name}",
            scope=f"jit({program.name})",
            arg_names=program.names,
            result_names=[f"result{path}" for path in pytree.paths(self._outputs)],
            arg_shardings=[_stated(a.sharding, words_aval(a.aval).ndim, mesh) for a in program.arguments],
            result_shardings=[
                _stated(s, words_aval(a).ndim, mesh) for s, a in zip(program.out_shardings, program.out_avals)
            ],
            donated=program.aliases,
            groups=Target.all_real(mesh.abstract_mesh).grid if mesh is not None else None,
            num_partitions=mesh.size if mesh is not None else 1,
            shardy=config.use_shardy_partitioner,
            platform=platform,
        )
        with program.precision():
            return lower_to_stablehlo(with_manual_regions(on_words(on_platform(program.jaxpr, platform))), options)

    @property
    def _outputs(self) -> Any:
        return pytree.unflatten(self.out_tree, self.program.jaxpr.out_avals)

    def compiler_ir(self, dialect: str = "stablehlo") -> Any:
        """The program as an object: an MLIR module (``"stablehlo"``, or its synonym ``"mhlo"``), or for ``"hlo"`` an
        ``XlaComputation`` with ``as_hlo_text()``, ``as_hlo_dot_graph()`` and ``as_serialized_hlo_module_proto()``.

        Raises:
          ArgumentError: another dialect.
        """
        match dialect:
            case "stablehlo" | "mhlo":
                return self.module
            case "hlo":
                return to_hlo(self.module)
        raise ArgumentError(f"compiler_ir: expected 'stablehlo', 'mhlo' or 'hlo', got {dialect!r}")

    def as_text(self, dialect: str = "stablehlo", *, debug_info: bool = False) -> str:
        """The program as text; with ``debug_info``, StableHLO includes op names and source lines."""
        if dialect == "hlo":
            return hlo_text(self.module)
        return module_text(self.compiler_ir(dialect), debug_info)

    @boundary
    def partition(
        self,
        mesh: AnyMesh | None = None,
        num_devices: int | None = None,
        *,
        combine_bytes: int = 0,
        memory_limit: float | None = None,
    ) -> PartitionedProgram:
        """Partition the program.

        If no sharding names a mesh, ``mesh``, a one-axis mesh of ``num_devices``, or the current mesh is used. It may
        be the mesh of the shardings on another machine (``mesh.abstract_mesh.on("v5e:4x4")``), for its costs, or have
        their axes with other sizes: what is written for the devices at hand is partitioned for a pod. With
        ``combine_bytes``, small all-reduces and all-gathers over the same axes are combined in buckets of that size:
        fewer collectives to start, at the price of copies. That pays off between real devices, not on a virtual mesh.
        With ``memory_limit`` (bytes), if the program does not fit otherwise, gathered values are freed and gathered
        again, and values that loops keep for their backward pass are recomputed.

        Raises:
          ArgumentError: ``combine_bytes`` is negative, or the limit is not positive.
          MemoryLimitError: a device needs more than the limit.
          MeshError: there is no mesh, or it lacks axes of the shardings', or parts of the program fix their sizes.
        """
        return partitioning.partition_program(self._on_mesh(mesh, num_devices), combine_bytes, memory_limit)

    def _on_mesh(self, mesh: AnyMesh | None, num_devices: int | None) -> Program:
        """The program on the mesh that the arguments of :meth:`partition` select."""
        program = self.program
        if self._bound is not None:
            return replace(self._bound(mesh, num_devices), compiler_options=program.compiler_options)
        asked = mesh_asked(mesh, num_devices, "partition")
        if mesh is None and asked is not None and program.mesh is not None and len(program.mesh.axis_names) == 1:
            asked = AbstractMesh((asked.size,), program.mesh.axis_names)
        mesh = get_mesh() if asked is None and program.mesh is None else asked
        if mesh is not None and program.mesh is not None and is_on_other_machine(program.mesh, mesh):
            return program_on(program, mesh)
        if mesh is not None and program.mesh is not None and program.mesh.abstract_mesh != mesh.abstract_mesh:
            return program_with_sizes_of(program, mesh)
        return program if mesh is None else replace(program, place=mesh)

    @boundary
    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Compile the program for the current devices, once.

        ``compiler_options`` are XLA flags by name (``{"xla_cpu_enable_fast_math": True}``), in addition to those of
        ``jit``.

        Raises:
          ArgumentError: the program was lowered for other platforms.
          CompileError: XLA rejected the program, or an option is unknown.
          MeshError: the program's mesh has no devices.
        """
        if self.platforms and config.platform not in self.platforms:
            raise ArgumentError(
                f"compile: {self.program.name!r} was lowered for {', '.join(self.platforms)}, and this is "
                f"{config.platform}; compile it for hardware that is not here with .partition(mesh).compile(target)"
            )
        if not compiler_options:
            return self._compiled
        return Lowered(_with_options(self.program, compiler_options)).compile()

    def _looked_into(self) -> Any:
        """XLA's executable of the per-device program."""
        if self.program.mesh is not None:
            return self.partition().device_executable
        return self._compiled.executable.inspected

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates of one device, by name (``"flops"``, ``"bytes accessed"``); compiles the program."""
        if self.program.mesh is not None:
            return self._looked_into().cost_analysis()
        return self._compiled.executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory statistics of one device (bytes of arguments, outputs, temporaries); compiles the program."""
        return self._looked_into().get_compiled_memory_stats()

    @cached_property
    def _compiled(self) -> Compiled:
        program = self.program
        taken = program.aliases
        if unused := [program.arguments[i] for i in program.donated if i not in taken]:
            partitioned.warn_of_donations(program.name, unused)  # which needs the partitioner's modules
        if program.mesh is not None:
            return self._compiled_on_mesh()
        single = single_device(program)
        inspected = (e.op for e in all_eqns(program.jaxpr.jaxpr) if isinstance(e.op, InspectSharding))
        for op in inspected:
            op.callback(single)
        ins = [single.with_memory_kind(a.aval.memory) for a in program.arguments]
        place = one_device(single, ins)
        results = Results(program.out_avals, [single] * len(program.out_avals), program.place is not None)
        passes = CHANNELS_LAST, ONEDNN, CONVOLVING_PRODUCTS, JOINED_REDUCTIONS, SWAPPED_PRODUCTS
        source = program.name, program.jaxpr, taken, program.names
        flags = (*in_blocks(program.jaxpr), *program.compiler_options)

        def lowered() -> DeviceProgram:
            jaxpr = run_passes(program.jaxpr, passes)
            return lower(jaxpr, program.name, donated=taken, arg_names=program.names)

        with program.precision():
            executable = compile_lowered(source, lowered, results, place, flags)
        return Compiled(self, executable, ins)

    def _compiled_on_mesh(self) -> Compiled:
        part = self.partition()
        if not isinstance(part.mesh, AbstractMesh):
            part.warn()
        return part.compile()

    def __repr__(self) -> str:
        return f"Lowered({self._types()})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.as_text())}</pre>"


def _warn_of_constants(program: Program) -> None:
    least, consts = config.captured_constants_warn_bytes, program.jaxpr.consts
    size = sum(a.size * a.dtype.itemsize for a in map(words_aval, map(typeof, consts))) if least >= 0 else 0
    if size > max(least, 0):
        warnings.warn(
            f"{program.name} closes over arrays of {size} bytes, which become constants of the program; pass them as "
            f"arguments, or raise config.captured_constants_warn_bytes ({least})",
            ConstantsWarning,
            stacklevel=2,
        )


def _of_ops(program: Program) -> Program:
    """The program with what primitives of users mean instead of them."""
    jaxpr = without_primitives(program.jaxpr)
    return program if jaxpr is program.jaxpr else replace(program, jaxpr=jaxpr)


def _with_options(program: Program, more: Mapping[str, Any] | None) -> Program:
    """The program with additional XLA flags, which override those it has."""
    if not more:
        return program
    return replace(program, compiler_options=tuple({**dict(program.compiler_options), **more}.items()))


def _stated(sharding: Sharding | None, ndim: int, mesh: Mesh | AbstractMesh | None) -> SdySharding | None:
    """What the module says of an argument or result."""
    return SdySharding.of(sharding, ndim) if isinstance(sharding, NamedSharding) and mesh is not None else None
