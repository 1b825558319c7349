"""The stages of a jitted function: traced, lowered, partitioned, compiled."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from meshwright.api.arguments import require_platforms
from meshwright.api.calls import Taken
from meshwright.api.partitioned import PartitionedProgram, match_donation, partition_program, warn_of_donations
from meshwright.api.shardings import common_place, inner_shardings
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError, MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.pretty import format_jaxpr
from meshwright.lowering.lower import lower
from meshwright.lowering.regions import without_regions
from meshwright.ops.random.keys import words_aval
from meshwright.ops.sharding.inspect_sharding import InspectSharding
from meshwright.runtime.array import default_sharding
from meshwright.runtime.eager import check_finite
from meshwright.runtime.executable import Executable, Results, compile_program
from meshwright.sharding import (
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    named_to_hlo,
)
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import hlo_text, module_text, to_hlo
from meshwright.transforms.keys import on_words


@dataclass(frozen=True)
class Argument:
    """One leaf of the arguments: what the user calls it, type, sharding (None: open) and whether it is donated."""

    name: str
    aval: ShapedArray
    sharding: Sharding | None = None
    donated: bool = False


@dataclass(frozen=True)
class Program:
    """A traced function with all that was said about it."""

    name: str
    jaxpr: ClosedJaxpr
    arguments: tuple[Argument, ...]
    out_shardings: tuple[Sharding | None, ...]
    in_tree: Any
    out_tree: Any
    #: XLA's flags by name
    compiler_options: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def place(self) -> Any:
        """The mesh or device of its shardings; None if it has none."""
        placed = [(f"argument {a.name}", a.sharding) for a in self.arguments]
        placed += [(f"output {i}", s) for i, s in enumerate(self.out_shardings)]
        return common_place([*placed, *inner_shardings(self.jaxpr)], self.name)

    @property
    def mesh(self) -> Mesh | AbstractMesh | None:
        """The mesh of its shardings."""
        return self.place if isinstance(self.place, (Mesh, AbstractMesh)) else None

    @property
    def single(self) -> SingleDeviceSharding:
        """Where it runs if it has no mesh."""
        return default_sharding() if self.place is None else SingleDeviceSharding(self.place)

    @property
    def donated(self) -> list[int]:
        return [i for i, a in enumerate(self.arguments) if a.donated]


@dataclass(frozen=True)
class ArgInfo:
    """What a program knows of an argument: its type, and whether it may be written over."""

    aval: ShapedArray
    donated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype


@dataclass(frozen=True)
class OutInfo:
    """What a program knows of a result: its type and, where that was said, its sharding."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Sharding | None = None


class Stage:
    """What every stage of a jitted function says of its arguments and results."""

    program: Program

    @property
    def in_tree(self) -> Any:
        """The structure of ``(args, kwargs)``."""
        return self.program.in_tree

    @property
    def out_tree(self) -> Any:
        """The structure of the output."""
        return self.program.out_tree

    @property
    def args_info(self) -> Any:
        """``(args, kwargs)`` with an :class:`ArgInfo` for each array."""
        return pytree.unflatten(self.in_tree, [ArgInfo(a.aval, a.donated) for a in self.program.arguments])

    @property
    def out_info(self) -> Any:
        """The output with an :class:`OutInfo` for each array."""
        outs = zip(self.program.jaxpr.out_avals, self.program.out_shardings)
        return pytree.unflatten(self.out_tree, [OutInfo(a.shape, a.dtype, s) for a, s in outs])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the arrays that may be written over."""
        return tuple(self.program.donated)


class Traced(Stage):
    """A function traced at the types of its arguments."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.program.jaxpr

    @property
    def fun_name(self) -> str:
        return self.program.name

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """The program as StableHLO.

        Raises:
          ArgumentError: ``lowering_platforms`` names others than the one there is.
        """
        require_platforms(lowering_platforms)
        return Lowered(self.program)

    def __repr__(self) -> str:
        return f"Traced({self.fun_name!r}, {len(self.jaxpr.eqns)} eqns)"

    def __str__(self) -> str:
        return format_jaxpr(self.jaxpr)


