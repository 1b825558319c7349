"""``autograd.Function``: an export drops its backward, so each call is traced here with it, and stays one op.

While a module is exported, applying a Function records what autograd runs for it, forward and backward in one graph,
and leaves one op, ``meshwright::function``, in the module's graph. Its rule runs the forward, and attaches the backward
as a derivative: like torch, one that a further derivative goes through.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import function as autograd_function
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.utils import checkpoint
from torch.utils._pytree import tree_flatten, tree_unflatten

from meshwright.core.weak import WeakValues
from meshwright.errors import ImportProgramError, MeshwrightError, RuleError
from meshwright.interop.torch.decompositions import ROUNDS, decompositions, without_rule
from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.flags import without_derivative
from meshwright.interop.torch.graph import Interpreter, Keys
from meshwright.interop.torch.registry import register
from meshwright.interop.torch.sources import user_line
from meshwright.interop.torch.tensors import conjugated
from meshwright.transforms.autodiff import stop_gradient
from meshwright.transforms.custom_vjp import custom_vjp

#: What saves nothing for checkpoints is a Function whose backward is the derivative; so is that of Dirichlet variates,
#: whose draw has one here; those of custom ops stay ops, with rules.
_KNOWN = ("torch.utils.checkpoint", "torch.distributions.dirichlet", "torch._library.autograd")
_NUMBERS = itertools.count()
#: calls by the number that their ops have; a converted model keeps its own
_CALLS: WeakValues[int, Call] = WeakValues()

_LIBRARY = torch.library.Library("meshwright", "DEF")
_LIBRARY.define("function(Tensor[] tensors, int call) -> Tensor[]")


@torch.library.register_fake("meshwright::function", lib=_LIBRARY)
def _types(tensors: Sequence[torch.Tensor], call: int) -> list[torch.Tensor]:
    return [tensors[0].new_empty(o.shape, dtype=o.dtype) for o in _call(call).outs]


connected("meshwright::function", _LIBRARY)


class Call:
    """One call of a Function: a graph of its tensors and cotangents, to its results and the tensors' cotangents."""

    def __init__(
        self, graph: fx.GraphModule, tensors: int, outs: Sequence[torch.Tensor], moving: Sequence[int],
        refusals: dict[int, str],
    ) -> None:  # fmt: skip
        self.graph = graph
        self._refusals = refusals  # for tensors that the backward gives no gradients, what it says
        self.outs = outs
        self._moving = moving  # the results that have cotangents
        nodes = list(graph.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        self._inputs, self._cotangents = placeholders[:tensors], placeholders[tensors:]
        returned = next(n for n in nodes if n.op == "output").args[0]
        self._results, self._gradients = returned[: len(outs)], returned[len(outs) :]
        # The backward is what comes from the first use of a cotangent on, but views of results that torch takes anew.
        starts = (i for i, n in enumerate(nodes) if not set(self._cotangents).isdisjoint(n.all_input_nodes))
        forward = _leading_to(self._results)
        self._later = [n for n in nodes[next(starts, len(nodes)) : -1] if n not in forward]
        _read_back([*self._inputs, *self._results], self._later)

    def __call__(self, tensors: Sequence[Any], draw: Keys) -> list[Any]:
        """The results, of arrays; ``draw`` gives random keys."""
        interpreter = Interpreter(draw)
        tensors = [without_derivative(x, self._refusals.get(i)) for i, x in enumerate(tensors)]
        later = set(self._later)
        values = dict(zip(self._inputs, map(stop_gradient, tensors)))
        interpreter.evaluate(self.graph, [n for n in self.graph.graph.nodes if n not in later], values)
        needed = {i for n in self._later for i in n.all_input_nodes} | {g for g in self._gradients if g is not None}
        kept = {n: v for n, v in values.items() if n in needed and n not in self._inputs and n not in self._results}
        arrays = {n: v for n, v in kept.items() if hasattr(v, "aval")}
        numbers = {n: v for n, v in kept.items() if n not in arrays}

        def pulled_back(known: tuple[Any, ...], cotangents: Sequence[Any]) -> tuple[Any, ...]:
            tensors, outs, saved = known
            state = {**numbers, **dict(zip(arrays, saved)), **self._named(outs), **dict(zip(self._inputs, tensors))}
            state.update(zip(self._cotangents, conjugated([cotangents[i] for i in self._moving])))
            interpreter.evaluate(self.graph, self._later, state)
            return tuple(conjugated([None if g is None else state[g] for g in self._gradients])), None, None

        attached = custom_vjp(lambda tensors, outs, saved: outs)

        def forward(tensors: Any, outs: Any, saved: Any) -> Any:
            outs = attached(tensors, outs, saved)
            return outs, (tensors, outs, saved)

        attached.defvjp(forward, pulled_back)
        outs = tuple(values[r] for r in self._results)
        return list(attached(tuple(tensors), outs, tuple(arrays.values())))

    def _named(self, outs: Sequence[Any]) -> dict[fx.Node, Any]:
        return {r: o for r, o in zip(self._results, outs) if r not in self._inputs}


def _leading_to(results: Sequence[fx.Node]) -> set[fx.Node]:
    """Results, and what they are computed of."""
    found, waiting = set(results), list(results)
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


def _read_back(known: Sequence[fx.Node], later: Sequence[fx.Node]) -> None:
    """Take arguments and results that are saved for the backward for what they are: autograd detaches them once."""
    for node in known:
        for user in list(node.users):
            if user.target is torch.ops.aten.detach.default and user in later:
                user.replace_all_uses_with(node)


def _call(number: int) -> Call:
    call = _CALLS.get(number)
    assert call is not None, "what is converted keeps its calls"
    return call


@register("meshwright.function", random=True)
def function(tensors: Sequence[Any], call: int, draw: Keys) -> list[Any]:
    """A call of an ``autograd.Function``, with its own backward."""
    return _call(call)(tensors, draw)


# --- tracing ------------------------------------------------------------------------------------------------
class _Watch:
    """While it is on, what ``apply`` finds in this thread as the forward of a Function is what ``forwards`` gives.

    ``apply`` is bound early, and in newer releases compiled; but it asks the class for ``_backward_cls`` and then for
    ``forward``, and a class is asked through its metaclass. Who calls a forward directly asks for nothing else.
    """

    def __init__(self, forwards: Callable[[Any, Any], Any]) -> None:
        self._forwards = forwards
        self._applied: Any = None

    def __enter__(self) -> None:
        meta, here = autograd_function.FunctionMeta, threading.get_ident()

        def looked_up(cls: Any, name: str) -> Any:
            attribute = type.__getattribute__(cls, name)
            if threading.get_ident() != here:
                return attribute
            if name == "forward" and self._applied is cls:
                self._applied = None
                return self._forwards(cls, attribute)
            if name == "_backward_cls":
                self._applied = cls
            return attribute

        meta.__getattribute__ = looked_up

    def __exit__(self, *_: Any) -> None:
        del autograd_function.FunctionMeta.__getattribute__


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x


def _checkpointed(function: Any, preserve: bool, *args: Any) -> Any:
    """What ``CheckpointFunction.apply`` computes: what the function does, and its derivative. As an op of autograd it
    would run the function without gradients, and leave an export without them from there on."""
    outs = function(*args)
    moving = [x.requires_grad for x in tree_flatten(outs)[0] if isinstance(x, torch.Tensor)]
    if any(moving) and not any(isinstance(x, torch.Tensor) and x.requires_grad for x in args):
        raise RuleError(
            "torch.utils.checkpoint with use_reentrant=True, of arguments none of which requires a gradient: the "
            "parameters that it uses get none in torch. Use use_reentrant=False"
        )
    return outs


@cache
def _is_watched() -> bool:
    """Whether this release of torch applies Functions in a way that can be watched."""
    seen: list[Any] = []

    def note(cls: Any, forward: Any) -> Any:
        seen.append(cls)
        return forward

    with _Watch(note):
        _Probe.apply(torch.ones(1))
    return seen == [_Probe]


@contextmanager
def functions_traced() -> Iterator[list[Call]]:
    """Within, applying a Function on what is being exported records a call and leaves one op; the calls are given.

    Raises:
      ImportProgramError: a release of torch whose Functions would be missed.
    """
    calls: list[Call] = []
    tracing = False

    def traced(cls: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*given: Any) -> Any:
            nonlocal tracing
            args = given[1:] if given and isinstance(given[0], cls._backward_cls) else given
            leaves, tree = tree_flatten(args)
            at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            if not any(isinstance(leaves[i], FakeTensor) for i in at):
                return forward(*given)
            tracing = True
            try:
                with disable_proxy_modes_tracing(), torch._C.DisableTorchFunction(), saved_tensors_hooks(_same, _same):
                    call, out_tree, others = _traced(cls, leaves, at, tree)
            finally:
                tracing = False
            calls.append(call)
            number = next(_NUMBERS)
            _CALLS[number] = call
            outs = iter(torch.ops.meshwright.function([leaves[i] for i in at], number))
            return tree_unflatten([next(outs) if o is _TENSOR else o for o in others], out_tree)

        return forward if tracing or cls.__module__.startswith(_KNOWN) else run

    if not _is_watched():
        raise ImportProgramError(
            f"from_torch: the derivatives of autograd.Function cannot be told from torch {torch.__version__}; use a "
            "release between 2.10 and 2.15"
        )
    with _Watch(traced), _nothing_saved():
        yield calls


@contextmanager
def _nothing_saved() -> Iterator[None]:
    """Within, in this thread, checkpoints compute what their functions do, and tensors are saved as they are.

    Hooks may stop gradients meanwhile, as those of checkpoints do: where a Function saves tensors, as that of a
    checkpoint within does, an export would have no gradients from there on.
    """

    here = threading.get_ident()
    function, before = checkpoint.CheckpointFunction, saved_tensors_hooks.__enter__

    def enter(hooks: saved_tensors_hooks) -> None:
        if threading.get_ident() != here:
            return before(hooks)
        torch._C._autograd._push_saved_tensors_default_hooks(_same, _same)

    def apply(*args: Any) -> Any:
        return (_checkpointed if threading.get_ident() == here else function.apply)(*args)

    checkpoint.CheckpointFunction = SimpleNamespace(apply=apply)  # type: ignore[assignment, misc]
    saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        checkpoint.CheckpointFunction = function  # type: ignore[misc]
        saved_tensors_hooks.__enter__ = before  # type: ignore[method-assign]


_TENSOR = object()


def _same(x: Any) -> Any:
    """What hooks do to tensors that are saved is no part of a program."""
    return x


def _traced(cls: Any, leaves: Sequence[Any], at: Sequence[int], tree: Any) -> tuple[Call, Any, list[Any]]:
    """The call, the tree of its results, and of these what is no tensor."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    shown: list[Any] = []

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = list(leaves)
        for i, tensor in zip(at, tensors):
            given[i] = tensor
        outs, out_tree = tree_flatten(cls.apply(*tree_unflatten(given, tree)))
        shown[:] = [out_tree, [_TENSOR if isinstance(o, torch.Tensor) else o for o in outs]]
        return [o for o in outs if isinstance(o, torch.Tensor)]

    def joint(tensors: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]) -> Any:
        with torch.enable_grad():
            outs = run(tensors)
            differentiable = [o for o in outs if o.requires_grad]
            inputs = [t for t in tensors if t.requires_grad]
            started = [c.clone() for c in cotangents]  # so that the backward begins with a use of one
            with torch.autocast("cpu", enabled=False):  # which a loss.backward() is outside of
                given = iter(
                    torch.autograd.grad(differentiable, inputs, started, allow_unused=True)
                    if differentiable
                    else [None] * len(inputs)
                )
        return [*outs, *(next(given) if t.requires_grad else None for t in tensors)]

    def tracing(tensors: Sequence[torch.Tensor]) -> tuple[fx.GraphModule, list[torch.Tensor], list[int]]:
        with torch.enable_grad():
            outs = run(tensors)
        moving = [i for i, o in enumerate(outs) if o.requires_grad]
        cotangents = [torch.empty_like(outs[i]).detach() for i in moving]
        return _functional(joint, tensors, cotangents), outs, moving

    tensors, refusals = [_fresh(leaves[i]) for i in at], dict[int, str]()
    fixed = [n for n, i in enumerate(at) if tensors[n].requires_grad and not leaves[i].requires_grad]
    try:
        graph, outs, moving = tracing(tensors)
    except MeshwrightError:
        raise
    except Exception as error:
        failed = f"at {user_line(error)}: {type(error).__name__}: {str(error)[:400]}"
        if fixed:
            failed += (
                "\nIf the module computes in another way where its arguments have gradients, export it with such "
                "example arguments (x.requires_grad_())"
            )
            refusals = dict.fromkeys(
                fixed, f"the autograd.Function {name} has no derivative by arguments that had no gradient when the "
                f"module was exported, {failed}",
            )  # fmt: skip
        try:  # with the gradients that are asked for where it is exported
            if not fixed:
                raise
            graph, outs, moving = tracing([t.detach() if n in fixed else t for n, t in enumerate(tensors)])
        except Exception:
            raise RuleError(
                f"from_torch: the backward of the autograd.Function {name} cannot be traced, {failed}"
            ) from error
    _refuse(graph, name)
    return Call(graph, len(at), [o.detach() for o in outs], moving, refusals), *shown


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def _functional(joint: Callable[..., Any], tensors: Any, cotangents: Any) -> fx.GraphModule:
    """The graph of a function, without mutation, in ops that have rules where torch can write them so."""
    graph = make_fx(joint, record_stack_traces=True)(tensors, cotangents)
    graph.graph.set_codegen(fx.graph.CodeGen())
    flat = [*tensors, *cotangents]
    # What autocast casts is cast by now: what a Function has without, it would cast again.
    with torch.no_grad(), fx.traceback.preserve_node_meta(), torch.autocast("cpu", enabled=False):
        flat = [t.detach() for t in flat]
        graph = make_fx(torch.func.functionalize(fx.Interpreter(graph).run))(*flat)
        for _ in range(ROUNDS):
            table = decompositions(graph)
            if not table:
                break
            graph = make_fx(fx.Interpreter(graph).run, decomposition_table=table)(*flat)
    return graph


def _refuse(graph: fx.GraphModule, name: str) -> None:
    """Raise for what the graph does not say: tensors from outside, arguments that are written to, unknown ops."""
    if name.startswith("torch.distributed"):
        raise RuleError(
            f"from_torch: {name} makes or takes a DTensor, which torch spreads over its processes; compute with plain "
            "tensors, and say by shardings what devices share (tp_shardings, from_placements)"
        )
    for node in graph.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(graph, node.target, None), (FakeTensor, torch.nn.Parameter)):
            raise RuleError(
                f"from_torch: the autograd.Function {name} uses a tensor of the module that is none of its arguments; "
                "pass it to apply, so that its gradient is known"
            )
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            raise RuleError(
                f"from_torch: the autograd.Function {name} writes to its arguments in place; let it return new tensors"
            )
    unknown = sorted({str(n.target) for n in without_rule(graph)})
    if unknown:
        raise RuleError(
            f"from_torch: the autograd.Function {name} uses ops that are not known here: {', '.join(unknown)}. "
            f"Say what they compute with @meshwright.interop.torch.register({unknown[0]!r})"
        )
