"""The ``Pass`` type, and two basic passes over jaxprs: call inlining and dead-code elimination."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshwright.core.collector import collector_paused
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import joined
from meshwright.core.weak import once_for_each
from meshwright.errors import DumpError, NestingError
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, nesting
from meshwright.ir.op import Op
from meshwright.ir.verify import verify

#: the depth of nested calls below which they are kept as calls
MOST_NESTED = 64
#: the largest number of equations that inlining may produce
_MOST_EQUATIONS = 4_000_000


@dataclass(frozen=True)
class Pass:
    """A named function from jaxpr to jaxpr, with a one-sentence description ``about``."""

    name: str
    apply: Callable[[ClosedJaxpr], ClosedJaxpr]
    about: str = ""


@collector_paused()
def run_passes(
    jaxpr: ClosedJaxpr,
    passes: Sequence[Pass],
    check: bool = False,
    changed: Callable[[Pass, ClosedJaxpr, ClosedJaxpr], None] = lambda *_: None,
    seen: set[Any] | None = None,
) -> ClosedJaxpr:
    """Apply the passes in order. After each that changes the program, call ``changed(pass, before, after)``.

    A changed program is dumped to ``config.dump_ir``, if set, and verified if ``check`` or ``config.verify_passes`` is
    set. Equations that earlier passes left unchanged, or that are in ``seen``, are not type-checked again.

    Raises:
      VerifierError: a pass returned a malformed program.
    """
    seen = set() if seen is None else seen
    for step in passes:
        after = step.apply(jaxpr)
        if after is jaxpr:
            continue
        if check or config.verify_passes:
            verify(after, f"after pass {step.name!r}", seen)
        dump(after, step.name)
        changed(step, jaxpr, after)
        jaxpr = after
    return jaxpr


def dump(jaxpr: ClosedJaxpr, step: str) -> None:
    """Write the program after ``step`` to a new numbered file in the folder ``config.dump_ir``, if that is set.

    Raises:
      DumpError: the folder cannot be written to.
    """
    if config.dump_ir is None:
        return
    folder = Path(config.dump_ir)
    name = re.sub(r"[\W_]+", "_", f"{jaxpr.jaxpr.debug_name}_{step}").strip("_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.iterdir())
        (folder / f"{number:03d}_{name}.txt").write_text(f"{jaxpr}\n", encoding="utf-8")
    except OSError as error:
        raise DumpError(f"dump_ir: {folder} cannot be written to ({error}); choose another folder") from None


def dead_code(jaxpr: ClosedJaxpr, keep_effects: bool = True) -> ClosedJaxpr:
    """The jaxpr without equations and constants that are not used.

    Equations with effects are kept, unless ``keep_effects`` is False.
    """
    inner = jaxpr.jaxpr
    live: set[Atom] = set(inner.outvars)
    kept: list[JaxprEqn] = []
    for eqn in reversed(inner.eqns):
        if not live.isdisjoint(eqn.outvars) or (keep_effects and eqn.op.has_effects):
            kept.append(eqn)
            live.update(eqn.invars)
    kept.reverse()
    pairs = [(v, c) for v, c in zip(inner.constvars, jaxpr.consts) if v in live]
    if len(kept) == len(inner.eqns) and len(pairs) == len(inner.constvars):
        return jaxpr
    return ClosedJaxpr(inner.replace(eqns=kept, constvars=[v for v, _ in pairs]), [c for _, c in pairs])


def inline_calls(jaxpr: ClosedJaxpr, chosen: Callable[[Op], bool] = lambda op: True) -> ClosedJaxpr:
    """The jaxpr with every call (an op with a ``body()``) replaced by the equations of its body.

    Only ops for which ``chosen`` is True are inlined. Bodies of control flow are processed too, and get fresh
    variables.

    Raises:
      NestingError: this would produce too many equations.
    """
    inner = jaxpr.jaxpr
    holders = [e.op for e in inner.eqns if e.op.holds_jaxprs]
    if not any((chosen(op) and op.body() is not None) or op.regions() for op in holders):
        return jaxpr
    require_room(inner)
    inliner = _Inliner(chosen)
    for var in (*inner.constvars, *inner.invars):
        inliner.env[var] = var
    outs = inliner.run(inner)
    constvars = [*inner.constvars, *inliner.constvars]
    return ClosedJaxpr(
        Jaxpr(constvars, inner.invars, outs, inliner.eqns, inner.debug_name), [*jaxpr.consts, *inliner.consts]
    )


def require_room(jaxpr: Jaxpr) -> None:
    """Raise if the jaxpr is too large with all calls inlined, as partitioning and XLA do.

    Raises:
      NestingError: inlining would produce too many equations.
    """
    if (count := inlined_size(jaxpr)) > _MOST_EQUATIONS:
        raise NestingError(
            f"{jaxpr.debug_name or 'the program'}: functions that call others more than once, level upon level, make "
            f"{count:.2g} equations when the calls are written out, and there is room for {_MOST_EQUATIONS:,}; write "
            "the repetition as lax.scan or lax.fori_loop, whose body is traced once"
        )


@once_for_each
def inlined_size(jaxpr: Jaxpr) -> int:
    """The number of equations with all calls inlined, as far as their bodies are traced."""
    return sum(_size_of_call(e.op) if e.op.holds_jaxprs else 1 for e in jaxpr.eqns)


def _size_of_call(op: Op) -> int:
    body = None if op.body_is_late else op.body()
    return 1 + sum(inlined_size(r.jaxpr) for r in op.regions()) if body is None else inlined_size(body.jaxpr)


def shallow(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr``, with calls inlined if they are nested too deeply for the passes, which are recursive.

    Raises:
      NestingError: inlining would produce too many equations.
    """
    return jaxpr if nesting(jaxpr.jaxpr) < MOST_NESTED else inline_calls(jaxpr, is_plain_call)


