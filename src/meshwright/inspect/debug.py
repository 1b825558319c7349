"""``meshwright.debug``: what values are and where, on arrays and inside traced functions.

Inside a traced function nobody knows a value or a sharding yet: values are shown when the program runs, shardings when
it is partitioned, with the layout that the partitioner chose.

Source: ``jax.debug`` for the interface.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.absent import absent as _absent
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
from meshwright.runtime.executable import as_array
from meshwright.sharding import Sharding
from meshwright.transforms.wrapped import name_of, require_callable

__all__ = [
    "ShardingPicture",
    "callback",
    "inspect_array_sharding",
    "picture_of",
    "print",
    "visualize_array_sharding",
    "visualize_sharding",
]

_show = print


@dataclass(frozen=True)
class _Effect:
    """A function of trees, of which some leaves are fixed, as one of flat arrays and without results."""

    fun: Callable[..., Any]
    tree: Any
    fixed: tuple[tuple[int, Any], ...]

    def __call__(self, *arrays: Any) -> list[Any]:
        fixed, given = dict(self.fixed), iter(arrays)
        leaves = [fixed[i] if i in fixed else next(given) for i in range(self.tree.num_leaves)]
        args, kwargs = pytree.unflatten(self.tree, leaves)
        self.fun(*args, **kwargs)
        return []


def _is_array(x: Any) -> bool:
    return isinstance(x, (Tracer, np.ndarray, np.generic, int, float, complex)) or hasattr(x, "__array__")


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> None:
    """Calls ``callback(*args, **kwargs)`` with NumPy arrays whenever the program comes by, ignoring what it returns.

    It has no part in derivatives (it sees the values of the forward computation); under ``vmap`` it is called for each
    entry. Leaves that are no arrays, such as strings, are passed as they are, of random keys the words. On a mesh it
    gets whole arrays, once, in the process of the mesh's first device; in a ``shard_map`` each device calls it.

    Args:
      ordered: callbacks with ``ordered=True`` happen in program order, in a ``shard_map`` in that of each device.
      partitioned: whether the part of each device is passed; refused where there are several devices.

    Raises:
      ArgumentError: ``partitioned`` on several devices; CallbackError: (from the program) it raised.

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


def _effect(fun: Callable[..., Any], name: str, args: Any, kwargs: Any, ordered: bool) -> None:
    leaves, tree = pytree.flatten((args, kwargs))
    fixed = tuple((i, x) for i, x in enumerate(leaves) if not _is_array(x))
    arrays = [unwrap_keys(x) if is_key(typeof(x).dtype) else x for x in leaves if _is_array(x)]
    DebugCallback(_Effect(fun, tree, fixed), name, (), bool(ordered)).bind(*arrays)


class _Checker(string.Formatter):
    """Looks at a format without formatting: which arguments it names, and that each is used."""

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

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _show(self.text.format(*args, **kwargs) + "\n", end="", flush=True)  # at once: devices print side by side


def print(
    fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, skip_format_check: bool = False,
    **kwargs: Any,
) -> None:  # fmt: skip
    """Prints ``fmt.format(*args, **kwargs)`` whenever the program comes by, with the values of that run.

    See :func:`callback`.

    Args:
      fmt: a format string: ``"x is {}"`` with ``x``, or ``"x is {x}"`` with ``x=x``.
      skip_format_check: whether a format that does not fit is found only when the program comes by.

    Raises:
      ArgumentError: the format does not fit the arguments. CallbackError: (from the program) the same.

    Example:
      >>> @mw.jit
      ... def f(x):
      ...     mw.debug.print("x is {}, twice it {y}", x, y=2 * x)
      ...     return x
      >>> f(1.5).item()
      x is 1.5, twice it 3.0
      1.5
    """
    _whole("print", partitioned)
    if not isinstance(fmt, str):
        raise ArgumentTypeError(f"debug.print: the first argument must be a format string, got {fmt!r}; pass '{{}}', x")
    if not skip_format_check:
        _check_format(fmt, args, kwargs)
    _effect(_Printer(fmt), "print", args, kwargs, ordered)


def _check_format(fmt: str, args: Any, kwargs: Any) -> None:
    """Raise unless the arguments are those that a format names."""
    try:
        _Checker().vformat(fmt, args, kwargs)
    except (IndexError, KeyError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"debug.print: the format {fmt!r} does not fit {counted(len(args), 'positional argument')} and "
            f"{sorted(kwargs)}: {error}; pass what it names, and write braces themselves as '{{{{'"
        ) from None


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Calls ``callback`` with the sharding of ``value``: at once for an array, inside a jitted function at each
    compilation (or ``.partition()``) of the program.

    Raises:
      ArgumentTypeError: ``callback`` is no function, or ``value`` no array.

    Example:
      >>> specs = []
      >>> @mw.jit
      ... def f(x):
      ...     mw.debug.inspect_array_sharding(x, callback=lambda s: specs.append(s.spec))
      ...     return 2 * x
      >>> y = f(mw.device_put(mnp.arange(8), mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))))
      >>> specs
      [PartitionSpec('x',)]
    """
    if not callable(callback):
        raise ArgumentTypeError(
            f"inspect_array_sharding: callback must be a function of a sharding, got {callback!r}; pass callback=print"
        )
    typeof(value)
    InspectSharding(callback).bind(value if isinstance(value, Tracer) else as_array(value))


def visualize_array_sharding(array: Any, **options: Any) -> None:
    """Shows which device holds which part of an array (anything with ``shape`` and ``sharding``).

    Inside a jitted function it is shown when the program is compiled. ``options`` (``use_color``, ``scale``,
    ``min_width``, ``max_width``) are those of :func:`visualize_sharding`.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"))
      >>> mw.debug.visualize_array_sharding(mw.device_put(mnp.arange(8), mw.NamedSharding(mesh, P("x"))))
      ┌─────────┬─────────┐
      │ CPU 0-3 │ CPU 4-7 │
      └─────────┴─────────┘
    """
    if isinstance(array, Tracer):
        shape = array.shape
        inspect_array_sharding(array, callback=lambda s: visualize_sharding(shape, s, **options))
    else:
        _visualize(array, **options)


__getattr__ = _absent("debug")
