"""``meshwright.debug``: shows values and shardings of arrays, also inside traced functions.

Inside a traced function, values are shown when the program runs, and shardings when it is partitioned, as the
partitioner has chosen them.

Source: ``jax.debug`` for the interface.
"""

from __future__ import annotations

import functools
import logging
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import pytree, source
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.inspect.picture import ShardingPicture, picture_of, visualize_sharding
from meshwright.inspect.picture import visualize_array_sharding as _visualize
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.control.callback import DebugCallback
from meshwright.ops.random.keys import unwrap_keys
from meshwright.ops.sharding.inspect_sharding import InspectSharding
from meshwright.runtime.devices import device_count
from meshwright.runtime.host_calls import as_given
from meshwright.runtime.values import as_array
from meshwright.sharding import Sharding
from meshwright.transforms.wrapped import name_of, require_callable

__all__ = [
    "ShardingPicture",
    "callback",
    "inspect_array_sharding",
    "log",
    "picture_of",
    "print",
    "visualize_array_sharding",
    "visualize_sharding",
]

_show = print
_LOGGER = logging.getLogger("meshwright")


@dataclass(frozen=True)
class _Effect:
    """A function of pytrees with some fixed leaves, as a function of flat arrays without results."""

    fun: Callable[..., Any]
    tree: Any
    fixed: tuple[tuple[int, Any], ...]
    in_numpy: bool

    def __call__(self, *arrays: Any) -> list[Any]:
        fixed, given = dict(self.fixed), iter(arrays) if self.in_numpy else map(as_given, arrays)
        leaves = [fixed[i] if i in fixed else next(given) for i in range(self.tree.num_leaves)]
        args, kwargs = pytree.unflatten(self.tree, leaves)
        self.fun(*args, **kwargs)
        return []


def _is_array(x: Any) -> bool:
    return isinstance(x, (Tracer, np.ndarray, np.generic, int, float, complex)) or hasattr(x, "__array__")


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> None:
    """Call ``callback(*args, **kwargs)`` with arrays whenever the program runs this line; its result is ignored.

    Under differentiation it gets the values of the forward computation; under ``vmap`` it is called for each entry.
    Leaves that are not arrays, such as strings, are passed unchanged, and random keys as their words. On a mesh it is
    called once, with whole arrays, in the process of the mesh's first device; in a ``shard_map`` each device calls it.

    Args:
      callback: a Python function.
      args, kwargs: pytrees that are passed to it.
      ordered: callbacks with ``ordered=True`` are called in program order; in a ``shard_map``, on each device.
      partitioned: pass each device's part; not supported on several devices.

    Raises:
      ArgumentError: ``partitioned`` is True and there are several devices.
      CallbackError: (when the program runs) the callback raised an exception.

    Example:
      >>> seen = []
      >>> f = lambda x: (mw.debug.callback(lambda v: seen.append(v.item()), x), x**2)[1]
      >>> float(mw.jit(mw.grad(f))(3.0)), seen
      (6.0, [3.0])
    """
    require_callable(callback, "debug.callback")
    _whole("callback", partitioned)
    _effect(callback, name_of(callback), args, kwargs, ordered)


def _whole(name: str, partitioned: bool) -> None:
    if partitioned and device_count() > 1:
        raise ArgumentError(
            f"debug.{name}: partitioned=True, a call for each device's part, is not done; the function is called with "
            "whole arrays"
        )


def _effect(fun: Callable[..., Any], name: str, args: Any, kwargs: Any, ordered: bool, in_numpy: bool = False) -> None:
    leaves, tree = pytree.flatten((args, kwargs))
    fixed = tuple((i, x) for i, x in enumerate(leaves) if not _is_array(x))
    arrays = [unwrap_keys(x) if is_key(typeof(x).dtype) else x for x in leaves if _is_array(x)]
    DebugCallback(_Effect(fun, tree, fixed, in_numpy), name, (), bool(ordered)).bind(*arrays)


