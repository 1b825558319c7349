"""The integers of a per-device program that depend on nothing but the device's position on the mesh.

Programs that were partitioned elsewhere, and functions written for one device, compute offsets of tiles from
``axis_index`` or read them from tables. Each such scalar is evaluated for all positions at once, as an array with one
dimension per axis of the mesh, of size 1 where the value does not depend on that axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import reduce
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ops.collective.base import AxisIndex, Collective
from meshwright.ops.control.regions import OPERAND, PARAMETER
from meshwright.ops.indexing.dynamic_slice import DynamicSlice
from meshwright.sharding import AbstractMesh

#: constants with more elements are no tables of offsets
LARGEST_TABLE = 1 << 16
#: integers that are this large are no offsets
_LARGEST = 1 << 31
#: by name of op
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "lt": np.less,
    "clamp": lambda low, x, high: np.clip(x, low, high), "convert_element_type": lambda x: x,
    "select_n": lambda which, *xs: reduce(lambda x, k: np.where(which >= k, xs[k], x), range(len(xs)), xs[0]),
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Integers by variable: ``values`` of scalars at all positions, and the elements of constant ``tables``."""

    values: dict[Any, np.ndarray] = field(default_factory=dict)
    tables: dict[Any, np.ndarray] = field(default_factory=dict)


class Positions:
    """The known integers of one jaxpr on ``mesh``; ``given`` are those of its parameters."""

    def __init__(self, jaxpr: ClosedJaxpr, mesh: AbstractMesh, given: Known) -> None:
        self.mesh = mesh
        self.values = dict(given.values)
        self.tables = dict(given.tables)
        for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            if _is_integer(var) and math.prod(var.aval.shape) <= LARGEST_TABLE:
                self._note(var, known_values(constant))
        for eqn in jaxpr.jaxpr.eqns:
            if len(eqn.outvars) == 1 and _is_integer(eqn.outvars[0]) and math.prod(eqn.outvars[0].aval.shape) == 1:
                value = self._computed(eqn)
                if value is not None and _fits(value, eqn.outvars[0].aval.dtype):
                    self.values[eqn.outvars[0]] = value

    def of(self, atom: Atom) -> np.ndarray | None:
        """The values of a scalar; None if they are not known."""
        if isinstance(atom, Literal):
            number = np.asarray(atom.val)
            return self._everywhere(number) if _is_integer(atom) and _fits(number, number.dtype) else None
        return self.values.get(atom)

    def axes_of_tiles(self, start: Atom, tile: int, size: int) -> tuple[str, ...] | None:
        """The axes along which ``start`` is where a device's own tile begins, if a dimension of ``size`` is split
        into tiles along them."""
        value = self.of(start)
        if value is None or tile == 0:
            return None
        steps = {
            axis: int(np.take(value, 1, k).flat[0] - value.flat[0])
            for k, axis in enumerate(self.mesh.axis_names)
            if value.shape[k] > 1
        }
        axes = tuple(sorted((a for a in steps if steps[a]), key=lambda a: -steps[a]))
        if not axes or tile * math.prod(map(self.mesh.axis_size, axes)) != size:
            return None
        offsets, count = self._everywhere(np.int64(0)), tile
        for axis in reversed(axes):
            offsets = offsets + self._index((axis,)) * count
            count *= self.mesh.axis_size(axis)
        return axes if (value == offsets).all() else None

    def inside(self, eqn: JaxprEqn) -> Iterator[Known]:
        """For each region of an equation, what is known of its parameters: those that are operands as they are."""
        regions = eqn.op.regions()
        known = [Known() for _ in regions]
        for first, *rest in eqn.op.ties() if regions else ():  # type: ignore[attr-defined]
            if first.side != OPERAND or any(end.side != PARAMETER or end.stacked for end in rest):
                continue
            atom = eqn.invars[first.index]
            for end in rest:
                parameter = regions[end.body].jaxpr.invars[end.index]
                if (value := self.of(atom)) is not None:
                    known[end.body].values[parameter] = value
                elif isinstance(atom, Var) and atom in self.tables:
                    known[end.body].tables[parameter] = self.tables[atom]
        yield from known

    def _note(self, var: Var, values: np.ndarray | None) -> None:
        if values is not None and _fits(values, values.dtype):
            if values.size == 1:
                self.values[var] = self._everywhere(values)
            else:
                self.tables[var] = values.astype(np.int64)

    def _everywhere(self, number: Any) -> np.ndarray:
        return np.full((1,) * len(self.mesh.axis_names), int(np.asarray(number).reshape(())), np.int64)

    def _index(self, axes: Sequence[str]) -> np.ndarray:
        """The position along several axes of the mesh taken as one."""
        total = self._everywhere(np.int64(0))
        for axis in axes:
            k, count = self.mesh.axis_names.index(axis), self.mesh.axis_size(axis)
            shape = [1] * len(self.mesh.axis_names)
            shape[k] = count
            total = total * count + np.arange(count).reshape(shape)
        return total

    def _computed(self, eqn: JaxprEqn) -> np.ndarray | None:
        op = eqn.op
        if isinstance(op, AxisIndex):
            return self._index(op.axes) if set(op.axes) <= set(self.mesh.axis_names) else None
        if isinstance(op, DynamicSlice):
            table, index = self.tables.get(eqn.invars[0]), self.of(eqn.invars[1])
            one_dimensional = table is not None and index is not None and table.ndim == 1
            return table[np.clip(index, 0, len(table) - 1)] if one_dimensional else None  # type: ignore[arg-type, index]
        if op.name not in _BY_NUMPY and (not op.moves_only or isinstance(op, Collective)):
            return None
        known = [value for a in eqn.invars if (value := self.of(a)) is not None]
        if len(known) < len(eqn.invars):
            return None
        return _BY_NUMPY[op.name](*known) if op.name in _BY_NUMPY else known[0] if len(known) == 1 else None


def _is_integer(atom: Any) -> bool:
    return isinstance(atom.aval, ShapedArray) and atom.aval.dtype.kind in "biu"


def _fits(values: np.ndarray, dtype: np.dtype) -> bool:
    """Whether integers are small, and the same in ``dtype``, in which others wrap around."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool((values >= max(low, -_LARGEST + 1)).all() and (values <= min(high, _LARGEST - 1)).all())
