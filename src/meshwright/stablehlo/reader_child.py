"""The program of the child process that parses foreign programs (see :mod:`meshwright.stablehlo.reader`).

It imports only ``jaxlib``, from the folders in its arguments. Requests come on the standard input: a line of JSON,
followed by the number of bytes that it states. Answers are written to the standard output in the same form.
"""

from __future__ import annotations

import io
import json
import os
import resource
import runpy
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path += sys.argv[1:]

from jaxlib import _hlo, _jax
from jaxlib import xla_client as xc
from jaxlib.mlir import ir


def _beside(file: str, name: str) -> Any:
    """What a file beside this one defines, without the package that it is part of."""
    return runpy.run_path(str(Path(__file__).with_name(file)))[name]


_context = _beside("dialects.py", "new_context")
_is_combined, _is_joined = _beside("hlo_combined.py", "is_combined"), _beside("hlo_async.py", "is_joined")

#: parts of HLO text that StableHLO cannot always express: device groups over the axes of a mesh, updates of
#: asynchronous operations, donated parameters, and the tiles of TPUs, whose operations convert
_UNSAID = "replica_groups=mesh[", "-update(", "buffer_donor={", ":T("


# --- forms of requests --------------------------------------------------------------------------------------
def _stablehlo(data: bytes) -> bytes:
    return _bytecode(data.decode())


def _from_bytecode(data: bytes) -> bytes:
    return _bytecode(_jax.mlir.mhlo_to_stablehlo(data))


def _from_proto(data: bytes) -> bytes:
    computation = _hlo.XlaComputation(data)
    shape = computation.program_shape()
    parameters = [p for n, s in enumerate(shape.parameter_shapes()) for p in _places(s, (n,))]
    places = {"parameter": parameters, "result": list(_places(shape.result_shape(), ()))}
    return _bytecode(_jax.mlir.xla_computation_to_mlir_module(computation), places)


