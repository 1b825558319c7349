"""``load``: programs from elsewhere, in XLA's formats.

Shardings of a program name devices (GSPMD) or axes of meshes that it declares (Shardy). A mesh is chosen only when it
is partitioned: the requested one, the declared one, or the coarsest one whose axes express all its shardings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.api.binding import annotate_ends, bind_to_mesh, is_plain, on_mesh, without_annotations
from meshwright.api.calls import Taken
from meshwright.api.compiled import Compiled
from meshwright.api.other_sizes import gives_sizes, of_size, with_sizes_of
from meshwright.api.partitioned import PartitionedProgram
from meshwright.api.partitioning import partition_program
from meshwright.api.stage import Stage
from meshwright.api.stages import Lowered, Traced
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.core.dtypes import precision_of, wide_types
from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.core.source import warn
from meshwright.core.words import counted
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationTypeError,
    ElidedConstantWarning,
    ImportProgramError,
    MeshError,
    ReplicationWarning,
)
from meshwright.ir.jaxpr import ClosedJaxpr, HoldsJaxpr, Jaxpr, all_eqns
from meshwright.ir.passes import DEAD_CODE, INLINE, run_passes
from meshwright.ir.pretty import format_jaxpr
from meshwright.ir.program import Argument, Program
from meshwright.ir.tracing import Tracer
from meshwright.lowering.counts import COUNTS, has_wide
from meshwright.lowering.regions import without_regions
from meshwright.ops.control.call import Jit
from meshwright.ops.imported.device_collective import DeviceCollective, DeviceOp
from meshwright.ops.imported.imported_call import ImportedCall
from meshwright.ops.imported.manual_computation import ManualComputation
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.ops.sharding.constraint import constrain, without_constraints
from meshwright.sharding import (
    AbstractMesh,
    HloSharding,
    Mesh,
    NamedSharding,
    device_order_of,
    mesh_of,
)
from meshwright.sharding.asked import mesh_asked
from meshwright.sharding.current_mesh import get_mesh
from meshwright.sharding.device_groups import groups_sharding
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.kinds import LogicalDevice
from meshwright.sharding.sdy import SdySharding
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import hlo_text, module_text
from meshwright.stablehlo.parsed import ParsedProgram
from meshwright.stablehlo.sources import parse_program

AnyMesh = Mesh | AbstractMesh


class ImportedProgram(HoldsJaxpr, Stage):
    """A program from elsewhere. Bound to a mesh it is partitioned like any other; calling it runs it on one device."""

    #: whether a call donates its arguments; the program's own aliasing does not bind its callers
    donates: bool = False

    def __init__(self, parsed: ParsedProgram) -> None:
        self.parsed = parsed
        self.name = parsed.name

    def __getstate__(self) -> dict[str, Any]:
        # Executables belong to this process; another one compiles again.
        return {k: v for k, v in self.__dict__.items() if k != "_compiled"}

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as a closed jaxpr; its shardings are ``sharding_annotation`` equations."""
        return self.parsed.jaxpr

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """Name, type, sharding and donation of each parameter."""
        return self.parsed.arguments

    @property
    def notes(self) -> list[str]:
        """The parts of the program that were ignored."""
        return list(self.parsed.notes)

    @cached_property
    def annotations(self) -> list[Annotation]:
        """All distinct shardings in the program, in order."""
        given = [*(p.sharding for p in self.parameters), *self.parsed.result_shardings, *_annotations(self.jaxpr.jaxpr)]
        return list(dict.fromkeys(s for s in given if s is not None))

    @cached_property
    def num_partitions(self) -> int:
        """The number of devices that the program is written for."""
        declared = self.parsed.num_partitions
        named = {n for n in map(_num_devices, self.annotations) if n is not None}
        if declared is not None and (declared > 1 or not named):
            return declared
        return max(named, default=1)

    @cached_property
    def mesh(self) -> AnyMesh | None:
        """The mesh that the program declares or its shardings imply; None for a program for one device.

        Raises:
          ImportProgramError: the shardings do not fit the number of devices.
        """
        declared = {(s.mesh, s.device_ids): None for s in self.annotations if isinstance(s, SdySharding)}
        if not declared and self.has_manual_regions:
            declared = {(d.mesh, d.device_ids): None for d in self.parsed.meshes.values() if d.mesh.axis_names}
        if len(declared) == 1:
            return _with_devices(*next(iter(declared)))
        shardings = [sdy_to_hlo(s) if isinstance(s, SdySharding) else s for s in self.annotations]
        if self.num_partitions == 1 or not (shardings or self.has_manual_regions):
            return None
        for sharding in shardings:
            if sharding.num_devices not in (None, self.num_partitions):
                raise ImportProgramError(
                    f"{self.name!r} is written for {counted(self.num_partitions, 'device')}, but its sharding "
                    f"{sharding} names {sharding.num_devices}"
                )
        n = self.num_partitions
        order = device_order_of(shardings, n)
        groups = [g for g in _group_shardings(self.jaxpr.jaxpr) if g.num_devices == n]
        shardings += [g for g in groups if device_order_of([*shardings, g], n) == order]
        return _with_devices(mesh_of(shardings, n), order)

    @property
    def is_stacked(self) -> bool:
        """Whether the program was already partitioned, so that dimension 0 of arguments and results is the device."""
        return self.parsed.is_stacked

    @cached_property
    def has_manual_regions(self) -> bool:
        """Whether parts of the program are per-device code."""
        return any(isinstance(e.op, (ManualComputation, DeviceOp)) for e in all_eqns(self.jaxpr.jaxpr))

    @property
    def in_shardings(self) -> list[NamedSharding | None]:
        """Shardings of the parameters over :attr:`mesh`; None where there is none."""
        return self._shardings_on(self.mesh)[0]

    @property
    def out_shardings(self) -> list[NamedSharding | None]:
        """Shardings of the results over :attr:`mesh`; None where there is none."""
        return self._shardings_on(self.mesh)[1]

    def _shardings_on(self, mesh: AnyMesh | None) -> tuple[list[NamedSharding | None], list[NamedSharding | None]]:
        sides = (
            ("parameter", [p.sharding for p in self.parameters], self.in_avals),
            ("result", self.parsed.result_shardings, self.out_avals),
        )
        by_side = []
        for side, shardings, avals in sides:
            named: list[NamedSharding | None] = []
            for i, (sharding, aval) in enumerate(zip(shardings, avals)):
                if sharding is None or mesh is None or _says_nothing(sharding):
                    named.append(None)
                else:
                    named.append(on_mesh(sharding, aval.ndim, mesh, f"{side} {i} of {self.name!r}"))
            by_side.append(named)
        return by_side[0], by_side[1]

    @cached_property
    def is_wide(self) -> bool:
        """Whether the program has 64-bit values other than counters that fit in 32 bits."""
        return has_wide(self._flat.jaxpr)

    # --- running --------------------------------------------------------------------------------------------
    @cached_property
    def _flat(self) -> ClosedJaxpr:
        """The program with its calls inlined and its counters in 32 bits."""
        with wide_types():
            return run_passes(self.jaxpr, (INLINE, DEAD_CODE, COUNTS))

    @cached_property
    def _plain(self) -> ClosedJaxpr:
        """The program for one device."""
        if not self.has_manual_regions:
            return without_annotations(self._flat)
        bound = bind_to_mesh(self._flat, self.mesh or AbstractMesh((self.num_partitions,), ("devices",)), self.name)
        return without_regions(without_constraints(bound))

    @cached_property
    def program(self) -> Program:  # type: ignore[override]
        """The program for one device."""
        with precision_of(self.is_wide):
            plain = self._plain
        return self._program(plain)

    def _program(self, jaxpr: ClosedJaxpr) -> Program:
        arguments = tuple(replace(a, sharding=None) for a in self.parameters)
        count = len(self.jaxpr.out_avals)
        out_tree = pytree.structure(0 if count == 1 else (0,) * count)
        return Program(self.name, jaxpr, arguments, (None,) * count, None, out_tree, is_wide=self.is_wide)

    @cached_property
    def _compiled(self) -> Compiled:
        arguments = tuple(replace(a, donated=a.donated and self.donates) for a in self.program.arguments)
        return Lowered(replace(self.program, arguments=arguments)).compile()

    def __call__(self, *args: Any) -> Any:
        """Run the program on arrays (in any tree): returns one array, or a tuple of several.

        In a traced function the program is part of the trace, and can be differentiated and batched.

        Raises:
          ArgumentError: the number of arrays differs.
          ShapeError: an array has another type.
          ConcretizationTypeError: a program with 64-bit values in a traced function, without ``enable_x64``.
        """
        values = pytree.leaves(args)
        if not any(isinstance(x, Tracer) for x in values):
            return self._compiled(*values)
        with self.program.precision():
            taken = Taken(self.program, "loaded", [None] * len(values), None)
            return pytree.unflatten(self.out_tree, self._bound(taken.leaves(values, {})))

    def _bound(self, values: list[Any]) -> list[Any]:
        """The program as a call in the current trace."""
        if self.is_wide and not config.enable_x64:
            next(x for x in values if isinstance(x, Tracer)).refuse(
                ConcretizationTypeError, f"{self.name!r}, a program with 64-bit values,", "switch enable_x64 on"
            )
        if self.is_split:
            return ImportedCall(self.name, self._plain, over=self._over).bind(*values)
        return Jit(self.name, self._plain).bind(*values)

    @cached_property
    def is_split(self) -> bool:
        """Whether the program says how values are split, or what each device runs."""
        return not self.is_stacked and bool(self.annotations or self.has_manual_regions)

    def on(self, mesh: AnyMesh) -> Callable[..., list[Any]]:
        """The program over a mesh, as a function of its arrays for use in jitted functions; it returns a list of
        results.

        Raises:
          MeshError, ShardingError: the mesh does not fit the program's shardings.
        """
        call = Jit(self.name, self._over(mesh))
        return lambda *values: list(call.bind(*values))

    def _over(self, mesh: AnyMesh) -> ClosedJaxpr:
        """The program over a mesh, with its shardings as constraints."""
        chosen = self.mesh_for(mesh, None)
        resized = self._resized(chosen)
        if resized is not None:
            return resized._over(chosen)
        ends = [p.sharding for p in self.parameters], self.parsed.result_shardings
        jaxpr = bind_to_mesh(annotate_ends(self._flat, *ends), chosen, self.name)
        return constrain(jaxpr, *self._shardings_on(chosen))

    # --- partitioning ---------------------------------------------------------------------------------------
    def partition(
        self,
        mesh: AnyMesh | None = None,
        num_devices: int | None = None,
        *,
        combine_bytes: int = 0,
        memory_limit: float | None = None,
    ) -> PartitionedProgram:
        """Partition the program.

        ``mesh`` may be any mesh of the program's number of devices; arguments and results whose shardings its axes do
        not express lie on its devices in another order. A program that names axes (Shardy's shardings) and has no
        per-device code may be put on any mesh that has them, of whatever sizes, which its shardings then mean. If the
        shardings do not name a mesh, ``mesh``, ``num_devices`` or a current mesh is needed. ``combine_bytes`` is the
        bucket size for combining small collectives; 0: do not combine. With ``memory_limit`` (bytes), gathered values
        are freed and gathered again if the program does not fit otherwise.

        Raises:
          ArgumentError: ``combine_bytes`` is negative, or the limit is not positive.
          MemoryLimitError: a device needs more than the limit.
          MeshError: there is no mesh, or it has neither the program's number of devices nor the axes that it names.
          ShardingError: a sharding does not fit its value.
        """
        return partition_program(self.bound(mesh, num_devices), combine_bytes, memory_limit)

    def bound(self, mesh: AnyMesh | None = None, num_devices: int | None = None) -> Program:
        """The program on a mesh, with its shardings, regions and device groups over the axes of that mesh.

        Raises:
          MeshError, ShardingError: as :meth:`partition`.
        """
        chosen = self.mesh_for(mesh, num_devices)
        resized = self._resized(chosen)
        if resized is not None:
            return resized.bound(chosen)
        ends = [p.sharding for p in self.parameters], self.parsed.result_shardings
        ins, outs = (
            [named if annotation is None or is_plain(annotation) else None for named, annotation in zip(*side)]
            for side in zip(self._shardings_on(chosen), ends)
        )
        arguments = tuple(replace(a, sharding=s) for a, s in zip(self.parameters, ins))
        with precision_of(self.is_wide):
            jaxpr = bind_to_mesh(annotate_ends(self._flat, *ends), chosen, self.name)
        return replace(self._program(jaxpr), arguments=arguments, out_shardings=tuple(outs), place=chosen)

    def trace(self) -> Traced:
        """The program for one device, as a jaxpr; partitioning it later uses the shardings in the program."""
        return Traced(self.program, self.bound)

    def lower(self, mesh: AnyMesh | None = None) -> Lowered:
        """The program on ``mesh``, or for one device without; its ``partition`` is that of this program.

        Raises:
          MeshError, ShardingError: as :meth:`partition`.
        """
        return Lowered(self.program, self.bound) if mesh is None else Lowered(self.bound(mesh))

    def compile(self, mesh: AnyMesh | None = None) -> Compiled:
        """The executable on the devices of ``mesh``, or on one device without.

        Raises:
          MeshError, ShardingError: as :meth:`partition`. CompileError: XLA rejected the program.
        """
        return self.lower(mesh).compile()

    def mesh_for(self, mesh: AnyMesh | None, num_devices: int | None) -> AnyMesh:
        """The mesh to put the program on, for these arguments of :meth:`partition`."""
        asked = mesh_asked(mesh, num_devices, "partition")
        if mesh is None and num_devices in (None, self.num_partitions) and self.mesh is not None:
            return self.mesh
        if mesh is None and asked is not None:
            return of_size(self.annotations, asked.size)
        return asked or self._unnamed_mesh()

    def _resized(self, mesh: AnyMesh) -> ImportedProgram | None:
        """The program as it would be written for axes of the sizes in ``mesh``; None if they are the program's, or it
        fixes them and ``mesh`` has its number of devices.

        Raises:
          MeshError: the program fixes the number.
        """
        tiled = self.num_partitions > 1 or any(_num_devices(s) is not None for s in self.annotations)
        if not (tiled and self.annotations):
            return None
        has_number = mesh.size == self.num_partitions
        if has_number and (self.has_manual_regions or not gives_sizes(mesh, self.annotations)):
            return None
        known = self.parsed, self.annotations, self.has_manual_regions, self.num_partitions
        return ImportedProgram(with_sizes_of(*known, mesh))

    def _unnamed_mesh(self) -> AnyMesh:
        """The mesh if nothing names one: the current one if the program fits it, or one axis of its number of
        devices."""
        current, count = get_mesh(), self.num_partitions
        if current is not None and count in (1, current.size):
            return current
        if count > 1:
            return AbstractMesh((count,), ("devices",))
        raise MeshError(
            f"partition: {self.name!r} has no shardings, so it says nothing of devices; call .partition(mesh) or "
            ".partition(num_devices=8)"
        )

    # --- texts ----------------------------------------------------------------------------------------------
    def _module(self) -> Any:
        options = LoweringOptions(
            name=f"jit_{self.name}",
            arg_names=[p.name for p in self.parameters],
            arg_shardings=[p.sharding for p in self.parameters],
            result_shardings=self.parsed.result_shardings,
            donated={i: p.alias for i, p in enumerate(self.parameters) if p.donated},
            num_partitions=self.num_partitions,
            shardy=all(isinstance(s, SdySharding) for s in self.annotations),
        )
        return lower_to_stablehlo(self.jaxpr, options)

    def as_text(self, dialect: str = "jaxpr", *, debug_info: bool = False) -> str:
        """The whole program as ``"jaxpr"``, ``"stablehlo"`` (with its shardings) or ``"hlo"``.

        Raises:
          ArgumentError: another dialect.
        """
        match dialect:
            case "jaxpr":
                return format_jaxpr(self.jaxpr)
            case "stablehlo":
                return module_text(self._module(), debug_info)
            case "hlo":
                return hlo_text(self._module())
        raise ArgumentError(f"as_text: expected 'jaxpr', 'stablehlo' or 'hlo', got {dialect!r}")

    def __repr__(self) -> str:
        return (
            f"ImportedProgram({self.name!r}, {counted(len(self.in_avals), 'parameter')}, "
            f"{counted(len(self.out_avals), 'result')}, {counted(len(self.jaxpr.eqns), 'op')}, "
            f"{counted(self.num_partitions, 'partition')}{', stacked' if self.is_stacked else ''})"
        )


