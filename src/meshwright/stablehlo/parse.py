"""StableHLO to jaxpr: one walk over a parsed module that binds our ops under a recording trace.

The driver knows no op by name. Reading rules (:mod:`meshwright.ir.reading`) are defined next to each op's ``emit``, and
those for which there is no op (calls, tuples, annotations) in ``read_*.py``. An operation without a rule is kept as
:class:`meshwright.ops.imported.opaque.Opaque`. Shardings are kept as written; meshes are chosen later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshwright.core.source import UNKNOWN
from meshwright.errors import ImportProgramError, MeshwrightError, NestingError, ShapeError
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.passes import shallow
from meshwright.ir.program import Argument
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace
from meshwright.ops.imported.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.sharding.sdy import SdySharding
from meshwright.stablehlo.call_order import in_call_order
from meshwright.stablehlo.hlo_header import hlo_places
from meshwright.stablehlo.lines import line_of
from meshwright.stablehlo.manual_regions import form_regions, outside_regions
from meshwright.stablehlo.module_facts import ModuleFacts, module_name
from meshwright.stablehlo.parsed import ParsedProgram
from meshwright.stablehlo.per_device import (
    UNCOUNTED,
    is_for_all_devices,
    of_all_devices,
    says_it_is_partitioned,
)
from meshwright.stablehlo.read_attributes import UnsupportedType, is_token
from meshwright.stablehlo.read_bodies import AlreadyPartitioned, BodyReader, Failure, leaves
from meshwright.stablehlo.read_shardings import (
    Meshes,
    annotate,
    check_rank,
    cut_as_written,
    mesh_declaration,
    read_sharding,
    shardy_attributes,
)


class ModuleReader(ModuleFacts):
    """Reads one module."""

    def read(self) -> ParsedProgram:
        """Read the whole program. A program for one device of several becomes one for all of them.

        Raises:
          ImportProgramError: an operation cannot be read, or there is no entry function.
        """
        try:
            if not self.per_device and says_it_is_partitioned(self.module, self.num_partitions or 1):
                raise AlreadyPartitioned(self.module.operation)
            return self._read()
        except AlreadyPartitioned as failure:
            misplaced = failure
        except Failure as failure:
            raise self._error(failure) from failure.__cause__
        except RecursionError:
            raise ImportProgramError(
                f"{self.file}: regions are nested too deeply to be read; flatten the program's control flow"
            ) from None
        reader = ModuleReader(self.module, self.file, self.text, True, self.host_functions, self.hlo, self.entry)
        if reader.num_devices is None:
            raise self._error(Failure(misplaced.operation, UNCOUNTED))
        program = reader.read()
        if reader.num_devices == 1 or is_for_all_devices(program, reader.replicas):
            raise self._error(misplaced)
        return of_all_devices(program, reader.num_devices)

    @cached_property
    def _operations(self) -> dict[str, ir.Operation]:
        """The module's functions, by name."""
        found = (o.operation for o in self.module.body.operations)
        return {o.attributes["sym_name"].value: o for o in found if o.name == "func.func"}

    def block_of(self, name: str) -> ir.Block:
        """The block of the function ``name``."""
        return self._entry_block(self._operations[name], name)

    def _read(self) -> ParsedProgram:
        operations = self._operations
        try:
            self.meshes = self._meshes()
        except MeshwrightError as error:
            raise Failure(self.module.operation, str(error)) from None
        entry = self._entry(operations)
        *callees, _ = in_call_order(entry, operations)
        for name in callees:
            self.functions[name] = self._function(operations[name], name)
        return self._program(operations[entry], entry)

    def _meshes(self) -> Meshes:
        """The meshes that the module declares, as operations or (in HLO) as a frontend attribute."""
        module = self.module.operation
        meshes = {}
        for view in self.module.body.operations:
            operation = view.operation
            if operation.name == "sdy.mesh":
                meshes[operation.attributes["sym_name"].value] = mesh_declaration(operation.attributes["mesh"])
        named = shardy_attributes(module.attributes).get("sdy.meshes")
        if named is not None:
            meshes.update((entry.name, mesh_declaration(entry.attr)) for entry in ir.DictAttr(named))
        for name, declared in meshes.items():
            ids = declared.device_ids
            if declared.mesh.axis_names and ids and sorted(ids) != list(range(declared.mesh.size)):
                raise Failure(module, f"mesh {name}: device_ids {list(ids)} are not 0 to {declared.mesh.size - 1}")
        meshes = {name: cut_as_written(declared, self.module) for name, declared in meshes.items()}
        return Meshes(meshes, self.num_partitions, named is not None)

    def _entry(self, functions: dict[str, ir.Operation]) -> str:
        public = [n for n, f in functions.items() if _visibility(f) != "private"]
        entry = self.entry or ("main" if "main" in functions else public[0] if len(public) == 1 else "")
        if entry not in functions:
            known = ", ".join(map(repr, functions)) or "none"
            what = f"a function {entry!r}" if entry else "an entry function, called main or the only public one"
            remedy = "; name one of them: load(source, entry=...)" if functions else ""
            raise ImportProgramError(f"{self.file}: expected {what}; the module has {known}{remedy}")
        return entry

    def _function(self, operation: ir.Operation, name: str, entry: bool = False) -> ClosedJaxpr:
        body = BodyReader(self)
        trace = JaxprTrace()
        block = self._entry_block(operation, name)
        with set_trace(trace):
            # Tokens are not arguments or results of a whole program, as they have no values.
            gone = [entry and is_token(a.type) for a in block.arguments]
            args = [np.int32(0) if no else self._argument(trace, a, operation) for a, no in zip(block.arguments, gone)]
            if not entry:
                args = self._as_declared(operation, "argument", args)
            outs = body.block(block, args)
            if entry:
                outs = [y for y, type_ in zip(outs, _result_types(operation)) if not is_token(type_)]
            else:
                outs = self._as_declared(operation, "result", outs)
        shardings = chain.from_iterable(self._shardings(operation, "argument", [a.type for a in block.arguments]))
        known = {v: s for v, s in zip(trace.invars, shardings) if s is not None}
        try:
            return shallow(form_regions(trace.finish(list(leaves(outs)), name), known))
        except NestingError as error:
            raise Failure(operation, str(error)) from None

    def _as_declared(self, operation: ir.Operation, side: str, values: Sequence[Any]) -> list[Any]:
        """Values of a function that is called, with the shardings that Shardy's programs declare for them there."""
        if self.per_device:
            return list(values)
        type_ = ir.FunctionType(operation.attributes["function_type"].value)
        types = list(type_.inputs if side == "argument" else type_.results)
        given = (s[0] if len(s) == 1 else None for s in self._shardings(operation, side, types))
        return [annotate(x, s) if isinstance(s, SdySharding) else x for x, s in zip(values, given)]

    def _shardings(self, operation: ir.Operation, side: str, types: Sequence[ir.Type]) -> list[list[Annotation | None]]:
        """The shardings that a function has for the leaves of each ``argument`` or ``result``."""
        shardings = []
        attributes = _attribute_list(operation, "arg_attrs" if side == "argument" else "res_attrs", len(types))
        for number, (type_, entry) in enumerate(zip(types, attributes)):
            try:
                avals = list(leaves([self.attributes.type(type_)]))
                shardings.append(read_sharding(entry, len(avals), self.meshes))
                for sharding, aval in zip(shardings[-1], avals):
                    check_rank(sharding, aval)
            except (UnsupportedType, MeshwrightError) as error:
                place = _location_of(operation, side, number)
                raise Failure(operation, f"{side} {number}{_name_at(place)}: {error}", place) from None
        return shardings

    def _entry_block(self, operation: ir.Operation, name: str) -> ir.Block:
        blocks = list(operation.regions[0].blocks)
        if len(blocks) != 1:
            raise Failure(operation, f"function {name!r} has {len(blocks)} blocks, expected one")
        return blocks[0]

    def _argument(self, trace: JaxprTrace, argument: ir.Value, operation: ir.Operation) -> Any:
        """A parameter for an argument, or a tuple of parameters for a tuple."""
        try:
            return _parameters(trace, self.attributes.type(argument.type))
        except (UnsupportedType, ShapeError) as error:
            place = argument.location
            raise Failure(operation, f"argument {argument.arg_number}{_name_at(place)}: {error}", place) from None

    # --- the entry function ---------------------------------------------------------------------------------
    def _program(self, operation: ir.Operation, entry: str) -> ParsedProgram:
        jaxpr = self._function(operation, entry, entry=True)
        misplaced = None if self.per_device else next(outside_regions(jaxpr.jaxpr), None)
        if misplaced is not None:
            raise AlreadyPartitioned(self._remembered[misplaced.origin], ", or in a manual region")
        name = self.entry or module_name(self.module) or entry
        results = _result_types(operation)
        each = zip(self._shardings(operation, "result", results), results)
        shardings = tuple(chain.from_iterable(s for s, type_ in each if not is_token(type_)))
        if self.meshes.approximated:  # results are annotated in the function
            last = {e.outvars[0]: e.op.sharding for e in jaxpr.jaxpr.eqns if isinstance(e.op, ShardingAnnotation)}
            shardings = tuple(last.get(a) if isinstance(a, Var) else None for a in jaxpr.jaxpr.outvars)
        return ParsedProgram(
            name.removeprefix("jit_"), jaxpr, self._entry_parameters(operation, jaxpr), shardings, self.num_partitions,
            self.meshes.declared, list(self.notes), list(self.warnings), self.elided,
        )  # fmt: skip

    def _entry_parameters(self, operation: ir.Operation, jaxpr: ClosedJaxpr) -> tuple[Argument, ...]:
        arguments = self._entry_block(operation, "main").arguments
        attributes = _attribute_list(operation, "arg_attrs", len(arguments))
        places = hlo_places(self.module, "arg_attrs", len(arguments))
        aliases = _hlo_aliases(self.module, places, len(jaxpr.out_avals))
        params: list[Argument] = []
        avals = iter(jaxpr.in_avals)
        given = self._shardings(operation, "argument", [a.type for a in arguments])
        for n, (argument, entry, shardings) in enumerate(zip(arguments, attributes, given)):
            if is_token(argument.type):
                continue
            name = argument.location.name_str if isinstance(argument.location, ir.NameLoc) else f"arg{len(params)}"
            alias = entry["tf.aliasing_output"].value if entry is not None and "tf.aliasing_output" in entry else None
            if alias is not None and alias not in range(len(jaxpr.out_avals)):
                raise Failure(operation, f"argument {len(params)}: tf.aliasing_output is {alias!r}, which is no result")
            donor = entry is not None and "jax.buffer_donor" in entry
            for i, sharding in enumerate(shardings):
                target = aliases.get(n, alias)
                index = [*places[n][1:], *([i] if len(shardings) > 1 else [])]
                full = ".".join([name, *map(str, index)])
                params.append(Argument(full, next(avals), sharding, donor or target is not None, target))
        return tuple(params)

    # --- errors ---------------------------------------------------------------------------------------------
    def _error(self, failure: Failure) -> ImportProgramError:
        """The error with the operation's name, its line in the file, and its line in the original program."""
        operation = failure.operation
        where = self.attributes.location(operation.location)
        by_name = self.attributes.hlo_line(failure.location or operation.location)
        line = line_of(self.text, self.module, operation) if self.text else by_name
        place = f"{self.file}:{line}" if line else self.file
        origin = f" (from {where})" if where is not UNKNOWN and where.file != self.file else ""
        return ImportProgramError(f"{place}: {operation.name}{origin}: {failure}")


