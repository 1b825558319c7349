"""Exported programs with symbolic sizes: ``export(jit(f))(ShapeDtypeStruct(symbolic_shape("b, 3"), "float32"))``.

Layouts, collectives and kernels depend on sizes, so a program is made for each combination of sizes: when it is called
with them, or, for a serialized one, before. What is called for sizes that are not there is refused, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from meshwright.api.arguments import bad_argument
from meshwright.api.export import Exported, deserialize, digest_of
from meshwright.api.shape_dtype import ShapeDtypeStruct, SymbolicStruct
from meshwright.api.symbolic_results import symbolic_shapes
from meshwright.api.tracing import eval_shape
from meshwright.api.trees_as_json import described, tree_of
from meshwright.core import pytree
from meshwright.core.dimensions import SymbolicScope, is_symbolic, parsed_sizes, solved
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, ImportProgramError, ShapeError
from meshwright.ir.tracing import typeof

MAGIC = b"meshwright.export.symbolic\n"
_FORMAT = 1
#: the largest size that is tried when a program is exported
_MOST_TRIED = 24


def is_symbolic_dim(p: Any) -> bool:
    """Whether a size is symbolic."""
    return is_symbolic(p)


def symbolic_shape(
    shape_spec: str | None, *, constraints: Sequence[str] = (), scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """A shape whose sizes may have names, for the types that :func:`export <meshwright.export.export>` is given.

    Args:
      shape_spec: sizes, as in ``"b, 2*b, b + 1, 3"``: made of names, integers, ``+ - * ^``, ``floordiv``, ``mod``,
        ``max`` and ``min``. ``_`` stands for the size at its place in ``like``, ``...`` for all that are left.
      constraints: what is known of them, as ``"b >= 4"`` or ``"mod(b, 2) == 0"``.
      scope: where names are those of another call; it then has the constraints.

    Raises:
      ShapeError: it does not parse, or does not fit ``like``. ArgumentError: constraints and a scope are given.

    Example:
      >>> mw.export.symbolic_shape("b, 2*b + 1, 3")
      (b, 2*b + 1, 3)
    """
    return parsed_sizes(shape_spec if shape_spec is not None else "...", _scope(constraints, scope), like)


def _scope(constraints: Sequence[str], scope: SymbolicScope | None) -> SymbolicScope:
    if scope is not None and constraints:
        raise ArgumentError("symbolic sizes: constraints are those of the scope; give them to SymbolicScope")
    return SymbolicScope(constraints) if scope is None else scope


def symbolic_args_specs(
    args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None
) -> Any:
    """The types of arguments with symbolic shapes: a tree of ``ShapeDtypeStruct`` like ``args``.

    Args:
      shapes_specs: one for all arrays, or a tree of them that is a prefix of ``args``; None leaves shapes as they are.

    Raises:
      ShapeError: a shape does not parse, or does not fit its argument.

    Example:
      >>> mw.export.symbolic_args_specs((mnp.ones((2, 3)), mnp.ones(3)), ("b, _", None))
      (ShapeDtypeStruct(shape=(b, 3), dtype=float32), ShapeDtypeStruct(shape=(3,), dtype=float32))
    """
    where = _scope(constraints, scope)
    leaves, tree = pytree.flatten(args)
    specs = pytree.broadcast_prefix(
        shapes_specs, args, "symbolic_args_specs: shapes_specs", is_leaf=lambda x: x is None
    )
    shapes = (parsed_sizes("..." if s is None else s, where, typeof(x).shape) for s, x in zip(specs, leaves))
    return pytree.unflatten(tree, [ShapeDtypeStruct(s, typeof(x).dtype) for s, x in zip(shapes, leaves)])


class SymbolicExported:
    """An exported program with symbolic sizes. :meth:`call` makes the program for the sizes that it is called with.

    ``serialize`` writes those that were made: by calls, or by :meth:`at`. Read again, it can be called with these.
    """

    def __init__(
        self, fun_name: str, in_tree: Any, out_tree: Any, platforms: tuple[str, ...], specs: Sequence[Any],
        scope: SymbolicScope, make: Callable[[dict[str, int]], Exported] | None, made: dict[Any, Exported],
        results: Callable[[], Sequence[ShapeDtypeStruct]],
    ) -> None:  # fmt: skip
        self.fun_name, self.in_tree, self.out_tree, self.platforms = fun_name, in_tree, out_tree, platforms
        #: the types of the arguments, flattened
        self.in_avals = tuple(specs)
        self._scope, self._make, self._made, self._results = scope, make, made, results

    @staticmethod
    def of(
        export: Callable[..., Exported], fun: Any, platforms: tuple[str, ...], args: Any, kwargs: Any
    ) -> SymbolicExported:
        """Export ``fun`` for types of which some have symbolic sizes.

        Raises:
          ArgumentError: names come from several scopes, or no small sizes satisfy the constraints.
        """
        specs, tree = pytree.flatten((args, kwargs))
        sizes = [d for x in specs if isinstance(x, SymbolicStruct) for d in x.shape if is_symbolic(d)]
        scope = sizes[0].scope
        if any(d.scope is not scope for d in sizes):
            raise ArgumentError(
                f"export: {sizes[0]} and other sizes are of several scopes; pass scope= to symbolic_shape, or use "
                "symbolic_args_specs for all arguments"
            )

        def given(at: Mapping[str, int]) -> Any:
            return pytree.unflatten(tree, [x.at(at) if isinstance(x, SymbolicStruct) else x for x in specs])

        def make(at: dict[str, int]) -> Exported:
            called, named = given(at)
            return export(*called, **named)

        def outs(at: Mapping[str, int]) -> Any:
            called, named = given(at)
            return eval_shape(fun, *called, **named)

        def results() -> list[ShapeDtypeStruct]:
            shapes = symbolic_shapes(fun.name, sizes, scope, lambda at: [x.shape for x in pytree.leaves(outs(at))])
            return [ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, pytree.leaves(some))]

        some = outs(_some_sizes(sizes, scope))
        types = [x if isinstance(x, SymbolicStruct) else typeof(x) for x in specs]
        tree_of_results = pytree.structure(some)
        return SymbolicExported(fun.name, tree, tree_of_results, platforms, types, scope, make, {}, results)

    @cached_property
    def out_avals(self) -> tuple[ShapeDtypeStruct, ...]:
        """The types of the results, flattened, with symbolic sizes.

        Raises:
          ArgumentError: their sizes are no polynomials of those of the arguments, or are not known.
        """
        return tuple(self._results())

    @property
    def nr_devices(self) -> int:
        """The number of devices that the programs are for."""
        made = next(iter(self._made.values()), None)
        exprs = [d for x in self.in_avals for d in x.shape if is_symbolic(d)]
        return (made or self.at(**_some_sizes(exprs, self._scope))).nr_devices

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes for which there is a program."""
        return [dict(key) for key in self._made]

    def at(self, **sizes: int) -> Exported:
        """The program for sizes of all names.

        Raises:
          ShapeError: a constraint does not hold. ArgumentError: it was read, and has no program for them.
        """
        if (broken := self._scope.broken_by(sizes)) is not None:
            raise ShapeError(f"{self.fun_name!r}: the constraint {broken} does not hold for {sizes}")
        key = tuple(sorted(sizes.items()))
        if key not in self._made:
            if self._make is None:
                there = "; ".join(", ".join(f"{n} = {s}" for n, s in each.items()) for each in self.sizes) or "none"
                raise ArgumentError(
                    f"{self.fun_name!r} was serialized for sizes {there}, and is asked for {sizes}; call it with these "
                    "sizes, or .at(...) them, before it is serialized"
                )
            self._made[key] = self._make(dict(sizes))
        made = self._made[key]
        if (types := self.__dict__.get("out_avals")) is not None:
            expected = [t.at(sizes).shape if isinstance(t, SymbolicStruct) else t.shape for t in types]
            if expected != [a.shape for a in made.out_avals]:
                raise ArgumentError(f"{self.fun_name!r}: for {sizes}, results are not of the shapes of out_avals")
        return made

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program on arguments with the trees and types it was exported for, of any sizes that fit.

        Raises:
          ArgumentError: other trees, or sizes for which there is no program. ShapeError: other types or sizes.
        """
        flat, tree = pytree.flatten((args, kwargs))
        if tree != self.in_tree:
            raise ArgumentError(
                f"{self.fun_name!r} was exported for arguments {pytree.show(self.in_tree)}, got {pytree.show(tree)}; "
                "call it with these, or export it again"
            )
        paths = [*pytree.paths(args), *pytree.paths(kwargs)]
        pairs = []
        for x, spec, path in zip(flat, self.in_avals, paths):
            try:
                got = typeof(x)
            except ArgumentTypeError:
                raise bad_argument(self.fun_name, flat, paths) from None
            if got.ndim != len(spec.shape) or got.dtype != spec.dtype:
                raise ShapeError(
                    f"{self.fun_name!r}: argument{path} is {got}, expected shape {spec.shape} and dtype {spec.dtype}"
                )
            pairs += [
                (d, n, f"{self.fun_name!r}: size {i} of argument{path}")
                for i, (d, n) in enumerate(zip(spec.shape, got.shape))
            ]
        return self.at(**solved(pairs, self._scope)).call(*args, **kwargs)

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The programs that have been made as bytes, for ``deserialize``.

        Raises:
          ArgumentError: there are none; or a tree has containers other than tuples, lists, dicts and None.
        """
        if not self._made:
            raise ArgumentError(
                f"serialize: {self.fun_name!r} has symbolic sizes, and a program for each; say which to write: call it "
                "with such arguments, or use .at(b=8), before"
            )
        blobs = [bytes(e.serialize()) for e in self._made.values()]
        head = {
            "format": _FORMAT, "name": self.fun_name, "platforms": self.platforms, "constraints": self._scope.texts,
            "in": described(self.in_tree, self.fun_name), "out": described(self.out_tree, self.fun_name),
            "types": [[list(map(str, x.shape)), str(x.dtype)] for x in self.in_avals],
            "sizes": list(map(dict, self._made)), "lengths": list(map(len, blobs)), "results": self._written_results(),
        }  # fmt: skip
        text = json.dumps({**head, "sha256": digest_of(head, b"".join(blobs))})
        return bytearray(MAGIC + text.encode() + b"\n" + b"".join(blobs))

    def _written_results(self) -> list[Any] | None:
        try:
            return [[list(map(str, x.shape)), str(x.dtype)] for x in self.out_avals]
        except ArgumentError:
            return None

    def has_vjp(self) -> bool:
        """Whether it can be differentiated: always."""
        return True

    def vjp(self) -> SymbolicExported:
        """The exported VJP: a function of the arguments and of cotangents of the results that returns cotangents of the
        arguments, all flat.

        Raises:
          ArgumentError: the sizes of the results are not known (see :attr:`out_avals`).
        """
        types = self.in_avals + self.out_avals
        ins, outs = pytree.structure((tuple(types), {})), pytree.structure(self.in_avals)

        def results() -> list[ShapeDtypeStruct]:
            return [ShapeDtypeStruct(x.shape, x.dtype) for x in self.in_avals]

        name = f"{self.fun_name}_vjp"
        return SymbolicExported(
            name, ins, outs, self.platforms, types, self._scope, lambda at: self.at(**at).vjp(), {}, results
        )

    def __repr__(self) -> str:
        types = ", ".join(f"{x.dtype}{list(x.shape)}" for x in self.in_avals)
        return f"Exported({self.fun_name!r}, ({types}), {counted(len(self._made), 'size')}, platforms={self.platforms})"


