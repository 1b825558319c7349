"""What torch prints and logs of an export that fails: graphs and tracebacks, of which the error says what matters."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.export import _trace
from torch.fx import graph_module

#: modules of torch's that print graphs
_PRINTING: tuple[Any, ...] = (_trace, graph_module)


@contextmanager
def quiet() -> Iterator[None]:
    """Within, these modules print nothing, and warnings and errors that torch logs in this thread are dropped; what it
    logs below these somebody asked for (``TORCH_LOGS``)."""
    thread = threading.get_ident()

    def is_kept(record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING or threading.get_ident() != thread

    known = logging.root.manager.loggerDict.items()
    loggers = [x for name, x in known if f"{name}.".startswith("torch.") and isinstance(x, logging.Logger)]
    for logger in loggers:
        logger.addFilter(is_kept)
    printing = [getattr(module, "print", print) for module in _PRINTING]
    for module in _PRINTING:
        module.print = lambda *_, **__: None
    try:
        yield
    finally:
        for module, before in zip(_PRINTING, printing):
            module.print = before
        for logger in loggers:
            logger.removeFilter(is_kept)
