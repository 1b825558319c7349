"""Arrays as text and in files, by NumPy's functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.files import user_file
from meshwright.numpy.creation import asarray
from meshwright.runtime.array import Array

#: NumPy's print options, which also apply to our arrays
set_printoptions, get_printoptions, printoptions = np.set_printoptions, np.get_printoptions, np.printoptions


def array_repr(
    arr: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:  # fmt: skip
    """The array as an expression, with NumPy's print options.

    >>> array_repr(np.array([1, 2]))
    'Array([1, 2], dtype=int32)'
    """
    x = asarray(arr)
    if type(x) is not Array or (max_line_width is None and precision is None and suppress_small is None):
        return repr(x)
    text = np.array2string(np.asarray(x), max_line_width, precision, suppress_small, separator=", ", prefix="Array(")
    return f"Array({text}, dtype={x.dtype.name})"


def array_str(
    a: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:  # fmt: skip
    """The array's elements as text.

    >>> array_str(np.array([1, 2]))
    '[1 2]'
    """
    x = asarray(a)
    return np.array_str(np.asarray(x), max_line_width, precision, suppress_small) if type(x) is Array else str(x)


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """Write an array to a ``.npy`` file (a name or a file object); dtypes that NumPy lacks are stored as its ``V``.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> save(buffer, np.array([1, 2]))
    >>> load(io.BytesIO(buffer.getvalue())).tolist()
    [1, 2]
    """
    with user_file("save: file", file):
        np.save(file, np.asarray(arr), allow_pickle)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write arrays, by number or by name, to one ``.npz`` file.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> savez(buffer, x=np.array([1, 2]))
    >>> load(io.BytesIO(buffer.getvalue()))["x"].tolist()
    [1, 2]
    """
    named: dict[str, Any] = {name: np.asarray(x) for name, x in kwds.items()}
    with user_file("savez: file", file):
        np.savez(file, *map(np.asarray, args), **named)


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a file written by :func:`save` as an array, or one by :func:`savez` as NumPy arrays by name.

    Of the dtypes that NumPy lacks, ``bfloat16`` alone can be told.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> save(buffer, np.array([[3.0]]))
    >>> load(io.BytesIO(buffer.getvalue())).shape
    (1, 1)
    """
    with user_file("load: file", file):
        loaded = np.load(file, *args, **kwargs)
    if not isinstance(loaded, np.ndarray):
        return loaded
    # The format has no name for the dtypes that NumPy lacks; as in JAX, two bytes without one are bfloat16.
    return asarray(loaded.view(dtypes.bfloat16) if loaded.dtype.str == "|V2" else loaded)


def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0) -> Any:
    """A vector of the numbers in a file, binary or (with ``sep``) text (``numpy.fromfile``).

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers"
    >>> _ = path.write_bytes(bytes([1, 2]))
    >>> fromfile(path, "uint8").tolist()
    [1, 2]
    """
    with user_file("fromfile: file", file):
        numbers = np.fromfile(file, dtypes.as_dtype(dtype), count, sep, offset)
    return asarray(numbers)


def fromiter(iter: Iterable[Any], dtype: Any, count: int = -1) -> Any:
    """A vector of the elements of an iterable.

    >>> fromiter((i * i for i in range(3)), "int32").tolist()
    [0, 1, 4]
    """
    return asarray(np.fromiter(iter, dtypes.as_dtype(dtype), count))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Any:
    """A vector of the numbers in a string, separated by ``sep``.

    >>> fromstring("1, 2", "int32", sep=",").tolist()
    [1, 2]
    """
    return asarray(np.fromstring(string, dtypes.as_dtype(dtype), count, sep=sep))


def isscalar(element: Any) -> bool:
    """Whether ``element`` is a number or an array without dimensions.

    >>> isscalar(1.5), isscalar(np.ones(2))
    (True, False)
    """
    return np.isscalar(element) or (hasattr(element, "dtype") and np.ndim(element) == 0)


def iterable(y: Any) -> bool:
    """Whether ``y`` can be iterated over.

    >>> iterable([1]), iterable(1)
    (True, False)
    """
    return np.iterable(y)
