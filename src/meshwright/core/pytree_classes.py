"""Registration of classes as pytree containers: with functions, methods, keys, as dataclasses or as static values."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from meshwright.core.pytree import NAMESPACE
from meshwright.core.pytree_keys import GetAttrKey, GivenKey
from meshwright.errors import ArgumentError, ArgumentTypeError

T = TypeVar("T", bound=type)
Flatten = Callable[[Any], tuple[Iterable[Any], Any]]


def _register(function: str, cls: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    """Register ``cls`` with ``optree``; ``flatten`` returns children, static data, and optionally keys.

    Raises:
      ArgumentTypeError: ``cls`` is not a class. ArgumentError: it is already registered.
    """
    if not isinstance(cls, type):
        raise ArgumentTypeError(f"{function}: expected a class, got {cls!r} of type {type(cls).__name__}")
    try:
        with warnings.catch_warnings():  # of named tuples, which are containers of another kind then, as is asked for
            warnings.filterwarnings("ignore", ".*namedtuple.*already registered", UserWarning)
            optree.register_pytree_node(
                cls, flatten, unflatten, path_entry_type=GivenKey if _has_keys(flatten) else optree.FlattenedEntry,
                namespace=NAMESPACE,
            )  # fmt: skip
    except ValueError:
        raise ArgumentError(
            f"{function}: {cls.__name__} is a container already; a class is registered once, and list, tuple, dict, "
            "None and named tuples need not be"
        ) from None


def _has_keys(flatten: Callable[[Any], Any]) -> bool:
    return getattr(flatten, "has_keys", False)


def register_pytree_node(
    nodetype: type,
    flatten_func: Flatten,
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Flatten | None = None,
) -> None:
    """Register ``nodetype`` as a container: ``flatten_func(x)`` returns ``(children, aux)``.

    ``unflatten_func(aux, children)`` creates the instance again. ``aux`` is static: a program is compiled for each of
    its values, which are compared by ``==``. ``flatten_with_keys_func`` returns pairs of key and child instead of
    children.

    Raises:
      ArgumentError: ``nodetype`` is already registered.
      ArgumentTypeError: it is not a class, or (when used) ``flatten_func`` does not return a pair.

    Example:
      >>> class Interval:
      ...     def __init__(self, low, high):
      ...         self.low, self.high = low, high
      >>> mw.register_pytree_node(Interval, lambda i: ((i.low, i.high), None), lambda _, ends: Interval(*ends))
      >>> moved = mw.jit(lambda i: mw.tree.map(lambda x: x + 10, i))(Interval(1, 2))
      >>> int(moved.low), int(moved.high)
      (11, 12)
    """
    if flatten_with_keys_func is not None:
        register_pytree_with_keys(nodetype, flatten_with_keys_func, unflatten_func)
        return
    _register_functions("register_pytree_node", nodetype, flatten_func, unflatten_func)


def _register_functions(
    function: str, cls: type, flatten_func: Flatten, unflatten_func: Callable[[Any, Any], Any]
) -> None:
    _require_functions(function, flatten_func=flatten_func, unflatten_func=unflatten_func)
    _register(function, cls, lambda x: _pair(function, cls, flatten_func(x)), unflatten_func)


def _require_functions(function: str, **given: Any) -> None:
    for name, value in given.items():
        if not callable(value):
            raise ArgumentTypeError(f"{function}: {name} must be a function, got {value!r}")


def _pair(function: str, cls: type, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ArgumentTypeError(
            f"{function}: the flatten function of {cls.__name__} must return a pair (children, static data), got "
            f"{pair!r}"
        )
    return tuple(pair)


def register_pytree_node_class(cls: T) -> T:
    """Decorator to register a class with ``tree_flatten`` and ``tree_unflatten`` methods, as in JAX.

    Raises:
      ArgumentError: ``cls`` is already registered. ArgumentTypeError: it lacks one of the methods.

    Example:
      >>> @mw.register_pytree_node_class
      ... class Scaled:
      ...     def __init__(self, values, unit):
      ...         self.values, self.unit = values, unit
      ...     def tree_flatten(self):
      ...         return (self.values,), self.unit
      ...     @classmethod
      ...     def tree_unflatten(cls, unit, children):
      ...         return cls(*children, unit)
      >>> doubled = mw.tree.map(lambda x: 2 * x, Scaled(3, "metre"))
      >>> doubled.values, doubled.unit
      (6, 'metre')
    """
    _require_methods("register_pytree_node_class", cls, "tree_flatten", "tree_unflatten")
    _register_functions("register_pytree_node_class", cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def _require_methods(function: str, cls: type, *names: str) -> None:
    for name in names:
        if not callable(getattr(cls, name, None)):
            raise ArgumentTypeError(f"{function}: {getattr(cls, '__name__', cls)} has no method {name}; define it")


# --- with keys ----------------------------------------------------------------------------------------------
def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Flatten,
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Flatten | None = None,
) -> None:
    """:func:`register_pytree_node` with ``flatten_with_keys(x) -> (pairs of key and child, aux)``.

    Keys are those of ``tree_util`` (``GetAttrKey("low")``) or any hashable; key paths and messages show them.
    ``flatten_func`` exists for JAX's signature, and is not needed.

    Raises:
      ArgumentError: ``nodetype`` is already registered. ArgumentTypeError: it is not a class.

    Example:
      >>> class Ends:
      ...     def __init__(self, low, high):
      ...         self.low, self.high = low, high
      >>> key = mw.tree_util.GetAttrKey
      >>> mw.tree_util.register_pytree_with_keys(
      ...     Ends, lambda e: (((key("low"), e.low), (key("high"), e.high)), None), lambda _, ends: Ends(*ends)
      ... )
      >>> mw.tree.paths({"a": Ends(1, 2)})
      ["['a'].low", "['a'].high"]
    """
    _register_with_keys("register_pytree_with_keys", nodetype, flatten_with_keys, unflatten_func)


def _register_with_keys(
    function: str, cls: type, flatten_with_keys: Flatten, unflatten_func: Callable[[Any, Any], Any]
) -> None:
    _require_functions(function, flatten_with_keys=flatten_with_keys, unflatten_func=unflatten_func)

    def flatten(x: Any) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
        pairs, aux = _pair(function, cls, flatten_with_keys(x))
        pairs = tuple(pairs)
        return tuple(child for _, child in pairs), aux, tuple(key for key, _ in pairs)

    flatten.has_keys = True  # type: ignore[attr-defined]
    _register(function, cls, flatten, unflatten_func)


def register_pytree_with_keys_class(cls: T) -> T:
    """Decorator to register a class with ``tree_flatten_with_keys`` and ``tree_unflatten`` methods, as in JAX.

    Raises:
      ArgumentError: ``cls`` is already registered. ArgumentTypeError: it lacks one of the methods.

    Example:
      >>> @mw.tree_util.register_pytree_with_keys_class
      ... class Point:
      ...     def __init__(self, x, y):
      ...         self.x, self.y = x, y
      ...     def tree_flatten_with_keys(self):
      ...         key = mw.tree_util.GetAttrKey
      ...         return ((key("x"), self.x), (key("y"), self.y)), None
      ...     @classmethod
      ...     def tree_unflatten(cls, _, children):
      ...         return cls(*children)
      >>> mw.tree.paths([Point(1, 2)])
      ['[0].x', '[0].y']
    """
    function = "register_pytree_with_keys_class"
    _require_methods(function, cls, "tree_flatten_with_keys", "tree_unflatten")
    _register_with_keys(function, cls, lambda x: x.tree_flatten_with_keys(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


# --- dataclasses and static values --------------------------------------------------------------------------
def register_dataclass(
    nodetype: T,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> T:
    """Register a dataclass as a container. ``meta_fields`` are static structure, the other fields hold children.

    Without arguments, fields declared with :func:`meshwright.tree.static` are the static ones. ``drop_fields`` are
    neither: they are lost when a tree is flattened and unflattened.

    Raises:
      ArgumentTypeError: ``nodetype`` is not a dataclass.
      ArgumentError: it is already registered, or the given fields do not name each of its init fields once.

    Example:
      >>> from dataclasses import field, make_dataclass
      >>> static = field(metadata={"static": True})
      >>> Layer = mw.register_dataclass(make_dataclass("Layer", ["weight", "bias", ("name", str, static)]))
      >>> mw.tree.map(lambda x: 2 * x, Layer(3, 4, "first"))
      Layer(weight=6, bias=8, name='first')
    """
    if not isinstance(nodetype, type) or not dataclasses.is_dataclass(nodetype):
        raise ArgumentTypeError(
            f"register_dataclass: expected a dataclass, got {nodetype!r}; decorate it with @dataclass"
        )
    data, meta = _divided(nodetype, data_fields, meta_fields, drop_fields)
    keys = tuple(map(GetAttrKey, data))

    def flatten(x: Any) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
        return tuple(getattr(x, n) for n in data), tuple(getattr(x, n) for n in meta), keys

    def unflatten(aux: Any, children: Any) -> Any:
        # Bypasses __init__: leaves may be placeholders that a __post_init__ would reject.
        new = object.__new__(nodetype)
        for name, value in zip((*data, *meta), (*children, *aux)):
            object.__setattr__(new, name, value)
        return new

    flatten.has_keys = True  # type: ignore[attr-defined]
    _register("register_dataclass", nodetype, flatten, unflatten)
    return nodetype


def _divided(
    cls: Any, data: Sequence[str] | None, meta: Sequence[str] | None, dropped: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields with children, and the static fields."""
    every = [f for f in dataclasses.fields(cls) if f.init and f.name not in dropped]
    if meta is None:
        meta = [f.name for f in every if (f.metadata.get("static", False) if data is None else f.name not in data)]
    if data is None:
        data = [f.name for f in every if f.name not in meta]
    names = [*data, *meta]
    wrong = {f.name for f in every} ^ set(names) | {n for n in names if names.count(n) > 1}
    if wrong:
        raise ArgumentError(
            f"register_dataclass: data_fields and meta_fields of {cls.__name__} must name each init field once; "
            f"wrong: {', '.join(sorted(wrong))}"
        )
    return tuple(data), tuple(meta)