def _places(shape: Any, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The places of the arrays in a shape, which may be a tuple; that of the shape itself is ``place``."""
    if not shape.is_tuple():
        yield place
        return
    for number, member in enumerate(shape.tuple_shapes()):
        yield from _places(member, (*place, number))


def _unsaid_text(data: bytes) -> bytes:
    """The HLO text of a proto that StableHLO cannot fully express; empty for any other."""
    module = _hlo.XlaComputation(data).get_hlo_module()
    text = module.to_string(_printed(constants=False))
    if not any(word in text for word in _UNSAID) and not _is_combined(text) and not _is_joined(text):
        return b""
    return module.to_string(_printed(constants=True)).encode()


def _printed(constants: bool) -> Any:
    options = _hlo.HloPrintOptions()
    options.print_large_constants = constants
    return options


def _from_hlo_text(data: bytes) -> bytes:
    return _from_proto(_hlo.hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto())


def _sharding(data: bytes) -> bytes:
    """The text of a GSPMD sharding, from its proto."""
    proto = xc.OpSharding()
    proto.ParseFromString(data)
    return str(xc.HloSharding.from_proto(proto)).encode()


def _names(data: bytes) -> bytes:
    """Pass all names of a module through the bindings, which crash on some; returns nothing."""
    module = ir.Module.parse(data, _context())
    for operation in _operations(module.operation):
        _see_location(operation.location)
        for name in operation.attributes:
            try:
                attribute = operation.attributes[name]
            except TypeError:  # no Python object stands for complex constants, which have no names
                continue
            _see_attribute(attribute)
        for block in (b for region in operation.regions for b in region.blocks):
            for argument in block.arguments:
                _see_location(argument.location)
    return b""


FORMS = {
    "stablehlo": _stablehlo, "bytecode": _from_bytecode, "proto": _from_proto, "hlo": _from_hlo_text,
    "unsaid": _unsaid_text, "sharding": _sharding, "names": _names,
}  # fmt: skip


# --- modules ------------------------------------------------------------------------------------------------
def _bytecode(source: str | bytes, places: Mapping[str, Sequence[tuple[int, ...]]] | None = None) -> bytes:
    """Parse and verify a module; returns bytecode. Texts that the parent process will parse are parsed here first.

    ``places`` are those in HLO of the module's parameters and results, and noted where there are tuples in tuples, or
    tuples of parameters.
    """
    context = _context()
    module = ir.Module.parse(source, context)
    if _calls_for_sizes(module):
        module = ir.Module.parse(_refined(module), context)
    for side, found in (places or {}).items():
        if any(len(place) > 1 for place in found):
            entries = [ir.DenseI64ArrayAttr.get(place, context) for place in found]
            module.operation.attributes[f"meshwright.{side}_places"] = ir.ArrayAttr.get(entries, context)
    out = io.BytesIO()
    module.operation.write_bytecode(file=out)
    if b"xla.sdy." in out.getvalue():
        _parse_shardy(module, context)
    return out.getvalue()


def _calls_for_sizes(module: ir.Module) -> bool:
    """Whether the entry function's sizes are known, and other functions are written for any sizes."""
    functions = [f.operation for f in module.body.operations if f.operation.name == "func.func"]
    kinds = {f.attributes["sym_name"].value: _is_sized(f) for f in functions}
    return kinds.get("main", False) and not all(kinds.values())


def _is_sized(function: ir.Operation) -> bool:
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return all(t.has_static_shape for t in type_.inputs if isinstance(t, ir.ShapedType))


def _refined(module: ir.Module) -> bytes:
    """The module with the sizes of the entry function in all others, which JAX leaves to XLA in calls of exports."""
    out = io.BytesIO()
    module.operation.write_bytecode(file=out)
    refined: bytes = _jax.mlir.refine_polymorphic_shapes(
        out.getvalue(), enable_shape_assertions=True, validate_static_shapes=False, enable_shardy=True
    )
    return refined


def _parse_shardy(module: ir.Module, context: ir.Context) -> None:
    """Parse Shardy's attributes, which are texts in the frontend attributes of HLO."""
    seen: set[str] = set()
    for operation in _operations(module.operation):
        for holder in _attribute_lists(operation):
            entries = holder["mhlo.frontend_attributes"] if "mhlo.frontend_attributes" in holder else ()
            seen.update(ir.StringAttr(e.attr).value for e in entries if e.name.startswith("xla.sdy."))
    for text in seen - {""}:  # the empty text, MLIR (jaxlib 0.10.2) does not survive
        try:
            ir.Attribute.parse(text, context)
        except ir.MLIRError:
            continue


def _attribute_lists(operation: ir.Operation) -> Iterator[Any]:
    yield operation.attributes
    for name in ("arg_attrs", "res_attrs"):
        if name in operation.attributes:
            yield from operation.attributes[name]


def _operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    pending = [operation]
    while pending:
        here = pending.pop()
        yield here
        pending += [o.operation for region in here.regions for block in region.blocks for o in block.operations]


def _see_location(location: ir.Location) -> None:
    pending = [location]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.NameLoc):
            here.name_str.encode()
            pending.append(here.child_loc)
        elif isinstance(here, ir.CallSiteLoc):
            pending += [here.callee, here.caller]
        elif isinstance(here, ir.FusedLoc):
            pending += here.locations
        elif isinstance(here, ir.FileLineColLoc):
            here.filename.encode()


def _see_attribute(attribute: ir.Attribute) -> None:
    pending = [attribute]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.DictAttr):
            for entry in here:
                entry.name.encode()
                pending.append(entry.attr)
        elif isinstance(here, ir.ArrayAttr):
            pending += list(here)


# --- requests -----------------------------------------------------------------------------------------------
def _refusal(error: Exception) -> list[list[str]]:
    """The location and message of each error."""
    if isinstance(error, ir.MLIRError):
        return [[str(d.location), str(d.message)] for d in error.error_diagnostics[:3]]
    return [["", str(error) or type(error).__name__]]


def _answer(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        return {"refused": None}, FORMS[request["form"]](data)
    except Exception as error:
        return {"refused": _refusal(error)}, b""


def _limit(seconds: int, memory: int) -> None:
    """Limit this process to ``seconds`` more, and to ``memory`` bytes more than it has."""
    signal.alarm(seconds)
    try:
        with open("/proc/self/statm") as file:
            has = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (OSError, ValueError):  # the system does not support one of them
        return


def main() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that the output of libraries does not mix with answers
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request["bytes"])
        _limit(request["seconds"], request["memory"])
        answer, result = _answer(request, data)
        signal.alarm(0)
        answers.write(json.dumps({**answer, "bytes": len(result)}).encode() + b"\n" + result)
        answers.flush()


if __name__ == "__main__":
    main()
