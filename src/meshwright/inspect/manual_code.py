"""The per-device program as Python code: a ``shard_map`` that can be pasted, run and edited by hand.

Common ops are written as functions of ``lax``, and all others as op classes with their parameters. Bodies of loops and
branches become functions. If only a part of a mesh axis is used, the parts become axes of the generated mesh.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import itertools
import keyword
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshwright import lax
from meshwright.api.partitioned import PartitionedProgram
from meshwright.api.stages import Lowered
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import is_wide
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ops.collective.all_reduce import Pmax, Pmin, Psum, PsumMasked
from meshwright.ops.collective.base import AxisIndex, Collective
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.inside import collectives_in
from meshwright.ops.collective.tiles import AllGather, ReduceScatter
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import mul
from meshwright.ops.products.dot import DotGeneral
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, ReduceSum
from meshwright.ops.shape.rearrange import Reshape, Transpose
from meshwright.sharding import AbstractMesh, Layout

#: constants of up to this many elements are written as numbers
_FEW = 64


class ManualProgram(str):
    """Python code that defines a function ``program``; see :meth:`function`."""

    __slots__ = ()

    def function(self) -> Callable[..., Any]:
        """Run the code and return the function ``program``."""
        space: dict[str, Any] = {}
        exec(compile(self, "<manual program>", "exec"), space)
        return space["program"]


def manual_program(program: Lowered | PartitionedProgram) -> ManualProgram:
    """The partitioned form of a program as Python code: a ``shard_map`` of the per-device program.

    The code defines a function ``program`` from the flat arguments to a tuple of results.

    Raises:
      ArgumentTypeError: ``program`` is not a lowered or partitioned program.
      ArgumentError: it contains Python functions, which cannot be written as code.
      MeshError: none of its shardings names a mesh.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))
      >>> code = mw.manual_program(mw.jit(lambda x: x.sum(), in_shardings=split).lower(mnp.arange(8.0)))
      >>> print(code[code.index("def device"):code.index("\\n\\n\\nmapped")])  # doctest: +ELLIPSIS
      def device(a):  # f32[2]
          b = lax.reduce_sum(a, (0,))  # f32[]
          c = lax.psum(b, ('x',))  # f32[]: the result of reduce_sum ... and output 0 has to be whole
          return (c,)
      >>> code.function()(mnp.arange(8.0))
      (Array(28., dtype=float32),)
    """
    part = program.partition() if isinstance(program, Lowered) else program
    if not isinstance(part, PartitionedProgram):
        raise ArgumentTypeError(
            f"manual_program: expected a lowered or partitioned program, got {program!r}; call .lower(*args) first"
        )
    return ManualProgram(_Writer(part).text())


class _Writer:
    def __init__(self, part: PartitionedProgram) -> None:
        self.part = part
        self.mesh = part.mesh.abstract_mesh
        self.axes = _Axes(self.mesh, part)
        self.names = _letters()
        self.bodies = itertools.count(1)
        self.imports: set[tuple[str, str]] = set()

    def text(self) -> str:
        jaxpr = self.part.jaxpr
        device = "\n".join(self.function("device", jaxpr, ""))
        ins = [self.spec(lo) for lo in self.part.part.in_layouts]
        outs = [self.spec(lo) for lo in self.part.part.out_layouts]
        wide = any(is_wide(a.aval.dtype) for e in all_eqns(jaxpr.jaxpr) for a in (*e.invars, *e.outvars))
        head = [
            f'"""{self.part.name!r} on {self.mesh}, as every device runs it."""',
            "import base64",
            "",
            "import numpy as np",
            "",
            "import meshwright as mw",
            "import meshwright.numpy as mnp",
            "from meshwright import PartitionSpec as P",
            "from meshwright import lax",
            *sorted(f"from {module} import {name}" for module, name in self.imports),
            "",
            *(['mw.config.update("enable_x64", True)'] if wide else []),
            f"mesh = mw.make_mesh({self.axes.sizes}, {self.axes.names})",
        ]
        tail = [
            f"mapped = mw.shard_map(device, mesh=mesh, in_specs={_tuple(ins)}, out_specs={_tuple(outs)}, "
            "check_vma=False)",
            "",
            "",
            *self.whole(),
        ]
        return "\n".join([*head, "", "", device, "", "", *tail, ""])

    def whole(self) -> list[str]:
        """The function of global arrays, which pads dimensions that the mesh does not divide, and crops the results."""
        source, part = self.part.part.source, self.part.part
        names = [f"x{i}" for i in range(len(part.in_layouts))]
        pads = [_pad(n, a, lo, self.mesh) for n, a, lo in zip(names, source.in_avals, part.in_layouts)]
        cuts = [_cut(f"ys[{i}]", a, lo, self.mesh) for i, (a, lo) in enumerate(zip(source.out_avals, part.out_layouts))]
        return [
            "@mw.jit",
            f"def program({', '.join(names)}):",
            f"    ys = mapped({', '.join(pads)})",
            f"    return {_tuple(cuts)}",
        ]

    def spec(self, layout: Layout) -> str:
        entries = [self.axes.translated(atoms) for atoms in layout.dims]
        while entries and not entries[-1]:
            entries.pop()
        return f"P({', '.join('None' if not e else repr(e[0]) if len(e) == 1 else repr(e) for e in entries)})"

    # --- functions ------------------------------------------------------------------------------------------
    def function(self, name: str, jaxpr: ClosedJaxpr, indent: str) -> list[str]:
        inner = jaxpr.jaxpr
        env: dict[Var, str] = {}
        names = [env.setdefault(v, next(self.names)) for v in inner.invars]
        types = ", ".join(str(v.aval) for v in inner.invars)
        lines = [f"{indent}def {name}({', '.join(names)}):" + (f"  # {types}" if types else "")]
        indent += "    "
        for var, value in zip(inner.constvars, jaxpr.consts):
            env[var] = next(self.names)
            lines.append(f"{indent}{env[var]} = {_constant(value)}")
        for eqn in inner.eqns:
            lines += self.equation(eqn, env, indent)
        return [*lines, f"{indent}return {_tuple([self.atom(a, env) for a in inner.outvars])}"]

    def atom(self, atom: Atom, env: dict[Var, str]) -> str:
        return _scalar(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else env[atom]

    def equation(self, eqn: JaxprEqn, env: dict[Var, str], indent: str) -> Iterator[str]:
        args = [self.atom(a, env) for a in eqn.invars]
        op = eqn.op
        if isinstance(op, Collective):
            axes = self.axes.translated(op.axes)
            op = op.over(axes, [self.axes.shape[a] for a in axes])
        lines: list[str] = []
        call = self.call(op, args, lines, indent)
        yield from lines
        outs = [env.setdefault(v, next(self.names)) for v in eqn.outvars]
        left = ", ".join(outs) + ("," if op.multiple_results else "")
        note = f": {eqn.note}" if eqn.note is not None and isinstance(op, Collective) else ""
        types = ", ".join(str(v.aval) for v in eqn.outvars)
        yield f"{indent}{left} = {call}  # {types}{note}" if outs else f"{indent}{call}"

    def call(self, op: Op, args: list[str], lines: list[str], indent: str) -> str:
        given = ", ".join(args)
        if (public := _PUBLIC.get(id(op))) is not None:
            return f"lax.{public}({given})"
        if isinstance(op, Elementwise) and not dataclasses.fields(op):
            return f"{self.instance(op)}({given})"
        spelled = _SPELLED.get(type(op))
        if spelled is not None and (text := spelled(op, *args)) is not None:
            return text
        return f"{self.value(op, lines, indent)}.bind({given})"

    def instance(self, op: Op) -> str:
        """The expression for an op without parameters: the module's instance of it, or a new one."""
        module = type(op).__module__
        attribute = next((name for name, value in vars(sys.modules[module]).items() if type(value) is type(op)), None)
        if attribute is None:
            return f"{self.value(op, [], '')}.bind"
        self.imports.add((module, f"{attribute} as {op.name}_op"))
        return f"{op.name}_op"

    def value(self, x: Any, lines: list[str], indent: str) -> str:
        """The expression for a parameter of an op.

        Raises:
          ArgumentError: it cannot be written as code, for example a Python function.
        """

        def each(xs: Any) -> list[str]:
            return [self.value(v, lines, indent) for v in xs]

        if x is None or (isinstance(x, (bool, int, str, bytes)) and not isinstance(x, enum.Enum)):
            return repr(x)
        if isinstance(x, (float, complex)):
            return _number(x)
        if isinstance(x, np.dtype):
            return f"mnp.dtype({x.name!r})"
        if isinstance(x, ClosedJaxpr):
            return self.body(x, lines, indent)
        if isinstance(x, enum.Enum):
            return f"{self.imported(type(x))}.{x.name}"
        if isinstance(x, (tuple, list)):
            fields = each(x)
            if hasattr(x, "_fields"):
                return f"{self.imported(type(x))}({', '.join(fields)})"
            return _tuple(fields) if isinstance(x, tuple) else f"[{', '.join(fields)}]"
        if isinstance(x, frozenset):
            return f"frozenset({_tuple(each(sorted(x)))})"
        if isinstance(x, ShapedArray):
            self.imports.add(("meshwright.core.avals", "ShapedArray"))
            return f"ShapedArray({x.shape}, mnp.dtype({x.dtype.name!r}))"
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            fields = [
                f"{f.name}={self.value(getattr(x, f.name), lines, indent)}" for f in dataclasses.fields(x) if f.init
            ]
            return f"{self.imported(type(x))}({', '.join(fields)})"
        raise ArgumentError(
            f"manual_program: {self.part.name!r} has {x!r} in an op, which cannot be written as code; take it out of "
            "the program, or read part.as_text()"
        )

    def imported(self, kind: type) -> str:
        if kind.__name__ != kind.__qualname__ or not kind.__module__.startswith("meshwright."):
            raise ArgumentError(
                f"manual_program: {self.part.name!r} has a {kind.__qualname__}, which has no name in a module"
            )
        self.imports.add((kind.__module__, kind.__name__))
        return kind.__name__

    def body(self, jaxpr: ClosedJaxpr, lines: list[str], indent: str) -> str:
        name = f"body{next(self.bodies)}"
        lines += self.function(name, jaxpr, indent)
        types = ", ".join(f"mw.ShapeDtypeStruct({a.shape}, {a.dtype.name!r})" for a in jaxpr.in_avals)
        return f"mw.make_jaxpr({name})({types})"


