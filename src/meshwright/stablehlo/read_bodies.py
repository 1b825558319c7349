"""Reads the operations of a function one by one, with the reading rules of ops. Regions become jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from jaxlib.mlir import ir

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.words import counted
from meshwright.errors import MeshwrightError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn
from meshwright.ir.reading import READERS, ReadRule, Region, Unreadable, binary_op_name
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import JaxprTrace, Tracer, typeof
from meshwright.ops.control.call import Jit
from meshwright.ops.imported.opaque import Opaque
from meshwright.stablehlo.module_facts import ModuleFacts
from meshwright.stablehlo.read_attributes import ELIDED, UnsupportedType, blob_array, is_token
from meshwright.stablehlo.read_shardings import annotate, read_sharding

_TERMINATORS = ("func.return", "stablehlo.return", "mhlo.return", "sdy.return")
_ABOUT_SHARDING = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
_SHARDING_ATTRIBUTES = ("mhlo.sharding", "sdy.sharding", "mhlo.frontend_attributes")


class OperationReader:
    """Implements :class:`meshwright.ir.reading.Reader` on MLIR."""

    __slots__ = ("body", "name", "operation")

    def __init__(self, body: BodyReader, operation: ir.Operation, name: str) -> None:
        self.body = body
        self.operation = operation
        self.name = name

    @property
    def module(self) -> ModuleFacts:
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
        """All attributes except shardings, as MLIR text."""
        attributes = self.operation.attributes
        return tuple((n, str(attributes[n])) for n in attributes if n not in _SHARDING_ATTRIBUTES)

    def tokens(self) -> list[bool]:
        """For each operand, then each result, whether it is a token. HLO's results are the members of one tuple."""
        types = [v.type for v in self.operation.results]
        if len(types) == 1 and isinstance(types[0], ir.TupleType):
            types = [types[0].get_type(i) for i in range(types[0].num_types)]
        return [is_token(t) for t in (*(v.type for v in self.operation.operands), *types)]

    def host_function(self, number: int | None) -> Callable[..., Any] | None:
        """A Python function that the program calls; None if it did not come with the program."""
        functions = self.module.host_functions
        return functions[number] if number is not None and number < len(functions) else None

    def num_regions(self) -> int:
        return len(self.operation.regions)

    def region(self, number: int = 0) -> Region:
        return self.body.region(self.operation.regions[number])

    def producer_of(self, operand: int) -> JaxprEqn | None:
        value = self.operands[operand]
        var = getattr(value, "variable", None)
        eqns = getattr(value.owner, "eqns", ()) if var is not None else ()
        return next((e for e in reversed(eqns) if var in e.outvars), None)

    def reducer(self, number: int = 0) -> str:
        region = self.region(number)
        return "" if region.captured else binary_op_name(region.jaxpr)

    def call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Call the function ``name``."""
        return Jit(name, self.function(name)).bind(*args)

    def function(self, name: str) -> ClosedJaxpr:
        """The function ``name`` of the module."""
        function = self.module.functions.get(name)
        if function is None:
            self.fail(f"calls {name!r}, which the module does not have, or which is what calls; expected no recursion")
        return function

    def note(self, text: str) -> None:
        """Record a note for the user, for example on something that was omitted."""
        self.module.notes.setdefault(text)

    def resource(self, name: str, aval: ShapedArray) -> np.ndarray:
        """The elements of a constant in a blob of the module; zeros if the text omits them."""
        if name == ELIDED:
            self.module.elided += 1
            return np.zeros((), aval.dtype)
        if name not in self.module.blobs:
            self.fail(f"the blob {name!r} of a constant is not in the module")
        return blob_array(self.module.blobs[name], aval)

    def warn(self, text: str) -> None:
        """Record a warning, for example on something that costs speed."""
        self.module.warnings.setdefault(text)

    def fail(self, why: str) -> NoReturn:
        raise Failure(self.operation, why)


class Failure(Exception):
    """An operation cannot be read, because of what is at ``location`` if that is another. Its line is added later."""

    def __init__(self, operation: ir.Operation, why: str, location: ir.Location | None = None) -> None:
        super().__init__(why)
        self.operation = operation
        self.location = location


class AlreadyPartitioned(Failure):
    """An operation belongs to the program of one device, but the program is being read as one for all devices."""

    def __init__(self, operation: ir.Operation, where: str = "") -> None:
        super().__init__(
            operation,
            f"belongs in a program that is already partitioned{where}; load the program for all devices, with "
            "shardings or manual regions, instead",
        )


class BodyReader:
    """Reads the blocks of one function under the current trace."""

    def __init__(self, module: ModuleFacts) -> None:
        self.module = module
        self.env: dict[ir.Value, Any] = {}

    def block(self, block: ir.Block, args: Sequence[Any]) -> list[Any]:
        """The values that a block returns for the arguments ``args``."""
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
                raise Failure(operation, f"has {counted(len(results), 'result')}, its reading rule gave {len(outs)}")
            for result, out in zip(results, outs):
                self._check_type(operation, result.type, out)
            env.update(zip(results, outs))
        return []

    def _check_type(self, operation: ir.Operation, declared: ir.Type, out: Any) -> None:
        """Refuse an operation whose result has another type than the program says."""
        if isinstance(out, tuple) or not isinstance(declared, ir.RankedTensorType) or not declared.has_static_shape:
            return
        want, got = self.module.attributes.type(declared), typeof(out)
        if (want.shape, want.dtype) != (got.shape, got.dtype):
            raise Failure(operation, f"has a result of type {want} in the program, but gives {got}")

    def operation(self, operation: ir.Operation, name: str) -> list[Any]:
        """The results of one operation."""
        reader = OperationReader(self, operation, name)
        rule = rule_of(operation, name)
        try:
            outs = read_opaque(reader) if rule is None else _results(rule, reader)
            attributes = () if self.module.per_device else operation.attributes  # compilers leave outdated shardings
            if any(a in attributes for a in _SHARDING_ATTRIBUTES) and not _is_about_sharding(operation, name):
                outs = self._annotate(reader, outs)
            return outs
        except UnsupportedType as error:
            raise Failure(operation, str(error)) from None
        except MeshwrightError as error:
            raise Failure(operation, str(error)) from error
        except (Failure, RecursionError):
            raise
        except Exception as error:  # not checked by MLIR's verifier: huge sizes, attributes of custom calls
            what = " ".join(str(error).split())
            raise Failure(operation, f"cannot be read as it stands: {type(error).__name__}: {what}") from error

    def _annotate(self, reader: OperationReader, outs: list[Any]) -> list[Any]:
        """The results annotated with the operation's shardings, one for each leaf of a tuple."""
        count = sum(1 for _ in leaves(outs))
        shardings = iter(read_sharding(reader.operation.attributes, count, self.module.meshes))

        def annotated(x: Any) -> Any:
            return tuple(map(annotated, x)) if isinstance(x, tuple) else annotate(x, next(shardings))

        return [annotated(x) for x in outs]

    def region(self, region: ir.Region) -> Region:
        """A region as a jaxpr, whose first parameters are the outside values that it uses."""
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