# --- shardings on a mesh ------------------------------------------------------------------------------------
def _says_nothing(sharding: Annotation) -> bool:
    """Whether a sharding only makes its value a member of a sharding group."""
    return isinstance(sharding, HloSharding) and sharding.kind == "unknown"


def _num_devices(sharding: Annotation) -> int | None:
    return sharding.mesh.size if isinstance(sharding, SdySharding) else sharding.num_devices


def _with_devices(mesh: AbstractMesh, order: Sequence[int]) -> AnyMesh:
    """The mesh, with numbered devices if their order is not the natural one."""
    if not order or list(order) == list(range(mesh.size)):
        return mesh
    devices = np.array([LogicalDevice(i) for i in order], object).reshape(mesh.axis_sizes)
    return Mesh(devices, mesh.axis_names)


def _annotations(jaxpr: Jaxpr) -> Iterator[Annotation | None]:
    for eqn in all_eqns(jaxpr):
        op = eqn.op
        if isinstance(op, ShardingAnnotation):
            yield op.sharding
        elif isinstance(op, ManualComputation):
            yield from (*op.in_shardings, *op.out_shardings, op.manual if isinstance(op.manual, HloSharding) else None)


def _group_shardings(jaxpr: Jaxpr) -> list[HloSharding]:
    """The shardings that a mesh must express for the device groups of collectives to be axes."""
    groups = dict.fromkeys(e.op.groups for e in all_eqns(jaxpr) if isinstance(e.op, DeviceCollective))
    return [s for s in map(groups_sharding, groups) if s is not None]


