"""What notebooks show of objects whose text is their best form."""

from __future__ import annotations

import html


class Printed:
    """A base of classes whose ``str`` is a text of several lines."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
