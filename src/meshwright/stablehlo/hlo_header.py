"""The first line of HLO text, which says things about the module that are lost on the way to StableHLO.

They are added to the converted module, in the attributes in which StableHLO programs have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from jaxlib.mlir import ir

from meshwright.stablehlo.hlo import DEVICE_COUNTS
from meshwright.stablehlo.per_device import SCHEDULED

#: attributes with the place of each argument and result of a module whose HLO has tuples of arrays there: the number
#: of the parameter, then the index in its tuple; the index in the tuple of results
PLACES = {"arg_attrs": "meshwright.parameter_places", "res_attrs": "meshwright.result_places"}
_COUNT = re.compile(rf"\b({'|'.join(DEVICE_COUNTS)})=(-?\d+)\b")
_DONORS = re.compile(r"\bbuffer_donor=\{((?:[^{}]|\{[^{}]*\})*)\}")
_DONOR = re.compile(r"\(\s*(\d{1,9})\s*,\s*\{([\d,\s]*)\}")
_FREE = re.compile(r"\ballow_spmd_sharding_propagation_to_(parameters|output)=\{([a-z,\s]*)\}")
_SIDES = {"parameters": "arg_attrs", "output": "res_attrs"}


def declare(module: ir.Module, text: str) -> None:
    """Add to a module what the first line of its HLO text says: numbers of devices, whether a compiler has scheduled
    it, which parameters are donated, and which parameters and results the partitioner must not split."""
    header = next((line for line in text.splitlines() if line.startswith("HloModule")), "")
    with module.context:
        i32 = ir.IntegerType.get_signless(32)
        for name, number in _COUNT.findall(header):
            value = max(-(2**31), min(int(number), 2**31 - 1))  # what no program has is refused where it is read
            module.operation.attributes[DEVICE_COUNTS[name]] = ir.IntegerAttr.get(i32, value)
        if "is_scheduled=true" in header:
            module.operation.attributes[SCHEDULED] = ir.UnitAttr.get()
        main = next((o.operation for o in module.body.operations if _is_main(o.operation)), None)
        if main is None:
            return
        donors, donated = set(_donors(header)), {"jax.buffer_donor": ir.BoolAttr.get(True)}
        places = hlo_places(module, "arg_attrs", len(_types(main, "arg_attrs")))
        _extend(main, "arg_attrs", {n: donated for n, place in enumerate(places) if place in donors})
        if "xla.sdy.meshes" not in text:
            for side, listed in _FREE.findall(header):
                _fix(module, main, _SIDES[side], [word == "true" for word in re.findall("true|false", listed)])


def _is_main(operation: ir.Operation) -> bool:
    return operation.name == "func.func" and operation.attributes["sym_name"].value == "main"


def hlo_places(module: ir.Module, side: str, count: int) -> list[tuple[int, ...]]:
    """The place in HLO of each of ``count`` arguments (its parameter's number, then the index in a tuple), or results
    (the index in the tuple of results)."""
    attributes = module.operation.attributes
    if PLACES[side] in attributes:
        return [tuple(ir.DenseI64ArrayAttr(a)) for a in attributes[PLACES[side]]]
    return [(n,) for n in range(count)]


def _types(main: ir.Operation, side: str) -> Sequence[ir.Type]:
    type_ = ir.FunctionType(main.attributes["function_type"].value)
    return type_.inputs if side == "arg_attrs" else type_.results


def _donors(header: str) -> Iterator[tuple[int, ...]]:
    for number, index in (d for listed in _DONORS.findall(header) for d in _DONOR.findall(listed)):
        yield int(number), *(int(i) for i in index.split(",") if i.strip())


def _fix(module: ir.Module, main: ir.Operation, side: str, free: Sequence[bool]) -> None:
    """Annotate as replicated what has no sharding and must not get one: ``free`` has one entry for each array, one for
    each parameter or member of the result, or one for all."""
    places = hlo_places(module, side, len(_types(main, side)))
    if len(free) == 1:
        free = [free[0]] * len(places)
    elif len(free) != len(places):
        free = [p[0] >= len(free) or free[p[0]] for p in places]
    replicated = {"mhlo.sharding": ir.StringAttr.get("{replicated}")}
    _extend(main, side, {n: replicated for n, f in enumerate(free) if not f})


def _extend(main: ir.Operation, side: str, added: Mapping[int, Mapping[str, ir.Attribute]]) -> None:
    """Give arguments or results further attributes, except for those that they have."""
    if not added:
        return
    given = list(main.attributes[side]) if side in main.attributes else [ir.DictAttr.get()] * len(_types(main, side))
    entries = [{**added.get(n, {}), **{e.name: e.attr for e in old}} for n, old in enumerate(given)]
    main.attributes[side] = ir.ArrayAttr.get([ir.DictAttr.get(e) for e in entries])
