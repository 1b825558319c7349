"""``debug.breakpoint``: a prompt in a running program, with the variables of the functions that were being traced.

Source: ``jax.debug.breakpoint`` for the interface; the commands are those of Python's ``pdb``.
"""

from __future__ import annotations

import cmd
import linecache
import pprint
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any, ClassVar

from meshwright.core import pytree
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.source import is_ours
from meshwright.errors import CallbackError
from meshwright.ir.tracing import Tracer
from meshwright.ops.control.callback import DebugCallback
from meshwright.ops.random.keys import unwrap_keys

_LINES = 5


@dataclass(frozen=True, eq=False)
class _Frame:
    """A frame of a user's function: its line and variables."""

    file: str
    line: int
    function: str
    names: dict[str, Any]
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}({self.line}) {self.function}\n-> {linecache.getline(self.file, self.line).strip()}"


def _users(frame: FrameType | None, all_frames: bool) -> Iterator[FrameType]:
    while frame is not None:
        if all_frames or not is_ours(frame.f_code):
            yield frame
        frame = frame.f_back


def _is_live(x: Any) -> bool:
    return isinstance(x, Tracer) and x.owner.alive


@dataclass(frozen=True, eq=False)
class _Stop:
    """The callback of a breakpoint, called with the values of the traced variables of ``frames``."""

    frames: list[_Frame]
    tree: Any
    leaves: list[Any]
    ends: tuple[Any, Any]

    def __call__(self, *arrays: Any) -> list[Any]:
        given = iter(arrays)
        values = pytree.unflatten(self.tree, [next(given) if _was_traced(x) else x for x in self.leaves])
        Prompt([_Frame(f.file, f.line, f.function, f.names, v) for f, v in zip(self.frames, values)], *self.ends).run()
        return []


class _Traced:
    """A placeholder for a value that the program passes."""


def _was_traced(x: Any) -> bool:
    return isinstance(x, _Traced)


def breakpoint(
    *, backend: str | None = None, filter_frames: bool = True, num_frames: int | None = None, ordered: bool = False,
    stdin: Any = None, stdout: Any = None,
) -> None:  # fmt: skip
    """Stop with a prompt whenever the program runs this line; ``h`` lists the commands of the prompt.

    It shows the variables of the calling functions. Traced variables have their values in the program, and random keys
    are shown as their words. Like ``debug.callback``, it stops in the forward computation, for each entry under
    ``vmap``, and once on a mesh, with whole arrays. ``q`` ends the program with an error.

    Args:
      backend: accepted for compatibility and ignored; the prompt is in this process's terminal.
      filter_frames: if False, show the library's own functions too.
      num_frames: the maximum number of functions to show.
      ordered: stop in program order with other ordered callbacks.
      stdin, stdout: files to use instead of those of the process.

    Raises (when the program runs):
      CallbackError: the prompt was left with ``q``.

    Example:
      >>> import io
      >>> commands, shown = io.StringIO("p x + 1"), io.StringIO()
      >>> def f(x):
      ...     mw.debug.breakpoint(stdin=commands, stdout=shown)
      ...     return x
      >>> mw.jit(f)(2), "3" in shown.getvalue()
      (Array(2, dtype=int32, weak_type=True), True)
    """
    del backend
    found = list(islice(_users(sys._getframe(1), not filter_frames), num_frames))
    frames = [_Frame(f.f_code.co_filename, f.f_lineno, f.f_code.co_name, f.f_globals, {}) for f in found]
    leaves, tree = pytree.flatten([dict(f.f_locals) for f in found])
    traced = [unwrap_keys(x) if is_key(x.aval.dtype) else x for x in leaves if _is_live(x)]
    kept = [_Traced() if _is_live(x) else x for x in leaves]
    DebugCallback(_Stop(frames, tree, kept, (stdin, stdout)), "breakpoint", (), bool(ordered)).bind(*traced)


class Prompt(cmd.Cmd):
    """Reads commands until one of them continues the program."""

    prompt = "(mwdb) "
    aliases: ClassVar[dict[str, str]] = {
        "c": "continue", "cont": "continue", "EOF": "continue", "q": "quit", "exit": "quit", "u": "up", "d": "down",
        "l": "list", "bt": "where", "w": "where", "h": "help", "?": "help",
    }  # fmt: skip

    def __init__(self, frames: list[_Frame], stdin: Any, stdout: Any) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.frames, self.at = frames, 0

    @property
    def frame(self) -> _Frame:
        return self.frames[self.at]

    def run(self) -> None:
        """Show the current line and read commands."""
        self.say(self.frame)
        self.cmdloop()

    def say(self, text: Any) -> None:
        self.stdout.write(f"{text}\n")

    def onecmd(self, line: str) -> bool:
        name, *rest = line.split(None, 1) or [""]
        return bool(super().onecmd(" ".join([self.aliases.get(name, name), *rest])))

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        """An expression of Python."""
        self.do_p(line)

    def _shown(self, expression: str, form: Any) -> None:
        try:
            self.say(form(eval(expression, self.frame.names, self.frame.values)))
        except Exception as error:
            self.say(f"*** {type(error).__name__}: {error}")

    def do_p(self, expression: str) -> None:
        """p EXPRESSION: its value, with the variables of the function that is looked at."""
        self._shown(expression, repr)

    def do_pp(self, expression: str) -> None:
        """pp EXPRESSION: its value, on several lines."""
        self._shown(expression, pprint.pformat)

    def do_list(self, _: str) -> None:
        """l: the lines around."""
        for number in range(max(self.frame.line - _LINES, 1), self.frame.line + _LINES + 1):
            if text := linecache.getline(self.frame.file, number):
                self.say(f"{number:4}{' ->' if number == self.frame.line else '   '} {text.rstrip()}")

    def do_where(self, _: str) -> None:
        """bt: the functions that led here, the innermost last."""
        for i, frame in reversed(list(enumerate(self.frames))):
            self.say(f"{'>' if i == self.at else ' '} {frame}")

    def _go(self, by: int) -> None:
        if 0 <= self.at + by < len(self.frames):
            self.at += by
        self.say(self.frame)

    def do_up(self, _: str) -> None:
        """u: look at the function that called this one."""
        self._go(1)

    def do_down(self, _: str) -> None:
        """d: look at the function that this one called."""
        self._go(-1)

    def do_continue(self, _: str) -> bool:
        """c: go on."""
        return True

    def do_quit(self, _: str) -> bool:
        """q: end the program with an error."""
        raise CallbackError("debug.breakpoint: the program was ended at the prompt")
