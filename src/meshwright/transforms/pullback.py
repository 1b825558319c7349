"""What ``vjp`` returns: the linear part of a function, as a function of cotangents that can be taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.core.pytree_classes import register_pytree_node, register_static
from meshwright.core.signature import described
from meshwright.errors import ArgumentTypeError, ShapeError, TangentMismatchError
from meshwright.transforms.linearized import Linearized, Program, pulled
from meshwright.transforms.references import REFERENCES


class _Marker:
    """An object that stands for a value that is not there, and is shown as ``Name()``."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class NotNeeded(_Marker):
    """In place of an argument that the backward pass does not read."""


class GradValue(_Marker):
    """Asks for a cotangent to be returned; for :meth:`VJP.with_refs`."""


class DontWant(_Marker):
    """Asks for a cotangent not to be computed; for :meth:`VJP.with_refs`."""


@register_static
class GradRef(_Marker):
    """In place of a cotangent that was added to a reference."""


@register_static
class DidntWant(_Marker):
    """In place of a cotangent that was not computed."""


class VJP:
    """The function from a cotangent of the output to a tuple of cotangents of the arguments; a pytree of residuals.

    ``args_res`` has, for each leaf of the arguments, the leaf if the backward pass reads it, and ``NotNeeded()``
    otherwise; ``opaque_residuals`` are the other values that it reads. Both lists may be changed: an argument that is
    replaced by None is not passed between jitted functions, and can be put back.
    """

    def __init__(
        self, args_res: list[Any], opaque_residuals: list[Any], program: Program, places: tuple[int | None, ...]
    ) -> None:
        self.args_res = args_res
        self.opaque_residuals = opaque_residuals
        self._program = program
        #: for each value of the program, which argument it is, or None
        self._places = places

    @staticmethod
    def of(linear: Linearized, primals: Sequence[Any]) -> VJP:
        """That of ``linear``, taken at the flat ``primals``."""
        values, program = linear.split()
        numbers = {id(x): i for i, x in reversed(list(enumerate(primals)))}
        places = tuple(numbers.get(id(x)) for x in values)
        found = {i: x for i, x in zip(places, values) if i is not None}
        args = [found.get(i, NotNeeded()) for i in range(len(primals))]
        return VJP(args, [x for i, x in zip(places, values) if i is None], program, places)

    @property
    def in_tree(self) -> Any:
        return self._program.signature.in_tree

    @property
    def out_tree(self) -> Any:
        return self._program.signature.out_tree

    def __repr__(self) -> str:
        return f"VJP of {described(self._program.signature.fun)}"

    def __call__(self, *cts: Any) -> tuple[Any, ...]:
        return pulled(self._linear(), *cts)

    def with_refs(self, *refs: Any) -> Callable[..., tuple[Any, ...]]:
        """The function that adds cotangents to references.

        ``refs`` have the arguments' structure. What arrives at an argument for which they have a reference is added to
        it, and ``ad.GradRef()`` is returned. For ``ad.DontWant()`` it is not computed, and ``ad.DidntWant()`` is
        returned; for anything else, such as ``ad.GradValue()``, it is returned.

        Raises:
          TangentMismatchError: ``refs`` have another structure. ShapeError: a reference has another shape.

        Example:
          >>> total = mw.new_ref(0.0)
          >>> for x in (1.0, 2.0):
          ...     _, f_vjp = mw.vjp(lambda w, x=x: w * x, 3.0)
          ...     _ = f_vjp.with_refs(total)(1.0)
          >>> float(total[...])
          3.0
        """
        signature, is_reference = self._program.signature, REFERENCES.value.recognizes
        leaves, structure = pytree.flatten(refs, is_reference)
        if structure != signature.in_tree:
            raise TangentMismatchError(
                f"with_refs: the references of {described(signature.fun)} have the structure {pytree.show(structure)}, "
                f"its arguments {pytree.show(signature.in_tree)} "
                f"({pytree.difference(signature.in_tree, structure, exact=True)}); give ad.GradValue() where the "
                "cotangent is to be returned"
            )
        paths = pytree.paths(pytree.outline(signature.in_tree))
        for ref, aval, path in zip(leaves, signature.in_avals, paths):
            if is_reference(ref) and ref.shape != aval.shape:
                raise ShapeError(
                    f"with_refs: the reference at {path} has shape {ref.shape}, the argument {aval.shape}; they must "
                    "be equal"
                )

        def accumulate(*cts: Any) -> tuple[Any, ...]:
            out = pytree.leaves(pulled(self._linear(), *cts, wanted=[not isinstance(x, DontWant) for x in leaves]))
            for i, (ref, aval) in enumerate(zip(leaves, signature.in_avals)):
                if isinstance(ref, DontWant):
                    out[i] = DidntWant()
                if is_reference(ref):
                    if dtypes.is_inexact(aval.dtype):
                        ref.addupdate(out[i])
                    out[i] = GradRef()
            return pytree.unflatten(signature.in_tree, out)

        return accumulate

    def _linear(self) -> Linearized:
        rest = iter(self.opaque_residuals)
        values = [next(rest) if i is None else self.args_res[i] for i in self._places]
        absent = next((i for i, x in zip(self._places, values) if x is None or isinstance(x, NotNeeded)), None)
        if absent is not None:
            raise ArgumentTypeError(
                f"{self}: args_res[{absent}], which the backward pass reads, was left out; put the argument back"
            )
        return self._program.filled(values)

    # --- trees, copies and pickles --------------------------------------------------------------------------
    def _flatten(self) -> tuple[tuple[Any, Any], Any]:
        there = tuple(not isinstance(x, NotNeeded) for x in self.args_res)
        return ([x for x in self.args_res if not isinstance(x, NotNeeded)], self.opaque_residuals), (
            there, self._program, self._places,
        )  # fmt: skip

    @staticmethod
    def _unflatten(static: Any, children: tuple[Any, Any]) -> VJP:
        (there, program, places), (args, rest) = static, children
        given = iter(args)
        return VJP([next(given) if t else NotNeeded() for t in there], list(rest), program, places)

    def __reduce__(self) -> Any:
        return VJP.of, (self._linear(), self.args_res)

    def __deepcopy__(self, memo: Any) -> VJP:
        return VJP([*self.args_res], [*self.opaque_residuals], self._program, self._places)

    __copy__ = lambda self: self.__deepcopy__(None)  # noqa: E731


register_pytree_node(VJP, VJP._flatten, VJP._unflatten)