def _some_sizes(exprs: Sequence[Any], scope: SymbolicScope) -> dict[str, int]:
    """Small sizes for which constraints hold and no dimension is empty, different ones if possible.

    Raises:
      ArgumentError: none are found.
    """
    names = sorted(set().union(*(e.variables for e in exprs)))

    def tried() -> Iterator[tuple[int, ...]]:
        for first in range(2, _MOST_TRIED):
            yield tuple(range(first, first + len(names)))
        yield from product(range(1, _MOST_TRIED), repeat=min(len(names), 3)) if len(names) <= 3 else ()

    for values in tried():
        sizes = dict(zip(names, values))
        if scope.broken_by(sizes) is None and all(e.evaluate(sizes) > 0 for e in exprs):
            return sizes
    raise ArgumentError(
        f"export: no sizes below {_MOST_TRIED} of {', '.join(names)} satisfy {', '.join(scope.texts)} with dimensions "
        "that are not empty; export for numbers"
    )


def read(data: bytes) -> SymbolicExported:
    """Read what :meth:`SymbolicExported.serialize` wrote.

    Raises:
      ImportProgramError: it is damaged, or of a newer format.
    """
    line, _, rest = data[len(MAGIC) :].partition(b"\n")
    try:
        head = json.loads(line)
        whole = head.get("format") == _FORMAT and head.pop("sha256", "") == digest_of(head, rest)
    except (ValueError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ImportProgramError(
            f"deserialize: the program is damaged, or not of format {_FORMAT}: its checksum is not right; write it "
            "again"
        )
    scope = SymbolicScope(head["constraints"])
    specs = [ShapeDtypeStruct(parsed_sizes(",".join(shape), scope), dtype) for shape, dtype in head["types"]]
    made, start = {}, 0
    for sizes, length in zip(head["sizes"], head["lengths"]):
        made[tuple(sorted(sizes.items()))] = deserialize(rest[start : start + length])
        start += length
    ins, outs = (pytree.structure(tree_of(head[side])) for side in ("in", "out"))

    def results() -> list[ShapeDtypeStruct]:
        if head.get("results") is None:
            raise ArgumentError(f"{head['name']!r}: the shapes of its results are not known; ask .at(...).out_avals")
        return [ShapeDtypeStruct(parsed_sizes(",".join(shape), scope), dtype) for shape, dtype in head["results"]]

    return SymbolicExported(head["name"], ins, outs, tuple(head["platforms"]), specs, scope, None, made, results)
