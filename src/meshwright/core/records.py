"""``dataclass`` like the standard library's, at a fifth of the cost, since importing creates hundreds of them.

The standard library generates, compiles and runs the source of up to six functions per class. Here only ``__init__`` is
generated source, compiled once for all classes with the same fields; the other functions are closures over field names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

from meshwright.errors import ArgumentTypeError

T = TypeVar("T")


@overload
@dataclass_transform(field_specifiers=(field,))
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
@dataclass_transform(field_specifiers=(field,))
def dataclass(
    *, frozen: bool = False, eq: bool = True, repr: bool = True, init: bool = True
) -> Callable[[type[T]], type[T]]: ...
def dataclass(
    cls: Any = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, init: bool = True
) -> Any:
    """``dataclasses.dataclass``, for classes without slots and order."""

    def make(cls: Any) -> Any:
        explicit_hash = cls.__dict__.get("__hash__", MISSING)
        has_hash = explicit_hash is not MISSING and not (explicit_hash is None and "__eq__" in cls.__dict__)
        _collect(cls, frozen)
        fields = dataclasses.fields(cls)
        methods: dict[str, Any] = {}
        if repr:
            methods["__repr__"] = _repr(tuple(f.name for f in fields if f.repr))
        if eq:
            methods["__eq__"] = _eq(_getter(tuple(f.name for f in fields if f.compare)))
        if init:
            methods["__init__"] = _init(cls, fields, frozen)
        for name, function in methods.items():
            if name not in cls.__dict__:
                setattr(cls, name, function)
        if eq and not has_hash:
            names = tuple(f.name for f in fields if (f.compare if f.hash is None else f.hash))
            cls.__hash__ = _hash(_getter(names)) if frozen else None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _frozen(cls, frozenset(f.name for f in fields))
        return cls

    return make if cls is None else make(cls)


def _collect(cls: Any, frozen: bool) -> None:
    """Let the standard library collect the fields; it would generate the functions of frozen classes, too."""
    bases = [b.__dict__["__dataclass_params__"] for b in cls.__mro__[1:] if "__dataclass_params__" in b.__dict__]
    if bases and any(p.frozen for p in bases) != frozen:
        raise ArgumentTypeError(
            f"{cls.__qualname__}: a dataclass that is frozen and one that is not cannot inherit from each other; "
            "freeze both, or none"
        )
    for params in bases:
        params.frozen = False
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    finally:
        for params in bases:
            params.frozen = frozen
    cls.__dataclass_params__.frozen = frozen


def _frozen(cls: type[Any], names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    """``__setattr__`` and ``__delattr__``; subclasses that are not dataclasses may have additional attributes."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


@cache
def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns the values of the fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda self: ()
    one = attrgetter(names[0])
    return lambda self: (one(self),)


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


# --- __init__ -----------------------------------------------------------------------------------------------
@cache
def _maker(parameters: tuple[str, ...], statements: tuple[str, ...]) -> Callable[..., Any]:
    """Create a factory of ``__init__``, given the defaults and default factories of a class."""
    body = "\n  ".join(statements) or "pass"
    head = f"def make(set_, default, factory, missing):\n def __init__({', '.join(parameters)}):\n"
    namespace: dict[str, Any] = {}
    exec(f"{head}  {body}\n return __init__", namespace)
    make: Callable[..., Any] = namespace["make"]
    return make


def _init(cls: type[Any], fields: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    taken = [f for f in fields if f.init]
    plain, named = ([f for f in taken if f.kw_only is only] for only in (False, True))
    _check_order(plain)
    parameters = ["self", *map(_parameter, plain), *(["*", *map(_parameter, named)] if named else [])]
    statements = [s for f in fields if (s := _statement(f, frozen))]
    if hasattr(cls, "__post_init__"):
        statements.append("self.__post_init__()")
    default = {f.name: f.default for f in fields}
    factory = {f.name: f.default_factory for f in fields}
    init: Any = _maker(tuple(parameters), tuple(statements))(object.__setattr__, default, factory, MISSING)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in taken} | {"return": None}
    return init  # type: ignore[no-any-return]


def _check_order(fields: list[Field[Any]]) -> None:
    optional = False
    for f in fields:
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        if optional and not has_default:
            raise ArgumentTypeError(f"non-default argument {f.name!r} follows default argument; put it first")
        optional = optional or has_default


def _parameter(f: Field[Any]) -> str:
    if f.default is not MISSING:
        return f"{f.name}=default[{f.name!r}]"
    return f"{f.name}=missing" if f.default_factory is not MISSING else f.name


def _statement(f: Field[Any], frozen: bool) -> str:
    """The statement that sets a field; empty if its default is the class attribute."""
    default = f"factory[{f.name!r}]()"
    if f.default_factory is not MISSING:
        value = f"{default} if {f.name} is missing else {f.name}" if f.init else default
    elif f.init:
        value = f.name
    else:
        return ""
    return f"set_(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}"