class _Axes:
    """The axes of the generated mesh: an axis of which only parts are used is replaced by its parts."""

    def __init__(self, mesh: AbstractMesh, part: PartitionedProgram) -> None:
        self.mesh = mesh
        used = [mesh.expand(op.axes) for op in collectives_in(part.jaxpr.jaxpr)]
        used += [atoms for lo in (*part.part.in_layouts, *part.part.out_layouts) for atoms in lo.dims]
        cut = {mesh.axis_of(mesh.atoms_of(a)[0]) for atoms in used for a in mesh.coalesce(atoms) if a not in mesh.shape}
        self._new: dict[str, str] = {}  # by atom
        self.shape: dict[str, int] = {}
        for axis, size in mesh.shape.items():
            for i, atom in enumerate(mesh.atoms_of(axis)):
                self._new[atom] = f"{axis}_{i}" if axis in cut else axis
                self.shape[self._new[atom]] = mesh.axis_size(atom) if axis in cut else size
            self.shape.setdefault(self._new[mesh.atoms_of(axis)[0]] if mesh.atoms_of(axis) else axis, size)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape.values())

    def translated(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._new[a] for a in self.mesh.expand(axes)))


# --- texts --------------------------------------------------------------------------------------------------
def _precise(op: DotGeneral, x: str, y: str) -> str:
    kind = op.preferred_element_type
    more = f", precision={op.precision!r}" if op.precision else ""
    more += f", preferred_element_type={kind.name!r}" if kind is not None else ""
    return f"lax.dot_general({x}, {y}, {op.dimension_numbers}{more})"