# --- load ---------------------------------------------------------------------------------------------------
def load(source: str | bytes | os.PathLike[str], *, entry: str = "") -> ImportedProgram:
    """Read a program from a path to a file, or from its text or bytes.

    Supported formats are HLO text, serialized ``HloModuleProto``, StableHLO text and bytecode, and portable artifacts,
    with GSPMD (``mhlo.sharding``) and Shardy (``sdy.sharding``) annotations.

    A program that is already partitioned (the code of one device or replica) is loaded as a program over all devices:
    dimension 0 of its arguments and results is the device, as in ``pmap`` (:attr:`ImportedProgram.is_stacked`).

    Of a StableHLO module with several functions, ``entry`` names the one to read, by default ``main``, or the only
    public one. Attributes of dialects that are not known here say nothing about what is computed, and are ignored.

    Raises:
      ImportProgramError: the program cannot be read, or has no such function; says where and why.
      ArgumentError: the file does not exist.
      ArgumentTypeError: ``source`` is neither text, bytes nor a path.

    Example:
      >>> text = mw.jit(lambda x: 2 * x).lower(mnp.arange(3)).as_text()
      >>> mw.load(text)(mnp.array([5, 6, 7]))
      Array([10, 12, 14], dtype=int32)
    """
    return read_program(*_contents(source), entry=entry)


