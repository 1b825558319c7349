"""Calls of programs made for fixed argument types: checking the arguments against them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.api.shardings import committed_to, common_place, named
from meshwright.api.updated_references import own_values
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.core.float0 import without_float0
from meshwright.core.records import dataclass
from meshwright.core.source import warn
from meshwright.core.words import counted
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    MeshError,
    MeshwrightError,
    MovedArgumentWarning,
    ShapeError,
    ShardingError,
)
from meshwright.ir.program import Argument, Program
from meshwright.ir.tracing import typeof
from meshwright.runtime.array import Array
from meshwright.runtime.eager import check_finite
from meshwright.sharding import Sharding


@dataclass(frozen=True)
class Taken:
    """The arguments that a program takes.

    ``stage`` names the stage of the program for messages (``compiled``), ``shardings`` are those of its arguments
    (None: any), and ``place`` is a sharding over the program's devices (None: arrays may come from any). Of arguments
    that the program does not use, only the types are checked.
    """

    program: Program
    stage: str
    shardings: Sequence[Sharding | None]
    place: Sharding | None

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call. The error names every wrong argument.

        Raises:
          ArgumentTypeError: the structure differs, or an argument is not an array.
          ArgumentError: the number of arrays differs, for a program without a structure.
          ShapeError: an array has another type. MeshError: an array was placed on other devices. ShardingError: an
            array was placed with another sharding.
        """
        flat = self._flat(args, kwargs)
        program = self.program
        places = program.spread([self.place] * len(program.arguments))
        given = zip(flat, program.all_arguments, program.spread(self.shardings), places)
        wrong = [e for x, a, s, p in given if (e := self._mistake(x, a, s, p)) is not None]
        if wrong:
            raise together(program.name, wrong)
        return list(program.picked(flat))

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        name, in_tree = self.program.name, self.program.in_tree
        flat, treedef = pytree.flatten(without_float0((tuple(args), dict(kwargs))))
        if in_tree is None:
            _check_count(repr(name), self.program, flat)
        elif treedef != in_tree:
            raise ArgumentTypeError(
                f"{name!r} was {self.stage} for arguments {_call_text(in_tree)}, got {_call_text(treedef)}; "
                f"it has to be {self.stage} again for other arguments"
            )
        return flat

    def _mistake(
        self, x: Any, argument: Argument, sharding: Sharding | None, place: Sharding | None
    ) -> MeshwrightError | None:
        """The error for one argument; None if it is right."""
        program, name, want = self.program.name, argument.name, argument.aval
        try:
            got = typeof(x)
        except ArgumentTypeError as error:
            return ArgumentTypeError(f"{program!r}: argument {name}: {error}")
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return ShapeError(
                f"{program!r} was {self.stage} for argument {name} of type {want}, got {got}; it has to be "
                f"{self.stage} again for the new type"
            )
        if type(x) is Array and x.committed and place is not None and x.sharding is not sharding:
            try:
                common_place([(f"argument {name}", committed_to(x)), (f"the {self.stage} program", place)], program)
            except MeshError as error:
                return error
        what = f"{program!r} was {self.stage} for argument {name}"
        return None if place is None else misplaced(what, x, argument.sharding, config.move_arguments)


def called(taken: Taken, executable: Callable[[list[Any]], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a program that takes these arguments, in the function's tree; references are updated."""
    program = taken.program
    if program.references is None:
        return _run(taken, executable, args, kwargs)

    def on_own_values(leaves: list[Any]) -> Any:
        return executable(own_values(leaves, program.donated))

    return program.references.call(lambda *args, **kwargs: _run(taken, on_own_values, args, kwargs), args, kwargs)


def _run(taken: Taken, executable: Callable[[list[Any]], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    program = taken.program
    with program.precision():
        outs = executable(taken.leaves(args, kwargs))
    check_finite(program.name, outs)
    return pytree.unflatten(program.out_tree, outs)


def _check_count(what: str, program: Program, flat: Sequence[Any]) -> None:
    if len(flat) != len(program.all_arguments):
        raise ArgumentError(f"{what} takes {counted(len(program.all_arguments), 'array')}, got {len(flat)}")


def leaves_for(function: str, program: Program, args: Any) -> list[Any]:
    """The arrays of ``args``, in any trees, for the arguments that a program uses; ``function`` may convert dtypes.

    Raises:
      ArgumentError: the number of arrays differs. ArgumentTypeError: a leaf is not an array.
      ShapeError: an array has another shape.
    """
    what, flat = f"{function}: {program.name!r}", pytree.leaves(args)
    _check_count(what, program, flat)
    for x, argument in zip(flat, program.all_arguments):
        try:
            got = typeof(x)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{what}: argument {argument.name}: {error}") from None
        if got.shape != argument.aval.shape:
            raise ShapeError(f"{what} takes argument {argument.name} of type {argument.aval}, got {got}")
    return list(program.picked(flat))


def misplaced(what: str, x: Any, expected: Sharding | None, moves: bool) -> ShardingError | None:
    """The error for an argument that the user placed with another sharding than the function takes; None if it is
    right.

    With ``moves`` the argument is moved instead, with a warning.
    """
    if type(x) is not Array or not x.committed or expected is None or x.sharding is expected:
        return None
    if x.sharding == expected or named(x.sharding).is_equivalent_to(named(expected), x.ndim):
        return None
    problem = f"{what} of type {x.aval} with sharding {expected!r}, and it has {x.sharding!r}"
    if moves:
        warn(f"{problem}; it was moved", MovedArgumentWarning)
        return None
    return ShardingError(
        f"{problem}; move it with device_put, leave the sharding out, or have arguments moved with "
        "config.update('move_arguments', True)"
    )


def together(name: str, errors: Sequence[MeshwrightError]) -> MeshwrightError:
    """Errors of several arguments as one, with the type of the first."""
    if len(errors) == 1:
        return errors[0]
    listed = "".join(f"\n  {error}" for error in errors)
    return type(errors[0])(f"{name!r}: {len(errors)} arguments are wrong:{listed}")


def _call_text(in_tree: Any) -> str:
    """The structure of a call's arguments, such as ``(*, [*, *])`` and ``{'name': *}``."""
    args, kwargs = in_tree.children()
    return pytree.show(args) + (f" and {pytree.show(kwargs)}" if kwargs.num_leaves else "")
