"""StableHLO to jaxpr: one walk over a parsed module that binds our ops under a recording trace.

The driver knows no op by name: reading rules (:mod:`meshwright.ir.reading`) stand beside each op's ``emit``, those of
what is no op (calls, tuples, annotations) in ``read_*.py``. An operation without a rule is kept as it is, as
:class:`meshwright.ops.opaque.Opaque`. Shardings are kept as written; meshes are chosen later.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from jaxlib.mlir import ir

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.source import UNKNOWN
from meshwright.errors import ImportProgramError, MeshwrightError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.reading import READERS, ReadRule, Region, Unreadable, binary_op_name
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace, Tracer, eval_jaxpr, typeof
from meshwright.ops.call import Jit
from meshwright.ops.opaque import Opaque
from meshwright.ops.sharding_annotation import Annotation, ShardingAnnotation
from meshwright.stablehlo.call_order import in_call_order
from meshwright.stablehlo.read_attributes import ELIDED, Attributes, UnsupportedType, blob_array, resource_blobs
from meshwright.stablehlo.read_shardings import MeshDeclaration, read_meshes, read_per_value, read_sharding

#: nested calls deeper than this are written out, so that no pass has to follow a long chain of them
_MOST_NESTED = 32
_MOST_EQUATIONS = 1_000_000
_TERMINATORS = ("func.return", "stablehlo.return", "mhlo.return", "sdy.return")
_SHARDING_ATTRIBUTES = ("mhlo.sharding", "sdy.sharding")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a program; ``alias`` is the result that takes its memory, where the program says so."""

    name: str
    aval: ShapedArray
    sharding: Annotation | None = None
    donated: bool = False
    alias: int | None = None


@dataclass
class ParsedProgram:
    """A module as read: its entry function and what its attributes say."""

    name: str
    jaxpr: ClosedJaxpr
    parameters: tuple[Parameter, ...]
    result_shardings: tuple[Annotation | None, ...]
    num_partitions: int | None
    meshes: dict[str, MeshDeclaration]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: how many constants have no values in the text, and were read as zeros
    elided: int = 0


@dataclass(frozen=True)
class Function:
    """A function that has been read, and how deeply calls nest in it."""

    jaxpr: ClosedJaxpr
    height: int


class OperationReader:
    """Implements :class:`meshwright.ir.reading.Reader` on MLIR."""

    __slots__ = ("body", "name", "operation")

    def __init__(self, body: BodyReader, operation: ir.Operation, name: str) -> None:
        self.body = body
        self.operation = operation
        self.name = name

    @property
    def module(self) -> ModuleReader:
        return self.body.module

    @property
    def operands(self) -> list[Any]:
        env = self.body.env
        return [env[v] for v in self.operation.operands]

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [typeof(x) for x in self.operands]

    @property
    def out_avals(self) -> list[Any]:
        types = self.module.attributes
        return [types.type(v.type) for v in self.operation.results]

    def attr(self, name: str, default: Any = ...) -> Any:
        attributes = self.operation.attributes
        if name in attributes:
            return self.module.attributes.value(attributes[name])
        if default is ...:
            self.fail(f"attribute {name!r} is missing")
        return default

    def attrs(self) -> dict[str, Any]:
        attributes = self.operation.attributes
        return {name: self.module.attributes.value(attributes[name]) for name in attributes}

    def attribute_texts(self) -> tuple[tuple[str, str], ...]:
        """All attributes as MLIR text, but for shardings."""
        attributes = self.operation.attributes
        return tuple((n, str(attributes[n])) for n in attributes if n not in _SHARDING_ATTRIBUTES)

    def num_regions(self) -> int:
        return len(self.operation.regions)

    def region(self, number: int = 0) -> Region:
        return self.body.region(self.operation.regions[number])

    def made_by(self, operand: int) -> JaxprEqn | None:
        value = self.operands[operand]
        var = getattr(value, "variable", None)
        eqns = getattr(value.owner, "eqns", ()) if var is not None else ()
        return next((e for e in reversed(eqns) if var in e.outvars), None)

    def reducer(self, number: int = 0) -> str:
        region = self.region(number)
        return "" if region.captured else binary_op_name(region.jaxpr)

    def call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """The results of the function ``name``."""
        function = self.module.functions[name]
        if function.height < _MOST_NESTED:
            return Jit(name, function.jaxpr).bind(*args)
        self.body.count(len(function.jaxpr.eqns))
        return eval_jaxpr(function.jaxpr, function.jaxpr.consts, *args)

    def note(self, text: str) -> None:
        """Something that was left out."""
        self.module.notes.setdefault(text)

    def resource(self, name: str, aval: ShapedArray) -> np.ndarray:
        """The elements of a constant that stand in a blob of the module; zeros where the text leaves them out."""
        if name == ELIDED:
            self.module.elided += 1
            return np.zeros((), aval.dtype)
        if name not in self.module.blobs:
            self.fail(f"the blob {name!r} of a constant is not in the module")
        return blob_array(self.module.blobs[name], aval)

    def warn(self, text: str) -> None:
        """Something that costs speed."""
        self.module.warnings.setdefault(text)

    def fail(self, why: str) -> NoReturn:
        raise _Failure(self.operation, why)