class _Checker(string.Formatter):
    """Checks, without formatting, that the arguments of a format exist and are all used."""

    def format_field(self, value: Any, spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value

    def check_unused_args(self, used: Any, args: Any, kwargs: Any) -> None:
        unused = [str(i) for i in range(len(args)) if i not in used] + [k for k in kwargs if k not in used]
        if unused:
            raise ArgumentError(
                f"debug.print: the format does not use argument {', '.join(unused)}; name it as in '{{}}' or '{{x}}' "
                "with x=x, or leave it out"
            )


@dataclass(frozen=True)
class _Printer:
    text: str

    def line(self, args: Any, kwargs: Any) -> str:
        """The formatted text; if the format names no arguments, they are appended."""
        if any(field is not None for _, field, _, _ in string.Formatter().parse(self.text)):
            return self.text.format(*args, **kwargs)
        return " ".join((self.text.format(), *map(str, args)))

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _show(self.line(args, kwargs) + "\n", end="", flush=True)  # a single write, as devices print concurrently


@dataclass(frozen=True)
class _Logger(_Printer):
    """Like :class:`_Printer`, but writes a record of the logger ``meshwright`` with the user's line."""

    file: str
    number: int

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        record = _LOGGER.makeRecord(
            _LOGGER.name, logging.INFO, self.file, self.number, "%s", (self.line(args, kwargs),), None
        )
        _LOGGER.handle(record)


def log(
    fmt: str | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
    skip_format_check: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """:func:`print` to the logger ``meshwright``, as a record of level INFO with the line of the call.

    Raises:
      ArgumentError: the format does not fit the arguments.

    Example:
      >>> import logging
      >>> lines = []
      >>> handler = logging.Handler()
      >>> handler.emit = lambda record: lines.append(record.getMessage())
      >>> logging.getLogger("meshwright").addHandler(handler)
      >>> y = mw.jit(lambda x: (mw.debug.log("x is {}", x), x + 1)[1])(2)
      >>> mw.effects_barrier()
      >>> logging.getLogger("meshwright").removeHandler(handler)
      >>> lines
      ['x is 2']
    """
    place = source.current()
    write = functools.partial(_Logger, file=place.file, number=place.line)
    return _printed("log", write, fmt, args, kwargs, ordered, partitioned, skip_format_check)


def print(
    fmt: str | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
    skip_format_check: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Print ``fmt.format(*args, **kwargs)`` whenever the program runs this line, with the values of that run.

    It behaves as :func:`callback`. Called without a format, it returns a function that takes the format and its
    arguments: ``print(ordered=True)("{}", x)``.

    Args:
      fmt: a format string: ``"x is {}"`` with ``x``, or ``"x is {x}"`` with ``x=x``.
      ordered, partitioned: as in :func:`callback`.
      skip_format_check: check only when the program runs whether the format fits its arguments.

    Raises:
      ArgumentError: the format does not fit the arguments.
      CallbackError: (when the program runs) the same, with ``skip_format_check``.

    Example:
      >>> @mw.jit
      ... def f(x):
      ...     mw.debug.print("x is {}, twice it {y}", x, y=2 * x)
      ...     return x
      >>> f(1.5).item()
      x is 1.5, twice it 3.0
      1.5
    """
    return _printed("print", _Printer, fmt, args, kwargs, ordered, partitioned, skip_format_check)


def _printed(
    name: str, write: Callable[[str], _Printer], fmt: Any, args: Any, kwargs: Any, ordered: bool, partitioned: bool,
    skip_check: bool,
) -> Any:  # fmt: skip
    """Add the callback ``write(fmt)`` to the program; without a format, return a function that does."""
    _whole(name, partitioned)
    if fmt is None and not args and not kwargs:
        return lambda fmt, *args, **kwargs: _printed(name, write, fmt, args, kwargs, ordered, False, skip_check)
    if not isinstance(fmt, str):
        raise ArgumentTypeError(
            f"debug.{name}: the first argument must be a format string, got {fmt!r}; pass '{{}}', x"
        )
    if not skip_check:
        _check_format(name, fmt, args, kwargs)
    _effect(write(fmt), name, args, kwargs, ordered, in_numpy=True)
    return None


def _check_format(name: str, fmt: str, args: Any, kwargs: Any) -> None:
    """Raise ``ArgumentError`` unless the arguments are those that the format names."""
    try:
        _Checker().vformat(fmt, args, kwargs)
    except (IndexError, KeyError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"debug.{name}: the format {fmt!r} does not fit {counted(len(args), 'positional argument')} and "
            f"{sorted(kwargs)}: {error}; pass what it names, and write braces themselves as '{{{{'"
        ) from None


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call ``callback`` with the sharding of ``value``.

    For an array this happens at once, inside a jitted function whenever the program is compiled or partitioned.

    Raises:
      ArgumentTypeError: ``callback`` is not callable, or ``value`` is not an array.

    Example:
      >>> specs = []
      >>> @mw.jit
      ... def f(x):
      ...     mw.debug.inspect_array_sharding(x, callback=lambda s: specs.append(s.spec))
      ...     return 2 * x
      >>> y = f(mw.device_put(mnp.arange(8), mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))))
      >>> specs
      [P('x',)]
    """
    if not callable(callback):
        raise ArgumentTypeError(
            f"inspect_array_sharding: callback must be a function of a sharding, got {callback!r}; pass callback=print"
        )
    typeof(value)
    InspectSharding(callback).bind(value if isinstance(value, Tracer) else as_array(value))


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """Print a picture of the devices that hold each part of an array (anything with ``shape`` and ``sharding``).

    Inside a jitted function it is printed when the program is compiled. ``options`` (``use_color``, ``scale``,
    ``min_width``, ``max_width``) are those of :func:`visualize_sharding`.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"))
      >>> mw.debug.visualize_array_sharding(mw.device_put(mnp.arange(8), mw.NamedSharding(mesh, P("x"))))
      ┌─────────┬─────────┐
      │ CPU 0-3 │ CPU 4-7 │
      └─────────┴─────────┘
    """
    if isinstance(arr, Tracer):
        shape = arr.shape
        inspect_array_sharding(arr, callback=lambda s: visualize_sharding(shape, s, **options))
    else:
        _visualize(arr, **options)
