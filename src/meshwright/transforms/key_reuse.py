"""The option ``debug_key_reuse``: random keys that are used twice raise an error.

A key is used by what draws bits from it, or splits it: there an equation ``random_use`` marks it, while the option is
set. ``fold_in`` uses none, as in JAX, nor does looking at a key's words. Slices take their part of an array of keys,
and ``clone`` makes a key that is new. Uses are found in traced programs, and remembered for concrete arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.errors import KeyReuseError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.ops.control.flow import ControlOp

_REMEDY = "split it with random.split, and use each of the new keys once; random.clone marks a reuse that is meant"


@dataclass(frozen=True)
class Uses:
    """What a program, or an op, does with keys: by operand, which of them it uses (None: it has none)."""

    operands: tuple[np.ndarray | None, ...]
    #: keys that it closes over, with the ones that it uses
    consts: tuple[tuple[Any, np.ndarray], ...] = ()
    #: by result, the operand that it is, if it is one
    same: tuple[int | None, ...] = ()
    #: by result, whether it is used already
    stale: tuple[bool, ...] = ()


def _none(aval: ShapedArray) -> np.ndarray | None:
    return np.zeros(aval.shape, bool) if is_key(aval.dtype) else None


class _Walk:
    """The keys used so far, by variable, and where."""

    def __init__(self) -> None:
        self.used: dict[Any, np.ndarray] = {}
        self.where: dict[Any, Any] = {}
        self.roots: dict[Var, Var] = {}

    def root(self, var: Any) -> Any:
        return self.roots.get(var, var)

    def use(self, atom: Any, mask: np.ndarray, eqn: JaxprEqn) -> None:
        var = self.root(atom)
        used = self.used.setdefault(var, np.zeros(mask.shape, bool))
        if (used & mask).any():
            raise KeyReuseError(
                f"a random key of type {atom.aval} is used again at {eqn.source}; it was used at {self.where[var]}: "
                f"{_REMEDY}"
            )
        if mask.any():
            used |= mask
            self.where.setdefault(var, eqn.source)

    def equation(self, eqn: JaxprEqn) -> list[tuple[Any, np.ndarray]]:
        """Note what an equation uses; returns the keys that it closes over and uses."""
        found = uses_of_op(eqn.op, [x.aval for x in eqn.invars])
        if found is None:
            return []
        for atom, mask in zip(eqn.invars, found.operands):
            if mask is not None and not isinstance(atom, Literal):
                self.use(atom, mask, eqn)
        for var, i, stale in zip(eqn.outvars, found.same, found.stale):
            if i is not None and is_key(var.aval.dtype):
                self.roots[var] = self.root(eqn.invars[i])
            elif stale:
                self.used[var], self.where[var] = np.ones(var.aval.shape, bool), eqn.source
        return list(found.consts)


def checked(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program; with the option set, it uses no key twice (KeyReuseError)."""
    if config.debug_key_reuse:
        uses_of(closed)
    return closed


def uses_of(closed: ClosedJaxpr) -> Uses:
    """What a program uses.

    Raises:
      KeyReuseError: it uses a key twice.
    """
    walk, jaxpr, consts = _Walk(), closed.jaxpr, []
    for eqn in jaxpr.eqns:
        consts += walk.equation(eqn)
    consts += [(x, walk.used[v]) for v, x in zip(jaxpr.constvars, closed.consts) if v in walk.used]
    outs = [v if isinstance(v, Literal) else walk.root(v) for v in jaxpr.outvars]
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    return Uses(
        tuple(walk.used.get(v, _none(v.aval)) for v in jaxpr.invars),
        tuple(_together(consts)),
        tuple(None if isinstance(v, Literal) else places.get(v) for v in outs),
        tuple(not isinstance(v, Literal) and bool(np.any(walk.used.get(v, False))) for v in outs),
    )


def _together(consts: Iterable[tuple[Any, np.ndarray]]) -> Iterable[tuple[Any, np.ndarray]]:
    """The same, with each array once.

    Raises:
      KeyReuseError: two use the same key of an array.
    """
    joined: dict[int, tuple[Any, np.ndarray]] = {}
    for x, mask in consts:
        before = joined.get(id(x), (x, np.zeros(mask.shape, bool)))[1]
        if (before & mask).any():
            raise KeyReuseError(
                f"a random key of type {typeof(x)} that a function closes over is used twice: {_REMEDY}"
            )
        joined[id(x)] = x, before | mask
    return joined.values()


