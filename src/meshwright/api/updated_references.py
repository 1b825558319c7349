"""References that jitted functions close over or take: their values, donated where the function writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import field, replace
from typing import Any

from meshwright.api.carried_references import GivenReferences, Written, bringing, of_values, with_references
from meshwright.api.references import Ref, is_shared, lent
from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.core.naming import wraps
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentTypeError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.program import Program
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL
from meshwright.ops.control.callback import calls_python

#: in bytes, the size from which a reference is updated in place; a smaller copy costs less than the care
_FROM = 1 << 16
#: the references that calls of this thread use
_IN_CALLS: ContextVar[tuple[Ref, ...]] = ContextVar("references in calls", default=())
#: the keyword by which a jitted function gets the values of references that it closes over
_VALUES = "values of references"


@dataclass(frozen=True)
class InPlace:
    """The references that a jitted function of values updates in place: the values are donated, and its first results
    are the final ones.

    The first ``num_closed`` are given by keyword; ``written`` says which of them the function writes. The others are
    the leaves at ``places``; ``written_places`` says it of these.
    """

    num_closed: int
    written: Written
    places: tuple[int, ...] = ()
    written_places: Written = field(default_factory=Written)

    def _all_places(self, args: Any, kwargs: Any) -> list[int]:
        """The numbers of the values among the leaves of ``args`` and ``kwargs``, in the order of their final ones."""
        before = len(pytree.leaves((args, {k: v for k, v in kwargs.items() if self.num_closed and k < _VALUES})))
        n = self.num_closed
        return [*range(before, before + n), *(i if i < before else i + n for i in self.places)]

    def donated(self, args: Any, kwargs: Any, jaxpr: ClosedJaxpr) -> Iterator[int]:
        """The numbers of the leaves of ``args`` and ``kwargs`` that the function may overwrite.

        None, if it calls Python, which may fail when they are already overwritten.
        """
        if calls_python(jaxpr):
            return
        for place, after in zip(self._all_places(args, kwargs), jaxpr.jaxpr.outvars):
            before = jaxpr.jaxpr.invars[place]
            if after is not before and _is_large(before.aval):
                yield place


def _is_large(aval: Any) -> bool:
    return bool(aval.size * aval.dtype.itemsize >= _FROM)


def own_values(leaves: Sequence[Any], donated: Sequence[int]) -> list[Any]:
    """The arguments of a program that overwrites those at ``donated``, with copies of those that references in this
    call hold, unless nothing else has them.

    Copies also if results are checked, as the references keep their values if that fails.
    """
    refs, own = _IN_CALLS.get(), list(leaves)
    is_checked = config.debug_nans or config.debug_infs
    for i in donated if refs else ():
        value = own[i]
        if any(ref.holds(value) for ref in refs) and (is_checked or not any(ref.gives(value) for ref in refs)):
            own[i] = copy(value)
    return own


@contextmanager
def _used(refs: Sequence[Ref]) -> Iterator[tuple[Any, ...]]:
    """A call of a jitted function that uses the references: their values."""
    token = _IN_CALLS.set((*_IN_CALLS.get(), *refs))
    try:
        yield tuple(ref.held for ref in refs)
    finally:
        _IN_CALLS.reset(token)


def in_jit(call: Callable[..., Any]) -> Callable[..., Any]:
    """Allow the jitted function of ``call(jitted, args, kwargs)`` to use references that it closes over.

    Those that it turned out to use (``jitted.closed``) are arguments and results of a function that stands for it.
    """

    @wraps(call)
    def wrapped(jitted: Any, args: Any, kwargs: Any) -> Any:
        def run(refs: tuple[Ref, ...]) -> Any:
            if not refs:
                return call(jitted, args, kwargs)
            jitted.closed = refs
            function, written = _standing_for(jitted, refs)
            with _used(refs) as values:
                after, out = call(function, args, {**kwargs, _VALUES: values})
            _replace_by_own(refs, values, after, written, (args, kwargs, out))
            return out

        return with_references(run, jitted.closed)

    return wrapped


def _standing_for(jitted: Any, refs: tuple[Ref, ...]) -> tuple[Any, Written]:
    known = vars(jitted).setdefault("_closing", {})
    if refs not in known:  # the same object each time
        written = Written()
        brought = bringing(jitted.fun, refs, written)

        @wraps(jitted.fun)
        def values_of(*args: Any, **kwargs: Any) -> Any:
            return brought(kwargs.pop(_VALUES), *args, **kwargs)

        values_of.__name__ = jitted.name
        function = type(jitted)(values_of, jitted.options.also_of_values)
        given = jitted.in_place or InPlace(0, Written())
        function.in_place = replace(given, num_closed=len(refs), written=written)
        known[refs] = function, written
    return known[refs]


def _replace_by_own(
    refs: Sequence[Ref], before: Sequence[Any], after: Sequence[Any], written: Written, others: Any
) -> None:
    """Set the references to their final values after a jitted function that was also given ``others``, or returned
    them."""
    is_new = [written.has(i) and not is_shared(old, new) for i, (old, new) in enumerate(zip(before, after))]
    for ref, value, new in zip(refs, after, is_new):
        if new:
            ref.value = value
    if STATE.trace is EVAL and any(_is_large(ref) for ref in refs):
        held, elsewhere = [ref.held for ref in refs], pytree.leaves(others)
        for i, ref in enumerate(refs):
            ref.settle(is_new[i], (*elsewhere, *held[:i], *held[i + 1 :]))


def call_jitted(given: GivenReferences, function: Callable[..., Any], uses: Any) -> Any:
    """The result of a function of values; the references get their final values, those that it has written.

    ``uses`` has the references that it turned out to close over (``closed``), and its :class:`InPlace`.

    Raises:
      ArgumentError: ``function`` also closes over one of them.
    """
    with _used(given.refs) as values, lent(given.refs):
        args, kwargs = given.with_values(values)
        after, out = function(*args, **kwargs)
    others = [x for x in given.leaves if not isinstance(x, Ref)]
    closed = [ref.held for ref in uses.closed]  # which may have got one of the values
    _replace_by_own(given.refs, values, after, uses.in_place.written_places, (others, closed, out))
    return out


def jitted_of_values(jitted: Any, fun: Callable[..., Any], places: tuple[int, ...]) -> Any:
    """A jitted function like ``jitted``, of the function ``fun`` with values in place of the references at
    ``places``."""
    given = InPlace(0, Written(), places)
    function = type(jitted)(of_values(fun, places, given.written_places), jitted.options.of_values)
    function.in_place = given
    return function


# --- stages -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CalledWithReferences:
    """How the stages of a function ``name`` are called that closes over some references, and is given others."""

    name: str
    closed: tuple[Ref, ...]
    in_place: InPlace

    def __reduce__(self) -> Any:
        """Raises:
        ArgumentTypeError: the function closes over references.
        """
        if self.closed:
            raise ArgumentTypeError(
                f"{self.name!r} closes over references, which belong to this process; give them as arguments"
            )
        return CalledWithReferences, (self.name, self.closed, self.in_place)

    def result(self, tree: Any) -> Any:
        """The function's result in that of the function of values."""
        for uses in (self.closed, self.in_place.places):
            tree = tree[1] if uses else tree
        return tree

    def call(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The function's result, where ``run`` is that of values.

        Raises:
          ArgumentTypeError: references are given in other places than before.
        """
        given = GivenReferences.among(self.name, args, kwargs)
        places = () if given is None else given.key[1]
        if places != self.in_place.places:
            raise ArgumentTypeError(
                f"{self.name!r} was made for references among its flattened arguments at {list(self.in_place.places)}, "
                f"got some at {list(places)}; make it again for these"
            )
        if given is None:
            return self._closing(run, args, kwargs)
        return call_jitted(given, lambda *args, **kwargs: self._closing(run, args, kwargs), self)

    def _closing(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not self.closed:
            return run(*args, **kwargs)
        written = self.in_place.written
        with _used(self.closed) as values:
            after, out = run(*args, **kwargs, **{_VALUES: values})
        _replace_by_own(self.closed, values, after, written, (args, kwargs, out))
        return out


def program_of(jitted: Any, static: Any, args: Any, kwargs: Any) -> Program:
    """The program of a jitted function at these arguments; if it uses references, that of the function of values that
    stands for it, which knows them."""
    given = GivenReferences.among(jitted.name, args, kwargs)
    if given is not None:
        jitted, static = jitted.of_values(given, static), None
        args, kwargs = given.args, given.kwargs

    def run(refs: tuple[Ref, ...]) -> Program:
        if refs:
            function, _ = _standing_for(jitted, refs)
            program = function.own_program(args, {**kwargs, _VALUES: tuple(ref.held for ref in refs)}, static)
        else:
            function, program = jitted, jitted.own_program(args, kwargs, static)
        if function.in_place is None:
            return program  # type: ignore[no-any-return]
        return replace(program, references=CalledWithReferences(function.name, refs, function.in_place))

    return with_references(run, jitted.closed)