def read_program(
    data: str | bytes, file: str, host_functions: Sequence[Callable[..., Any]] = (), entry: str = "",
    changed: Callable[[ParsedProgram], ParsedProgram] = lambda parsed: parsed,
) -> ImportedProgram:  # fmt: skip
    """Parse ``data``, and warn about what is slow or missing in it as ``changed``; see :func:`parse_program`."""
    parsed = changed(parse_program(data, file, host_functions=host_functions, entry=entry))
    for text in parsed.warnings:
        warn(f"{file}: {text}", ReplicationWarning)
    if parsed.elided:
        warn(
            f"{file}: the values of {parsed.elided} constants are left out of the text and read as zeros: the program "
            "can be partitioned and costed, but computes something else; print it with all constants (in HLO: "
            "print_large_constants=True)",
            ElidedConstantWarning,
        )
    return ImportedProgram(parsed)


def _contents(source: Any) -> tuple[str | bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "<bytes>"
    if isinstance(source, str) and ("\n" in source or "{" in source or not source.strip()):
        return source, "<text>"
    if not isinstance(source, (str, os.PathLike)):
        raise ArgumentTypeError(f"load: expected a path, text or bytes, got {type(source).__name__}")
    path = as_path("load: source", source)
    with user_file("load: cannot read", path, ArgumentError):
        return path.read_bytes(), path.name