def uses_of_op(op: Op, avals: Sequence[ShapedArray]) -> Uses | None:
    """What an op uses; None: nothing."""
    if op.used_keys is not None and is_key(avals[0].dtype):
        return Uses((op.used_keys(*avals),))
    if isinstance(op, ControlOp):
        return _uses_of_choice(op, avals) if op.chooses else _uses_of_loop(op, avals)
    body = op.body() if op.holds_jaxprs else None
    if body is None or len(body.in_avals) != len(avals):
        return None
    found = uses_of(body)
    fitting = zip(found.operands, avals)
    whole = tuple(m if m is None or m.shape == a.shape else np.full(a.shape, bool(m.any())) for m, a in fitting)
    return Uses(whole, found.consts, found.same, found.stale)


def _uses_of_choice(op: ControlOp, avals: Sequence[ShapedArray]) -> Uses:
    """The keys that any of the branches uses: one of them runs."""
    masks, numbers = [_none(a) for a in avals], op.numbers()
    consts: dict[int, tuple[Any, np.ndarray]] = {}
    for number, body in enumerate(op.bodies()):
        found = uses_of(body.jaxpr)
        for i, mask in zip(numbers.of(number), found.operands):
            if mask is not None:
                masks[i] = masks[i] | mask
        for x, mask in found.consts:
            consts[id(x)] = x, mask | consts.get(id(x), (x, mask))[1]
    return Uses(tuple(masks), tuple(consts.values()))


def _uses_of_loop(op: ControlOp, avals: Sequence[ShapedArray]) -> Uses:
    """Each step may use the keys of its slices, and those of the carry if it gives the next step others.

    Raises:
      KeyReuseError: the steps use the same key.
    """
    masks, numbers = [_none(a) for a in avals], op.numbers()
    for number, body in enumerate(op.bodies()):
        found = uses_of(body.jaxpr)
        given = numbers.of(number)
        end = body.num_consts + body.num_carry
        for place, (i, mask) in enumerate(zip(given, found.operands)):
            if mask is None or not mask.any():
                continue
            if place < body.num_consts or body.tests:
                raise _in_each_step(op, avals[i])
            if place < end and found.stale[place - body.num_consts]:
                raise _in_each_step(op, avals[i])
            masks[i] = np.ones(avals[i].shape, bool)
        for x, mask in found.consts:
            if mask.any():
                raise _in_each_step(op, typeof(x))
    return Uses(tuple(masks))


def _in_each_step(op: Op, aval: ShapedArray) -> KeyReuseError:
    return KeyReuseError(
        f"each step of {op.name} uses the same random key of type {aval}: give each a key of its own, as a part "
        "of what is carried (key, new = random.split(key)), of what is scanned, or by random.fold_in(key, step)"
    )


# --- concrete arrays ----------------------------------------------------------------------------------------
#: by the number of an array of keys: the array, and which of them were used
_USED: dict[int, tuple[ref[Any], np.ndarray]] = {}


def _known(x: Any) -> np.ndarray | None:
    held = _USED.get(id(x))
    return held[1] if held is not None and held[0]() is x else None


def note_uses(what: str, uses: Uses, operands: Sequence[Any]) -> None:
    """Remember that ``operands`` and constants are used, by what is called ``what``.

    Raises:
      KeyReuseError: one of them was used before.
    """
    pairs = [(x, m) for x, m in zip(operands, uses.operands) if m is not None]
    pairs = list(_together((x, m) for x, m in (*pairs, *uses.consts) if m.any() and hasattr(x, "sharding")))
    for x, mask in pairs:
        used = _known(x)
        if used is not None and (used & mask).any():
            raise KeyReuseError(f"{what} is given a random key of type {typeof(x)} that was used before: {_REMEDY}")
    for x, mask in pairs:
        used = _known(x)
        _set(x, mask if used is None else used | mask)


def note_op(op: Op, operands: Sequence[Any]) -> None:
    """:func:`note_uses` of an op that is evaluated by itself."""
    uses = uses_of_op(op, [typeof(x) for x in operands])
    if uses is not None:
        note_uses(op.name, uses, operands)


def noted(jitted: Any, split: Callable[..., Any], run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``run(args, kwargs)`` of a jitted function, which remembers what it uses, and which results are used already."""
    if not config.debug_key_reuse:
        return run(args, kwargs)
    uses = uses_of(jitted.program_at(*args, **kwargs).jaxpr)
    note_uses(jitted.name, uses, pytree.leaves(split(args, kwargs)[1:]))
    out = run(args, kwargs)
    for x, stale in zip(pytree.leaves(out), uses.stale):
        if stale:
            _set(x, np.ones(x.shape, bool))
    return out


def _set(x: Any, mask: np.ndarray) -> None:
    if len(_USED) > 1 << 16:
        for number in [n for n, (held, _) in list(_USED.items()) if held() is None]:
            _USED.pop(number, None)
    _USED[id(x)] = ref(x), mask
