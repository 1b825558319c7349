"""Rewrites what older releases of XLA wrote in HLO text, and later ones do not read."""

from __future__ import annotations

import re

#: the version of a custom call's interface where none was given, as in PyTorch/XLA
_NO_VERSION = re.compile(r",\s*api_version=API_VERSION_UNSPECIFIED\b")


def as_written_now(text: str) -> str:
    """HLO text in the form that XLA reads today. Line numbers do not change.

    >>> as_written_now('custom-call(%x), custom_call_target="f", api_version=API_VERSION_UNSPECIFIED')
    'custom-call(%x), custom_call_target="f"'
    """
    return _NO_VERSION.sub("", text) if "API_VERSION_UNSPECIFIED" in text else text