def register_static(cls: T) -> T:
    """Decorator to register a class, whose instances must be hashable, as structure without leaves.

    Raises:
      ArgumentError: ``cls`` is already registered. ArgumentTypeError: it is not a class.

    Example:
      >>> @mw.tree_util.register_static
      ... class Mode(str):
      ...     pass
      >>> mw.tree.leaves([1, Mode("train"), 2])
      [1, 2]
    """
    _register("register_static", cls, lambda x: ((), x), lambda x, _: x)
    return cls


def is_tree_node(typ: type) -> bool:
    """Whether instances of a class are containers.

    Example:
      >>> mw.tree_util.is_tree_node(dict), mw.tree_util.is_tree_node(int)
      (True, False)
    """
    return optree.register_pytree_node.get(typ, namespace=NAMESPACE) is not None


# --- functions as trees -------------------------------------------------------------------------------------
class Partial(functools.partial):  # type: ignore[type-arg]
    """``functools.partial`` as a container: bound arguments are its children, the function is its structure.

    It can be passed to and returned from transformed functions.

    Example:
      >>> apply = mw.jit(lambda f, x: f(x))
      >>> apply(mw.tree_util.Partial(lambda w, x: w * x, 3), mnp.arange(3))
      Array([0, 3, 6], dtype=int32)
    """

    def __new__(cls, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Partial:
        # functools.partial would merge with another partial, whose arguments need not be arrays.
        whole = isinstance(func, functools.partial) and not isinstance(func, Partial)
        return super().__new__(cls, _Whole(func) if whole else func, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Whole:
    func: Hashable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)  # type: ignore[operator]


_register_with_keys(
    "Partial",
    Partial,
    lambda p: (((GetAttrKey("args"), p.args), (GetAttrKey("keywords"), p.keywords)), p.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)