def is_plain_call(op: Op) -> bool:
    """Whether an op only calls its body; a predicate for :func:`inline_calls`."""
    return op.plain_call


def is_inlined(op: Op) -> bool:
    """Whether an op may be inlined before partitioning; a predicate for :func:`inline_calls`."""
    return not op.kept_whole


class _Inliner:
    def __init__(self, chosen: Callable[[Op], bool]) -> None:
        self.chosen = chosen
        self.env: dict[Var, Atom] = {}
        #: the name stack of the calls that are being inlined
        self.scope = ""
        self.eqns: list[JaxprEqn] = []
        self.constvars: list[Var] = []
        self.consts: list[object] = []

    def read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.env[atom]

    def run(self, jaxpr: Jaxpr) -> list[Atom]:
        env = self.env
        for eqn in jaxpr.eqns:
            args = [self.read(a) for a in eqn.invars]
            body = eqn.op.body() if eqn.op.holds_jaxprs and self.chosen(eqn.op) else None
            if body is not None:
                outs = self.call(body, args, joined(self.scope, eqn.source.name_stack, eqn.op.scope_name))
                env.update(zip(eqn.outvars, outs))
                continue
            outvars = [Var(v.aval) for v in eqn.outvars]
            env.update(zip(eqn.outvars, outvars))
            op = eqn.op
            if op.holds_jaxprs and op.regions():
                op = op.with_regions([_copied(region, self.chosen) for region in op.regions()])
            self.eqns.append(JaxprEqn(op, args, outvars, eqn.source.within(self.scope), eqn.note))
        return [self.read(a) for a in jaxpr.outvars]

    def call(self, body: ClosedJaxpr, args: list[Atom], scope: str) -> list[Atom]:
        saved, self.scope = (self.env, self.scope), scope
        self.env = dict(zip(body.jaxpr.invars, args))
        for var, value in zip(body.jaxpr.constvars, body.consts):
            fresh = Var(var.aval)
            self.constvars.append(fresh)
            self.consts.append(value)
            self.env[var] = fresh
        outs = self.run(body.jaxpr)
        self.env, self.scope = saved
        return outs


def _copied(jaxpr: ClosedJaxpr, chosen: Callable[[Op], bool]) -> ClosedJaxpr:
    """The jaxpr of a region, inlined, with fresh variables: one jaxpr may be the region of several equations."""
    inner = jaxpr.jaxpr
    inliner = _Inliner(chosen)
    constvars, invars = ([Var(v.aval) for v in old] for old in (inner.constvars, inner.invars))
    inliner.env.update(zip((*inner.constvars, *inner.invars), (*constvars, *invars)))
    outs = inliner.run(inner)
    copy = Jaxpr([*constvars, *inliner.constvars], invars, outs, inliner.eqns, inner.debug_name)
    return dead_code(ClosedJaxpr(copy, [*jaxpr.consts, *inliner.consts]))


INLINE = Pass("inline calls", lambda jaxpr: inline_calls(jaxpr, is_inlined), "Calls of jitted functions are inlined.")
DEAD_CODE = Pass("dead code", dead_code, "Equations whose results are unused are removed.")