class _Failure(Exception):
    """An operation that cannot be read; the place in the text is found later."""

    def __init__(self, operation: ir.Operation, why: str) -> None:
        super().__init__(why)
        self.operation = operation


class BodyReader:
    """Reads one function: its blocks, in order, under the current trace."""

    def __init__(self, module: ModuleReader) -> None:
        self.module = module
        self.env: dict[ir.Value, Any] = {}
        self.equations = 0

    def count(self, more: int) -> None:
        """Bound the growth of calls that are written out."""
        self.equations += more
        if self.equations > _MOST_EQUATIONS:
            raise ImportProgramError(
                f"{self.module.file}: written out, calls nested more than {_MOST_NESTED} deep make more than "
                f"{_MOST_EQUATIONS} equations; export the program with fewer nested functions"
            )

    def block(self, block: ir.Block, args: Sequence[Any]) -> list[Any]:
        """The values that a block returns for its arguments."""
        env = self.env
        env.update(zip(block.arguments, args))
        location = self.module.attributes.location
        for view in block.operations:
            operation = view.operation
            name = operation.name
            if name in _TERMINATORS:
                return [env[v] for v in operation.operands]
            with source.at(location(operation.location)):
                outs = self.operation(operation, name)
            results = operation.results
            if len(results) != len(outs):
                raise _Failure(operation, f"has {len(results)} results, its reading rule gave {len(outs)}")
            env.update(zip(results, outs))
        return []

    def operation(self, operation: ir.Operation, name: str) -> list[Any]:
        """The results of one operation."""
        reader = OperationReader(self, operation, name)
        rule = rule_of(operation, name)
        try:
            outs = read_opaque(reader) if rule is None else _results(rule, reader)
            attributes = operation.attributes
            if name != "stablehlo.custom_call" and any(a in attributes for a in _SHARDING_ATTRIBUTES):
                outs = self._annotate(reader, outs)
            return outs
        except UnsupportedType as error:
            raise _Failure(operation, str(error)) from None
        except MeshwrightError as error:
            raise _Failure(operation, str(error)) from error

    def _annotate(self, reader: OperationReader, outs: list[Any]) -> list[Any]:
        """Results with the shardings that the operation carries."""
        found = read_per_value(reader.operation.attributes, len(outs), self.module.meshes)
        return [
            ShardingAnnotation(s).bind(x) if s is not None and not isinstance(x, tuple) else x
            for x, s in zip(outs, found)
        ]

    def region(self, region: ir.Region) -> Region:
        """A region as a jaxpr whose first parameters are what it uses of the surrounding program."""
        block = region.blocks[0]
        trace = JaxprTrace()
        args = [trace.new_arg(self.module.attributes.type(a.type)) for a in block.arguments]
        with set_trace(trace):
            outs = self.block(block, args)
        closed = trace.finish(outs, "region")
        pairs = list(zip(closed.jaxpr.constvars, closed.consts))
        captured = [(v, c) for v, c in pairs if isinstance(c, Tracer)]
        kept = [(v, c) for v, c in pairs if not isinstance(c, Tracer)]
        inner = closed.jaxpr
        jaxpr = Jaxpr(
            [v for v, _ in kept], [*(v for v, _ in captured), *inner.invars], inner.outvars, inner.eqns, "region"
        )
        return Region(ClosedJaxpr(jaxpr, [c for _, c in kept]), [c for _, c in captured])


def _results(rule: ReadRule, reader: OperationReader) -> list[Any]:
    try:
        out = rule(reader)
    except Unreadable:
        return read_opaque(reader)
    return out if isinstance(out, list) else [out]


