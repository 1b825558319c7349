"""Checks that the names in MLIR bytecode are UTF-8.

MLIR's Python bindings crash when they pass another name to Python, in a diagnostic or a location, so names are checked
first. All names are in the string section.

Source: the MLIR bytecode format (https://mlir.llvm.org/docs/BytecodeFormat).
"""

from __future__ import annotations

_STRINGS = 0
_ALIGNED = 0x80


def check_names(data: bytes) -> None:
    """Check the names in well-formed bytecode.

    Raises:
      UnicodeDecodeError: a name is not UTF-8.
    """
    _, at = _varint(data, 4)  # the version, after the magic number
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
    """A number in MLIR's variable-length encoding, and the offset after it.

    The zeros below the lowest set bit of the first byte are the number of further bytes.
    """
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    size = (first & -first).bit_length()
    return int.from_bytes(data[at : at + size], "little") >> size, at + size