_SPELLED: dict[type, Callable[..., str | None]] = {
    Psum: lambda op, x: f"lax.psum({x}, {op.axes})",
    PsumMasked: lambda op, x: f"lax.psum({x}, {op.axes})",
    Pmax: lambda op, x: f"lax.pmax({x}, {op.axes})",
    Pmin: lambda op, x: f"lax.pmin({x}, {op.axes})",
    AllGather: lambda op, x: f"lax.all_gather({x}, {op.axes}, axis={op.dimension}, tiled=True)",
    AllToAll: lambda op, x: f"lax.all_to_all({x}, {op.axes}, {op.split_dimension}, {op.concat_dimension}, tiled=True)",
    ReduceScatter: lambda op, x: (
        f"lax.psum_scatter({x}, {op.axes}, scatter_dimension={op.dimension}, tiled=True)"
        if op.reduction in ("sum", "masked")
        else None
    ),
    Ppermute: lambda op, x: f"lax.ppermute({x}, {op.axes}, {list(op.perm)})",
    AxisIndex: lambda op: f"lax.axis_index({op.axes})",
    Reshape: lambda op, x: f"lax.reshape({x}, {op.new_sizes})",
    Transpose: lambda op, x: f"lax.transpose({x}, {op.permutation})",
    BroadcastInDim: lambda op, x: f"lax.broadcast_in_dim({x}, {op.shape}, {op.broadcast_dimensions})",
    ReduceSum: lambda op, x: f"lax.reduce_sum({x}, {op.axes})",
    DotGeneral: _precise,
}