def rule_of(operation: ir.Operation, name: str) -> ReadRule | None:
    """The reading rule of an operation; ``mhlo`` ones are read like those of StableHLO and CHLO."""
    rule = READERS.get(name)
    if rule is None and name.startswith("mhlo."):
        rest = name.removeprefix("mhlo.")
        rule = READERS.get(f"stablehlo.{rest}") or READERS.get(f"chlo.{rest}")
    return rule


def read_opaque(reader: Any) -> list[Any]:
    """An operation kept as it is."""
    if not reader.name.startswith(("stablehlo.", "chlo.", "mhlo.")):
        reader.fail("has no meaning here; expected operations of StableHLO, CHLO, func and sdy")
    regions = [reader.region(i) for i in range(reader.num_regions())]
    if any(region.captured for region in regions):
        reader.fail("has a region that uses values from outside; this form is not supported")
    operands, results = reader.operands, reader.out_avals
    if any(isinstance(x, tuple) or x is None for x in (*operands, *results)):
        reader.fail("takes or returns a tuple or a token; this form is not supported")
    attributes = reader.attribute_texts()
    side_effect = dict(attributes).get("has_side_effect") == "true"
    op = Opaque(reader.name, attributes, tuple(r.jaxpr for r in regions), tuple(results), side_effect)
    return op.bind(*operands)


class ModuleReader:
    """Reads one module. ``file`` is what errors call it; ``text``, where there is any, gives them line numbers."""

    def __init__(self, module: ir.Module, file: str, text: str = "") -> None:
        self.module = module
        self.file = file
        self.text = text
        self.attributes = Attributes(file)
        self.functions: dict[str, Function] = {}
        self.meshes: dict[str, MeshDeclaration] = {}
        self.notes: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        #: constants whose values the text leaves out
        self.elided = 0
        self._draws = itertools.count()

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        """The elements of constants that stand behind the module, by name."""
        return resource_blobs(self.text or self.module.operation.get_asm())

    def next_draw(self) -> int:
        """A number for each draw of random numbers without a key."""
        return next(self._draws)

    def read(self) -> ParsedProgram:
        """The whole program.

        Raises:
          ImportProgramError: an operation that cannot be read, no entry function.
        """
        operations = {o.operation.attributes["sym_name"].value: o.operation for o in self.module.body.operations
                      if o.operation.name == "func.func"}  # fmt: skip
        try:
            self.meshes = read_meshes(self.module)
            entry = self._entry(operations)
            *callees, _ = in_call_order(entry, operations)
            for name in callees:
                self.functions[name] = self._function(operations[name], name)
            return self._program(operations[entry], entry)
        except _Failure as failure:
            raise self._error(failure) from failure.__cause__
        except RecursionError:
            raise ImportProgramError(
                f"{self.file}: regions are nested too deeply to be read; flatten the program's control flow"
            ) from None

    def _entry(self, functions: dict[str, ir.Operation]) -> str:
        if "main" in functions:
            return "main"
        public = [n for n, f in functions.items() if _visibility(f) != "private"]
        if len(public) != 1:
            known = ", ".join(map(repr, functions)) or "none"
            raise ImportProgramError(
                f"{self.file}: expected an entry function, called main or the only public one; the module has {known}"
            )
        return public[0]

    def _function(self, operation: ir.Operation, name: str) -> Function:
        body = BodyReader(self)
        trace = JaxprTrace()
        block = self._entry_block(operation, name)
        with set_trace(trace):
            args = [self._argument(trace, a, operation) for a in block.arguments]
            outs = body.block(block, args)
        jaxpr = trace.finish(list(_leaves(outs)), name)
        heights = [self.functions[e.op.fun_name].height + 1 for e in jaxpr.eqns if isinstance(e.op, Jit)]
        return Function(jaxpr, max(heights, default=0))

    def _entry_block(self, operation: ir.Operation, name: str) -> ir.Block:
        blocks = list(operation.regions[0].blocks)
        if len(blocks) != 1:
            raise _Failure(operation, f"function {name!r} has {len(blocks)} blocks, expected one")
        return blocks[0]

    def _argument(self, trace: JaxprTrace, argument: ir.Value, operation: ir.Operation) -> Any:
        """Parameters for an argument: a tuple of them if it is one."""
        try:
            return _parameters(trace, self.attributes.type(argument.type))
        except UnsupportedType as error:
            raise _Failure(operation, f"argument {argument.arg_number}: {error}") from None

    # --- the entry function ---------------------------------------------------------------------------------
    def _program(self, operation: ir.Operation, entry: str) -> ParsedProgram:
        jaxpr = self._function(operation, entry).jaxpr
        attributes = self.module.operation.attributes
        partitions = attributes["mhlo.num_partitions"].value if "mhlo.num_partitions" in attributes else None
        name = attributes["sym_name"].value if "sym_name" in attributes else entry
        return ParsedProgram(
            name.removeprefix("jit_"), jaxpr, self._entry_parameters(operation, jaxpr),
            self._result_shardings(operation, jaxpr), partitions, self.meshes, list(self.notes), list(self.warnings),
            self.elided,
        )  # fmt: skip

    def _entry_parameters(self, operation: ir.Operation, jaxpr: ClosedJaxpr) -> tuple[Parameter, ...]:
        arguments = self._entry_block(operation, "main").arguments
        attributes = _attribute_list(operation, "arg_attrs", len(arguments))
        aliases = _hlo_aliases(self.module)
        found: list[Parameter] = []
        avals = iter(jaxpr.in_avals)
        for argument, said in zip(arguments, attributes):
            count = len(list(_leaves([self.attributes.type(argument.type)])))
            shardings = read_sharding(said, count, self.meshes)
            name = argument.location.name_str if isinstance(argument.location, ir.NameLoc) else f"arg{len(found)}"
            alias = said["tf.aliasing_output"].value if said is not None and "tf.aliasing_output" in said else None
            donor = said is not None and "jax.buffer_donor" in said
            for i, sharding in enumerate(shardings):
                target = aliases.get(len(found), alias)
                suffix = f".{i}" if count > 1 else ""
                found.append(Parameter(name + suffix, next(avals), sharding, donor or target is not None, target))
        return tuple(found)

    def _result_shardings(self, operation: ir.Operation, jaxpr: ClosedJaxpr) -> tuple[Annotation | None, ...]:
        types = ir.FunctionType(operation.attributes["function_type"].value).results
        found: list[Annotation | None] = []
        for type_, said in zip(types, _attribute_list(operation, "res_attrs", len(types))):
            found += read_sharding(said, len(list(_leaves([self.attributes.type(type_)]))), self.meshes)
        return tuple(found)

    # --- errors ---------------------------------------------------------------------------------------------
    def _error(self, failure: _Failure) -> ImportProgramError:
        """With the operation's name, its line in the file and the line of the program that it was made from."""
        operation = failure.operation
        where = self.attributes.location(operation.location)
        line = line_of(self.text, self.module, operation)
        place = f"{self.file}:{line}" if line else self.file
        made = f" (from {where})" if where is not UNKNOWN and where.file != self.file else ""
        return ImportProgramError(f"{place}: {operation.name}{made}: {failure}")