def leaves(values: Sequence[Any]) -> Iterator[Any]:
    """The leaves of nested tuples, in order."""
    for value in values:
        if isinstance(value, tuple):
            yield from leaves(value)
        else:
            yield value


def _is_about_sharding(operation: ir.Operation, name: str) -> bool:
    """Whether an operation is itself an annotation, whose rule reads the sharding."""
    if name != "stablehlo.custom_call":
        return False
    target = operation.attributes["call_target_name"].value
    return target in _ABOUT_SHARDING or target.startswith("xla.sdy.")


def _results(rule: ReadRule, reader: OperationReader) -> list[Any]:
    try:
        out = rule(reader)
    except Unreadable:
        return read_opaque(reader)
    return out if isinstance(out, list) else [out]


def rule_of(operation: ir.Operation, name: str) -> ReadRule | None:
    """The reading rule of an operation; ``mhlo`` operations are read like those of StableHLO and CHLO."""
    rule = READERS.get(name)
    if rule is None and name.startswith("mhlo."):
        rest = name.removeprefix("mhlo.")
        rule = READERS.get(f"stablehlo.{rest}") or READERS.get(f"chlo.{rest}")
    return rule


def read_opaque(reader: Any) -> list[Any]:
    """Keep an operation as an :class:`Opaque` op."""
    if not reader.name.startswith(("stablehlo.", "chlo.", "mhlo.")):
        reader.fail("has no meaning here; expected operations of StableHLO, CHLO, func and sdy")
    regions = [reader.region(i) for i in range(reader.num_regions())]
    if any(region.captured for region in regions):
        reader.fail("has a region that uses values from outside; this form is not supported")
    operands, results = reader.operands, reader.out_avals
    if any(isinstance(x, tuple) for x in (*operands, *results)) or any(reader.tokens()):
        reader.fail("takes or returns a tuple or a token; this form is not supported")
    attributes = reader.attribute_texts()
    side_effect = dict(attributes).get("has_side_effect") == "true"
    op = Opaque(reader.name, attributes, tuple(r.jaxpr for r in regions), tuple(results), side_effect)
    return op.bind(*operands)
