"""The report of a partitioned program as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ccc;padding:.3em .8em;text-align:left;vertical-align:top}pre{overflow-x:auto}"
)


def page(part: Any) -> str:
    """The page: collectives and their causes, shardings of arguments and results, step time, memory, per-device
    program."""
    shardings = [
        *(("argument", *row) for row in zip(part.names, part.program.jaxpr.in_avals, part.in_shardings)),
        *(("result", str(i), a, s) for i, (a, s) in enumerate(zip(part.out_avals, part.out_shardings))),
    ]
    sections = [
        ("Communication", part.explain()._repr_html_()),
        ("Shardings", _table(("", "name", "type", "sharding"), shardings)),
        ("Step time", _text(part.time())),
        ("Memory", _text(part.memory)),
        ("Arithmetic", _text(part.work)),
        ("The program of one device", _text(part.as_text())),
    ]
    title = html.escape(repr(part))
    body = "".join(f"<h2>{name}</h2>{content}" for name, content in sections)
    return (
        f"<!DOCTYPE html><html><head><meta charset='utf-8'><title>{html.escape(part.name)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(part.name)}</h1><p>{title}</p>{body}</body></html>\n"
    )


def _text(value: Any) -> str:
    return f"<pre>{html.escape(str(value))}</pre>"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["".join(f"<th>{name}</th>" for name in head)]
    lines += ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
