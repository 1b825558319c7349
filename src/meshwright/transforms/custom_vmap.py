"""``custom_vmap``: functions with a user-defined batching rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.dtypes import is_inexact
from meshwright.errors import ArgumentTypeError, MissingRuleError, ShapeError
from meshwright.ir.op import Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.control.custom_vmap import CustomVmapCall
from meshwright.ops.elementwise.table import materialize
from meshwright.ops.shape.broadcast_reduce import put_batch_dim
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.custom_function import CustomFunction, positional
from meshwright.transforms.jaxprs import TRANSFORMS
from meshwright.transforms.linearized import jvp_flat
from meshwright.transforms.wrapped import name_of, require_callable


class custom_vmap(CustomFunction):
    """A function with a user-defined batching rule.

    The rule is ``rule(axis_size, in_batched, *args) -> (out, out_batched)``. Batched arguments have the batch axis
    first. ``in_batched`` has the structure of the arguments and marks which are batched; ``out_batched``, a tree prefix
    of ``out``, marks which results are. Forward mode differentiates the rule; for reverse mode, wrap the function in
    ``custom_vjp``.

    Raises (when called):
      MissingRuleError: no rule is set. ArgumentTypeError, ShapeError: the rule returned a wrong structure or type.

    Example:
      >>> @mw.custom_batching.custom_vmap
      ... def f(x, y):
      ...     return x + y
      >>> @f.def_vmap
      ... def rule(axis_size, in_batched, xs, ys):
      ...     return xs * ys, True
      >>> f(3, 4), mw.vmap(f)(mnp.arange(3), mnp.arange(1, 4))
      (Array(7, dtype=int32, weak_type=True), Array([0, 2, 6], dtype=int32))
    """

    vmap_rule: Callable[..., Any] | None = None

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the batching rule and return it, so that this can be used as a decorator."""
        require_callable(vmap_rule, "custom_vmap.def_vmap")
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        rule = self.vmap_rule
        if rule is None:
            raise MissingRuleError(f"custom_vmap {name}: no rule is set; call .def_vmap(rule) first")
        args = positional(self.fun, args, kwargs, "custom_vmap")
        flat, in_tree = pytree.flatten(args)
        jaxpr, hoisted, out_tree = closed_call(lambda *xs: self.fun(*pytree.unflatten(in_tree, xs)), flat, name)

        def flat_rule(size: int, batched: Sequence[bool], operands: Sequence[Any]) -> tuple[list[Any], list[bool]]:
            flags = pytree.unflatten(in_tree, batched)
            return _checked(name, jaxpr, out_tree, size, rule(size, list(flags), *pytree.unflatten(in_tree, operands)))

        op = CustomVmapCall(name, jaxpr, flat_rule, len(hoisted))
        return pytree.unflatten(out_tree, op.bind(*hoisted, *flat))


def _checked(name: str, jaxpr: Any, out_tree: Any, size: int, result: Any) -> tuple[list[Any], list[bool]]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise ArgumentTypeError(f"custom_vmap {name}: the rule must return a pair (out, out_batched), got {result!r}")
    outs, got = pytree.flatten(result[0])
    if got != out_tree:
        raise ArgumentTypeError(
            f"custom_vmap {name}: the rule returned structure {pytree.show(got)}, the function returns "
            f"{pytree.show(out_tree)}"
        )
    batched = [bool(b) for b in pytree.broadcast_prefix(result[1], result[0], f"custom_vmap {name}: out_batched")]
    for path, x, b, want in zip(pytree.paths(result[0]), outs, batched, jaxpr.out_avals):
        shape = (size, *want.shape) if b else want.shape
        aval = typeof(x)
        if aval.shape != shape or (aval.dtype != want.dtype and not aval.weak_type):
            raise ShapeError(
                f"custom_vmap {name}: the rule returned output{path} of type {aval}, expected "
                f"{want.update(shape=shape)}: the function returns {want}, and out_batched is {b} of an axis of size "
                f"{size}"
            )
    return outs, batched


def _jvp_of_batch_rule(rule: Callable[..., Any], nonzero: Sequence[bool]) -> Callable[..., Any]:
    n = len(nonzero)

    def derived(size: int, batched: Sequence[bool], operands: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        flags: list[bool] = []
        primals: list[Any] = []
        tangents: list[Any] = []
        given = iter(zip(operands[n:], batched[n:]))
        for x, b, nz in zip(operands, batched, nonzero):
            t, tb = next(given) if nz else (None, b)
            flags.append(b or tb)  # the rule takes one flag for a primal and its tangent
            primals.append(put_batch_dim(x, None, 0, size) if tb and not b else x)
            tangents.append(put_batch_dim(t, None, 0, size) if b and not tb else t if nz else Zero(typeof(primals[-1])))
        out_flags: Sequence[bool] = ()

        def call(*xs: Any) -> list[Any]:
            nonlocal out_flags
            outs, out_flags = rule(size, flags, xs)
            return list(outs)

        outs, touts, _ = jvp_flat(call, primals, tangents)
        inexact = [is_inexact(typeof(x).dtype) for x in outs]
        return (
            [*outs, *(materialize(t) for t, i in zip(touts, inexact) if i)],
            [*out_flags, *(f for f, i in zip(out_flags, inexact) if i)],
        )

    return derived


TRANSFORMS.makers["jvp_of_batch_rule"].fill(_jvp_of_batch_rule)