#: ops that correspond directly to functions of ``lax``
_PUBLIC = {id(op): name for name, op in vars(lax).items() if isinstance(op, Elementwise) and name[0] != "_"}
_PUBLIC[id(mul)] = "mul"


_TAKEN = ("lax", "mnp", "mw", "np")


def _letters() -> Iterator[str]:
    for n in itertools.count(1):
        for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=n):
            name = "".join(letters)
            if name not in _TAKEN and not keyword.iskeyword(name):
                yield name


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _number(x: Any) -> str:
    if isinstance(x, complex):
        return f"complex({_number(x.real)}, {_number(x.imag)})"
    text = repr(x)
    return f"np.{text}" if text in ("inf", "nan") else "-np.inf" if text == "-inf" else text


def _scalar(value: Any, dtype: np.dtype) -> str:
    python = np.asarray(value).astype(dtype).item() if dtype.kind in "biufc" else float(value)
    if dtype.kind in "biufc" and hasattr(np, dtype.name):
        return f"np.{dtype.name.replace('bool', 'bool_')}({_number(python)})"
    return f"mnp.array({_number(python)}, {dtype.name!r})"


def _constant(value: Any) -> str:
    array = np.asarray(value)
    if array.size <= _FEW and array.dtype.kind in "biu":
        return f"mnp.array({array.tolist()}, {array.dtype.name!r}).reshape({array.shape})"
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    dtype = f"mnp.dtype({array.dtype.name!r})"
    return f"mnp.array(np.frombuffer(base64.b64decode({data!r}), {dtype}).reshape({array.shape}))"


def _pad(name: str, aval: ShapedArray, layout: Layout, mesh: AbstractMesh) -> str:
    padded = layout.padded_shape(aval.shape, mesh)
    if padded == aval.shape:
        return name
    widths = [(0, p - n) for n, p in zip(aval.shape, padded)]
    return f"mnp.pad({name}, {widths})"


def _cut(name: str, aval: ShapedArray, layout: Layout, mesh: AbstractMesh) -> str:
    if layout.padded_shape(aval.shape, mesh) == aval.shape:
        return name
    return f"{name}[{', '.join(f':{n}' for n in aval.shape)}]"
