"""The names in MLIR bytecode, looked at before MLIR's Python bindings see them.

A name that is no UTF-8 ends the process when the bindings hand it to Python, in a diagnostic or a location, so it has
to be found before. All names are in the string section.

Source: the MLIR bytecode format (https://mlir.llvm.org/docs/BytecodeFormat).
"""

from __future__ import annotations

_STRINGS = 0
_ALIGNED = 0x80


def check_names(data: bytes) -> None:
    """Look at the names in well-formed bytecode.

    Raises:
      UnicodeDecodeError: a name that is no UTF-8.
    """
    _, at = _varint(data, 4)  # behind the magic number: the version
    end_of_producer = data.index(0, at)
    data[at:end_of_producer].decode()
    at = end_of_producer + 1
    while at < len(data):
        kind, at = data[at], at + 1
        length, at = _varint(data, at)
        if kind & _ALIGNED:
            alignment, at = _varint(data, at)
            at += -at % alignment
        if kind & ~_ALIGNED == _STRINGS:
            count, start = _varint(data, at)
            for _ in range(count):
                _, start = _varint(data, start)
            data[start : at + length].decode()
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends. The zeros below the lowest set bit of the first byte count the further bytes."""
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    size = (first & -first).bit_length()
    return int.from_bytes(data[at : at + size], "little") >> size, at + size
