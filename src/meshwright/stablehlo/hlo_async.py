"""Operations of HLO text that are started, updated and waited for: here without the updates.

What is started at one place and waited for at another is done at once, so what looks after it in between does nothing.
XLA does not write it as StableHLO where the operation is a collective.
"""

from __future__ import annotations

import re

_NAME = r"%?([\w.-]+)"
#: an operation of this name: what stands in quotation marks is none
_UPDATE = re.compile(rf'^[ \t]*{_NAME} = [^"\n]*\w-update\((?:[^"\n]*\s)?{_NAME}\s*\).*$', re.MULTILINE)


def without_updates(text: str) -> str:
    """HLO text in which what waits for an update waits for what it updates. Lines stay where they are.

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
    """Where the computation ends in which ``start`` lies: names are its own."""
    found = re.compile(r"^[ \t]*\}", re.MULTILINE).search(text, start)
    return found.start() if found else len(text)
