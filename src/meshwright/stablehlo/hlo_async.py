"""Removes the updates of asynchronous operations from HLO text.

An asynchronous operation is read as one that completes where it starts, so an update between its start and its end has
no effect. XLA cannot convert the updates of collectives to StableHLO.
"""

from __future__ import annotations

import re

_NAME = r"%?([\w.-]+)"
#: an update operation; text in quotation marks is not one
_UPDATE = re.compile(rf'^[ \t]*{_NAME} = [^"\n]*\w-update\((?:[^"\n]*\s)?{_NAME}\s*\).*$', re.MULTILINE)


def without_updates(text: str) -> str:
    """HLO text without updates: their users use the operand of the update instead. Line numbers do not change.

    >>> without_updates("  %v = (f32[2]) async-update(%t)\\n  %d = f32[2] async-done(%v)")
    '\\n  %d = f32[2] async-done(%t)'
    """
    while "-update(" in text and (found := _UPDATE.search(text)):
        (new, old), end = found.groups(), _end(text, found.end())
        reader = re.compile(rf"(\w-(?:done|update)\((?:.*\s)?%?){re.escape(new)}(?=\s*\))")
        body = reader.sub(rf"\g<1>{old}", text[found.end() : end])
        text = text[: found.start()] + body + text[end:]
    return text


def _end(text: str, start: int) -> int:
    """The end of the computation that contains ``start``, which is the scope of its names."""
    found = re.compile(r"^[ \t]*\}", re.MULTILINE).search(text, start)
    return found.start() if found else len(text)