# --- pieces -------------------------------------------------------------------------------------------------
def _parameters(trace: JaxprTrace, aval: Any) -> Any:
    if isinstance(aval, tuple):
        return tuple(_parameters(trace, a) for a in aval)
    return trace.new_arg(aval)


def _result_types(operation: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(operation.attributes["function_type"].value).results)


def _visibility(operation: ir.Operation) -> str:
    attributes = operation.attributes
    return attributes["sym_visibility"].value if "sym_visibility" in attributes else "public"


def _location_of(operation: ir.Operation, side: str, number: int) -> ir.Location | None:
    """The location of an argument of a function."""
    return operation.regions[0].blocks[0].arguments[number].location if side == "argument" else None


def _name_at(location: ir.Location | None) -> str:
    """The name at a location in brackets, if it has one."""
    return f" ({location.name_str})" if isinstance(location, ir.NameLoc) else ""


def _attribute_list(operation: ir.Operation, name: str, count: int) -> list[Any]:
    attributes = operation.attributes
    return list(attributes[name]) if name in attributes else [None] * count


def _hlo_aliases(module: ir.Module, places: Sequence[tuple[int, ...]], num_results: int) -> dict[int, int]:
    """The numbers of the results that arguments alias, in the form that modules converted from HLO have. ``places`` are
    those of the arguments."""
    attributes = module.operation.attributes
    results = hlo_places(module, "res_attrs", num_results)
    aliases: dict[int, int] = {}
    for entry in attributes["mhlo.input_output_alias"] if "mhlo.input_output_alias" in attributes else ():
        alias, output = entry["alias"], tuple(entry["output_index"]) or (0,)
        argument = alias["parameter_number"].value, *alias["parameter_index"]
        if argument in places and output in results:
            aliases[places.index(argument)] = results.index(output)
    return aliases