class Lowered(Stage):
    """The whole program, for all devices, before it is partitioned."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def module(self) -> Any:
        """The StableHLO module, with sharding annotations on parameters and results."""
        program = self.program
        mesh = program.mesh
        donated = match_donation(program.donated, program.jaxpr.in_avals, program.jaxpr.out_avals)
        return lower_to_stablehlo(
            without_regions(on_words(program.jaxpr)),
            LoweringOptions(
                name=f"jit_{program.name}",
                scope=f"jit({program.name})",
                arg_names=[a.name for a in program.arguments],
                result_names=[f"result{path}" for path in pytree.paths(self._outputs)],
                arg_shardings=[_hlo_text(a.sharding, words_aval(a.aval).ndim, mesh) for a in program.arguments],
                result_shardings=[
                    _hlo_text(s, words_aval(a).ndim, mesh)
                    for s, a in zip(program.out_shardings, program.jaxpr.out_avals)
                ],
                donated=donated,
                num_partitions=mesh.size if mesh is not None else 1,
            ),
        )

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
        """The program as text; with ``debug_info``, StableHLO has op names and source lines."""
        if dialect == "hlo":
            return hlo_text(self.module)
        return module_text(self.compiler_ir(dialect), debug_info)

    def partition(
        self,
        mesh: Mesh | AbstractMesh | None = None,
        num_devices: int | None = None,
        *,
        combine_bytes: int = 0,
    ) -> PartitionedProgram:
        """The per-device program.

        ``mesh`` is needed only where no sharding names one; ``num_devices`` makes a one-axis mesh. With
        ``combine_bytes``, small all-reduces and all-gathers over the same axes go together in buckets of that size:
        fewer collectives to start, for copies. It pays where devices are apart, not on a virtual mesh.

        Raises:
          ArgumentError: a negative ``combine_bytes``.
          MeshError: there is no mesh, or another one than the shardings'.
        """
        program = self.program
        if mesh is None and num_devices is not None:
            mesh = AbstractMesh((num_devices,), ("devices",))
        if mesh is None:
            mesh = program.mesh
        elif program.mesh is not None and program.mesh.abstract_mesh != mesh.abstract_mesh:
            raise MeshError(f"partition: the program's shardings are over {program.mesh!r}, not {mesh!r}")
        if mesh is None:
            raise MeshError(
                f"partition: no sharding of {program.name!r} names a mesh; pass in_shardings=NamedSharding(mesh, spec) "
                "to jit, use arrays placed with device_put, or call .partition(mesh)"
            )
        return partition_program(
            program.jaxpr,
            mesh,
            [a.sharding for a in program.arguments],
            program.out_shardings,
            program.name,
            program.in_tree,
            program.out_tree,
            program.donated,
            [a.name for a in program.arguments],
            combine_bytes,
        )

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """The program compiled for the devices at hand, once.

        ``compiler_options`` are XLA's flags by name (``{"xla_cpu_enable_fast_math": True}``), beside those of ``jit``.

        Raises:
          CompileError: XLA refuses the program, or does not know an option.
          MeshError: the program's mesh has no devices.
        """
        if not compiler_options:
            return self._compiled
        options = {**dict(self.program.compiler_options), **compiler_options}
        return Lowered(replace(self.program, compiler_options=tuple(options.items()))).compile()

    @cached_property
    def _compiled(self) -> Compiled:
        program = self.program
        mesh = program.mesh
        donated = match_donation(program.donated, program.jaxpr.in_avals, program.jaxpr.out_avals)
        warn_of_donations(program.name, [program.arguments[i] for i in program.donated if i not in donated])
        if mesh is None:
            for eqn in all_eqns(program.jaxpr.jaxpr):
                if isinstance(eqn.op, InspectSharding):
                    eqn.op.callback(program.single)
            shardings = [program.single] * len(program.out_shardings)
            lowered = lower(program.jaxpr, program.name, donated=donated, arg_names=[a.name for a in program.arguments])
            results = Results(program.jaxpr.out_avals, shardings, program.place is not None)
            executable = compile_program(lowered, results, options=program.compiler_options)
            return Compiled(program, executable, None)
        part = self.partition()
        part.compiler_options = program.compiler_options
        if isinstance(mesh, AbstractMesh):
            raise MeshError(
                f"compile: {program.name!r} is laid out on {mesh!r}, which has no devices; use .partition() to read, "
                "explain and cost it, or a mesh from make_mesh to run it"
            )
        part.warn()
        return Compiled(program, part.executable, part)

    def __repr__(self) -> str:
        return f"Lowered({self.program.name!r})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.as_text())}</pre>"


def _hlo_text(sharding: Sharding | None, ndim: int, mesh: Mesh | AbstractMesh | None) -> str | None:
    return str(named_to_hlo(sharding, ndim)) if isinstance(sharding, NamedSharding) and mesh is not None else None


class Compiled(Stage):
    """A program ready to run; call it with arguments of the types it was made for."""

    def __init__(self, program: Program, executable: Executable, part: PartitionedProgram | None) -> None:
        self.program = program
        self.executable = executable
        self.partitioned = part

    def __reduce__(self) -> Any:
        # What is compiled is of this process: another one compiles again.
        return _compiled, (self.program,)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self

    @cached_property
    def _taken(self) -> Taken:
        program = self.program
        place = NamedSharding(program.mesh, PartitionSpec()) if program.mesh else program.single
        arguments = [(a.name, a.aval, a.sharding) for a in program.arguments]
        return Taken(program.name, "compiled", program.in_tree, arguments, place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = self.program
        outs = self.executable(self._taken.leaves(args, kwargs))
        check_finite(program.name, outs)
        return pytree.unflatten(program.out_tree, outs)

    def as_text(self) -> str:
        """The optimized HLO that XLA runs."""
        return self.executable.loaded.get_hlo_text()

    def memory_analysis(self) -> Any:
        """XLA's memory statistics of the program (bytes of arguments, outputs, temporaries)."""
        return self.executable.loaded.get_compiled_memory_stats()

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates, by name (``"flops"``, ``"bytes accessed"``)."""
        return self.executable.loaded.cost_analysis()

    @property
    def input_shardings(self) -> Any:
        if self.partitioned is None:
            leaves: Sequence[Any] = [self.program.single] * len(self.program.arguments)
        else:
            leaves = self.partitioned.in_shardings
        return pytree.unflatten(self.program.in_tree, leaves)

    @property
    def output_shardings(self) -> Any:
        return pytree.unflatten(self.program.out_tree, self.executable.out_shardings)

    def __repr__(self) -> str:
        return f"Compiled({self.program.name!r})"


def _compiled(program: Program) -> Compiled:
    return Lowered(program).compile()