def line_of(text: str, module: ir.Module, operation: ir.Operation) -> int:
    """The line of ``text``, from which ``module`` was parsed, on which ``operation`` stands; 0 if it is not found.

    Locations do not tell: where the text has some, they are those of the program that it was made from. So the
    operations of one name are counted, in the module and in its text.
    """
    name, before = operation.name, 0

    def visit(other: ir.Operation) -> ir.WalkResult:
        nonlocal before
        if other == operation:
            return ir.WalkResult.INTERRUPT
        before += other.name == name
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    spelled = re.compile(rf'(?:(?:^|=|applies)\s*|")({re.escape(name)})\b')
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#loc"):
            continue
        here = len(spelled.findall(line))
        if here > before:
            return number
        before -= here
    return 0


# --- pieces -------------------------------------------------------------------------------------------------
def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _leaves(value)
        else:
            yield value


def _parameters(trace: JaxprTrace, aval: Any) -> Any:
    if isinstance(aval, tuple):
        return tuple(_parameters(trace, a) for a in aval)
    if aval is None:
        raise UnsupportedType("tokens have no meaning here")
    return trace.new_arg(aval)


def _visibility(operation: ir.Operation) -> str:
    attributes = operation.attributes
    return attributes["sym_visibility"].value if "sym_visibility" in attributes else "public"


def _attribute_list(operation: ir.Operation, name: str, count: int) -> list[Any]:
    attributes = operation.attributes
    return list(attributes[name]) if name in attributes else [None] * count


def _hlo_aliases(module: ir.Module) -> dict[int, int]:
    """From parameter to result number, as modules that come from HLO say it."""
    attributes = module.operation.attributes
    found: dict[int, int] = {}
    for entry in attributes["mhlo.input_output_alias"] if "mhlo.input_output_alias" in attributes else ():
        alias, output = entry["alias"], list(entry["output_index"])
        if not list(alias["parameter_index"]):
            found[alias["parameter_number"].value] = output[0] if output else 0
    return found
