"""Where in the user's module a node of its graph comes from."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from meshwright.core.source import SourceLocation

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
#: this package, and the libraries of Python, without what is installed beside them
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep


def is_library(file: str) -> bool:
    """Whether a file is torch's own."""
    return file.startswith(_TORCH)


def is_ours(file: str) -> bool:
    """Whether a file is of this package."""
    return file.startswith(_HERE)


def location(node: Any) -> SourceLocation:
    """The innermost line outside of torch; the name stack is the path of the module that ran."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not is_library(f[0])] or frames
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]).replace("L['self'].", "") if modules else ""
    scope = path.replace("/", "_").replace(".", "/")
    if not own:
        return SourceLocation.at("", 0, "", scope)
    file, line, function = own[-1]
    return SourceLocation.at(file, int(line), function, scope)


def described(node: Any) -> str:
    """``model.py:12 (forward)``, for messages."""
    at = location(node)
    return str(at) if at.is_known else "an unknown line"


def user_line(error: BaseException, module: torch.nn.Module | None = None) -> str:
    """The innermost line outside of torch, of Python's libraries and of this package, that an exception went through;
    where there is none, the part of ``module`` that ran."""
    line = part = ""
    names = (
        {}
        if module is None
        else {id(m): f"{name or 'the module'} ({type(m).__name__})" for name, m in module.named_modules()}
    )
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        part = names.get(id(trace.tb_frame.f_locals.get("self")), part)
        if not _is_foreign(code.co_filename):
            line = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} ({code.co_name})"
        trace = trace.tb_next
    if line:
        return line
    frames = [f for f in _FRAME.findall(str(error)) if not _is_foreign(f[0])]
    return (
        f"{os.path.basename(frames[-1][0])}:{frames[-1][1]} ({frames[-1][2]})" if frames else part or "an unknown line"
    )


def _is_foreign(file: str) -> bool:
    """Whether a file is none of the user's: torch's, of Python's libraries, of this package, or none at all."""
    if file.startswith(_PYTHON):
        return "-packages" not in file[len(_PYTHON) :] or is_library(file)
    return is_library(file) or file.startswith((_HERE, "<"))
