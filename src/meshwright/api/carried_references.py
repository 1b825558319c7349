"""References that functions close over or take as arguments, as values passed in and out: in bodies of control flow,
and in functions that are jitted, mapped or differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from meshwright.api.references import ForeignReferenceError, Ref, lent
from meshwright.core import pytree
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, TangentMismatchError
from meshwright.transforms.references import REFERENCES, References
from meshwright.transforms.wrapped import is_pair, name_of


def with_references(run: Callable[[tuple[Ref, ...]], Any], used: tuple[Ref, ...] = ()) -> Any:
    """``run(references)``, where ``references`` are those it turns out to use from the enclosing trace."""
    while True:
        try:
            return run(used)
        except ForeignReferenceError as foreign:
            if not foreign.ref.is_here() or any(ref is foreign.ref for ref in used):
                raise  # it was used not in the body itself, but in a function traced within it
            used = (*used, foreign.ref)


class Written:
    """Which references functions turned out to write when they were traced, by number: all, until one is traced."""

    places: frozenset[int] | None = None

    def note(self, before: Sequence[Any], after: Sequence[Any]) -> None:
        changed = frozenset(i for i, (old, new) in enumerate(zip(before, after)) if new is not old)
        self.places = changed if self.places is None else self.places | changed

    def has(self, i: int) -> bool:
        return self.places is None or i in self.places


def bringing(fun: Callable[..., Any], refs: Sequence[Ref], written: Written) -> Callable[..., Any]:
    """``fun`` with the references' initial values as first argument; returns their final values and the result."""

    @wraps(fun)
    def brought(values: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Any]:
        for ref, value in zip(refs, values):
            ref.enter(value)
        try:
            out = fun(*args, **kwargs)
        finally:
            after = tuple(ref.leave() for ref in refs)
        written.note(values, after)
        return after, out

    return brought


def _values(refs: Sequence[Ref]) -> tuple[Any, ...]:
    return tuple(ref.value for ref in refs)


def _replace(refs: Sequence[Ref], values: Sequence[Any], written: Written) -> None:
    """Set the references to their final values. Those that were only read may be ones that cannot be written here."""
    for i, (ref, value) in enumerate(zip(refs, values)):
        if written.has(i):
            ref.value = value


