"""Notebook display of objects that are best shown as text."""

from __future__ import annotations

import html


class Printed:
    """Base class of objects whose ``str`` is a text of several lines."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