def apart(tree: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    """``tree`` with None for its references, and what puts them back into such a tree; None if there are none."""
    leaves, treedef = pytree.flatten(tree)
    if not any(isinstance(x, Ref) for x in leaves):
        return None

    def whole(others: Any) -> Any:
        rest = iter(pytree.leaves(others))
        return pytree.unflatten(treedef, [x if isinstance(x, Ref) else next(rest) for x in leaves])

    return pytree.unflatten(treedef, [None if isinstance(x, Ref) else x for x in leaves]), whole


def _closing(f: Callable[..., Any], whole: Callable[[Any], Any]) -> Callable[..., Any]:
    """``f`` with its references as values that it closes over."""
    return wraps(f)(lambda *args: f(*whole(args)))


# --- branches -----------------------------------------------------------------------------------------------
def in_branches(branches: Callable[..., Any]) -> Callable[..., Any]:
    """Allow the functions of ``branches(what, index, functions, names, operands, ...)`` to use references."""

    @wraps(branches)
    def wrapped(
        what: str, index: Any, functions: Sequence[Any], names: Sequence[str], operands: tuple[Any, ...], *rest: Any
    ) -> Any:
        split = apart(operands)
        if split is not None:
            operands, functions = split[0], [_closing(f, split[1]) for f in functions]

        def run(refs: tuple[Ref, ...]) -> Any:
            if not refs:
                return branches(what, index, functions, names, operands, *rest)
            written = Written()
            apart = [bringing(f, refs, written) for f in functions]
            values, out = branches(what, index, apart, names, (_values(refs), *operands), *rest)
            _replace(refs, values, written)
            return out

        return with_references(run)

    return wrapped


# --- loops --------------------------------------------------------------------------------------------------
def in_scan(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Allow the function of ``scan(loop, f, init, xs, ...)`` to use references, and to be given rows of others."""

    @wraps(scan)
    def wrapped(loop: Any, f: Callable[..., Any], init: Any, xs: Any, *rest: Any) -> Any:
        given = GivenReferences.among(loop.name, (xs,), {})
        if given is not None:
            carry, ys = wrapped(loop, _of_rows(f, given.key[1]), init, given.args[0], *rest)
            return carry, given.replaced(ys)

        def run(refs: tuple[Ref, ...]) -> Any:
            if not refs:
                return scan(loop, f, init, xs, *rest)
            also = _Carried(refs, parts=loop.hidden > 0)
            carry, ys = scan(loop.with_hidden(len(refs)), also.step(f), also.begun(init), xs, *rest)
            return also.ended(carry), ys

        return with_references(run)

    return wrapped


def _of_rows(f: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
    """A body of ``scan`` with rows in place of references to them; returns their final values beside ``y``."""

    @wraps(f)
    def of_rows(carry: Any, x: Any) -> Any:
        values, out = of_values(lambda x: f(carry, x), places)(x)
        return (out[0], (values, out[1])) if is_pair(out) else out

    return of_rows


def in_while(loop_: Callable[..., Any]) -> Callable[..., Any]:
    """Allow the functions of ``loop_(loop, cond_fun, body_fun, init_val)`` to use references."""

    @wraps(loop_)
    def wrapped(loop: Any, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
        def run(refs: tuple[Ref, ...]) -> Any:
            if not refs:
                return loop_(loop, cond_fun, body_fun, init_val)
            also = _Carried(refs, parts=loop.hidden > 0)
            functions = also.test(cond_fun), also.body(body_fun)
            return also.ended(loop_(loop.with_hidden(len(refs)), *functions, also.begun(init_val)))

        return with_references(run)

    return wrapped


@dataclass(frozen=True)
class _Carried:
    """References carried by a loop, ahead of the user's carry: one value, or a tuple of ``parts``."""

    refs: tuple[Ref, ...]
    parts: bool
    written: Written = field(default_factory=Written)

    def begun(self, init: Any) -> tuple[Any, ...]:
        return (*_values(self.refs), *(init if self.parts else (init,)))

    def ended(self, carry: tuple[Any, ...]) -> Any:
        """The user's part of the final carry; sets the references to their final values."""
        values, rest = self._split(carry)
        _replace(self.refs, values, self.written)
        return rest

    def _split(self, carry: tuple[Any, ...]) -> tuple[Sequence[Any], Any]:
        n = len(self.refs)
        return carry[:n], carry[n:] if self.parts else carry[n]

    def _joined(self, values: tuple[Any, ...], rest: Any) -> tuple[Any, ...]:
        return (*values, *(rest if self.parts else (rest,)))

    def step(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """``f`` as a body of ``scan``."""

        @wraps(f)
        def step(carry: Any, x: Any) -> Any:
            values, rest = self._split(carry)
            after, out = bringing(f, self.refs, self.written)(values, rest, x)
            return (self._joined(after, out[0]), out[1]) if is_pair(out) else out

        return step

    def body(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """``f`` as a body of ``while_loop``."""

        @wraps(f)
        def body(carry: Any) -> Any:
            values, rest = self._split(carry)
            return self._joined(*bringing(f, self.refs, self.written)(values, rest))

        return body

    def test(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """``f`` as a predicate of ``while_loop``, which must not write to references."""

        @wraps(f)
        def test(carry: Any) -> Any:
            values, rest = self._split(carry)
            written = Written()
            _, out = bringing(f, self.refs, written)(values, rest)
            if written.places:
                raise ArgumentError("while_loop: cond_fun writes to a reference; write in body_fun")
            return out

        return test


# --- arguments ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GivenReferences:
    """References among the arguments of a function.

    ``key`` says which of the ``leaves`` of which tree they are; ``args`` and ``kwargs`` have their values in their
    places.
    """

    refs: tuple[Ref, ...]
    key: tuple[Any, tuple[int, ...]]
    leaves: Sequence[Any]

    @staticmethod
    def among(name: str, args: Any, kwargs: Any, wanted: Sequence[bool] | None = None) -> GivenReferences | None:
        """Those among the arguments of the function ``name``, or the ``wanted`` ones of them; None if there are none.

        Raises:
          ArgumentError: the same reference is passed twice.
        """
        leaves, treedef = pytree.flatten((args, kwargs))
        places = tuple(i for i, x in enumerate(leaves) if isinstance(x, Ref) and (wanted is None or wanted[i]))
        if not places:
            return None
        refs = tuple(leaves[i] for i in places)
        if len({id(ref) for ref in refs}) < len(refs):
            raise ArgumentError(f"{name}: a reference is given twice; give each once") from None
        return GivenReferences(refs, (treedef, places), leaves)

    def with_values(self, values: Sequence[Any]) -> tuple[Any, Any]:
        treedef, places = self.key
        leaves = list(self.leaves)
        for i, value in zip(places, values):
            leaves[i] = value
        args, kwargs = pytree.unflatten(treedef, leaves)
        return args, kwargs

    @cached_property
    def _arguments(self) -> tuple[Any, Any]:
        return self.with_values(_values(self.refs))

    args = property(lambda self: self._arguments[0])
    kwargs = property(lambda self: self._arguments[1])

    def call(self, fun: Callable[..., Any]) -> Any:
        """The result of ``fun``, made by :func:`of_values`; the references get their final values.

        Raises:
          ArgumentError: ``fun`` also closes over one of them.
        """
        args, kwargs = self.args, self.kwargs
        with lent(self.refs):
            result = fun(*args, **kwargs)
        return self.replaced(result)

    def replaced(self, result: tuple[Sequence[Any], Any]) -> Any:
        """The second part of ``result``; the first are the final values, which the references get."""
        values, out = result
        _replace(self.refs, values, Written())
        return out


def of_values(fun: Callable[..., Any], places: tuple[int, ...], written: Written | None = None) -> Callable[..., Any]:
    """``fun`` with values in place of references; returns their final values and the result, and notes which were
    ``written``."""

    @wraps(fun)
    def values_of(*args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        leaves, treedef = pytree.flatten((args, kwargs))
        before = [leaves[i] for i in places]
        refs = list(map(Ref, before))
        for i, ref in zip(places, refs):
            leaves[i] = ref
        args, kwargs = pytree.unflatten(treedef, leaves)
        out = fun(*args, **kwargs)
        after = [ref.value for ref in refs]
        if written is not None:
            written.note(before, after)
        return after, out

    values_of.__name__ = name_of(fun)
    return values_of


# --- functions that are traced once, where they are called --------------------------------------------------
def traced_once(apply: Callable[..., Any], fun: Callable[..., Any], args: Sequence[Any], write: bool = True) -> Any:
    """``apply(fun, args)``, where ``fun`` takes references among ``args`` or closes over others.

    ``apply`` gets arrays in their places, and a function of these that also returns the references' final values, ahead
    of its results. Those are set where ``write``.
    """
    given = {i: x for i, x in enumerate(args) if isinstance(x, Ref)}
    arrays = [x for i, x in enumerate(args) if i not in given]

    def whole(*arrays: Any) -> Any:
        rest = iter(arrays)
        return fun(*(given[i] if i in given else next(rest) for i in range(len(args))))

    def run(refs: tuple[Ref, ...]) -> Any:
        if not refs:
            return apply(fun, args)
        written, n = Written(), len(refs)
        brought = bringing(whole, refs, written)
        values, out = apply(lambda *xs: brought(xs[:n], *xs[n:]), [*_values(refs), *arrays])
        if write:
            _replace(refs, values, written)
        return out

    return with_references(run, tuple({id(ref): ref for ref in given.values()}.values()))


# --- mapped functions ---------------------------------------------------------------------------------------
def mapped(
    map_: Callable[..., Any], fun: Callable[..., Any], args: Any, kwargs: Any, axes: Sequence[Any], out_axes: Any
) -> Callable[[], Any] | None:
    """A call of ``map_(fun, out_axes)`` whose arguments at ``axes`` have references among them; None without any."""
    given = GivenReferences.among(name_of(fun), args, kwargs, [axis is not None for axis in axes])
    if given is None:
        return None
    after = [axes[i] for i in given.key[1]]
    return lambda: given.call(map_(of_values(fun, given.key[1]), (after, out_axes)))


# --- derivatives ----------------------------------------------------------------------------------------------
def _of_values(fun: Callable[..., Any], given: GivenReferences, has_aux: bool) -> Callable[..., Any]:
    """``fun`` as a function of values, whose result comes after the final values of the references."""
    whole = of_values(fun, given.key[1])

    def call(*args: Any) -> Any:
        values, out = whole(*args)
        if not has_aux:
            return values, out
        return ((values, out[0]), out[1]) if is_pair(out) else out

    call.__name__ = name_of(fun)
    return call


def _along(what: str, fun: Any, given: GivenReferences, tangents: Any) -> GivenReferences:
    """The references that hold the tangents of those that are ``given``.

    Raises:
      TangentMismatchError: they are not in the same places.
    """
    along = GivenReferences.among(what, tangents, {})
    if along is None or along.key != given.key:
        raise TangentMismatchError(
            f"{what} of {name_of(fun)}: it takes references, whose tangents are references too: pass new_ref of the "
            "tangent in each one's place"
        )
    return along


def _jvp(
    jvp: Callable[..., Any], fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool
) -> Any:
    given = GivenReferences.among("jvp", tuple(primals), {})
    assert given is not None
    along = _along("jvp", fun, given, tuple(tangents))
    out, tangent, *aux = jvp(_of_values(fun, given, has_aux), given.args, along.args, has_aux)
    return given.replaced(out), along.replaced(tangent), *aux


def _linearize(linearize: Callable[..., Any], fun: Callable[..., Any], primals: Sequence[Any], has_aux: bool) -> Any:
    given = GivenReferences.among("linearize", tuple(primals), {})
    assert given is not None
    out, linear, *aux = linearize(_of_values(fun, given, has_aux), *given.args, has_aux=has_aux)

    def f_jvp(*tangents: Any) -> Any:
        along = _along("linearize", fun, given, tangents)
        return along.replaced(linear(*along.args))

    return given.replaced(out), f_jvp, *aux


REFERENCES.fill(References(lambda x: isinstance(x, Ref), apart, traced_once, mapped, _jvp, _linearize))
