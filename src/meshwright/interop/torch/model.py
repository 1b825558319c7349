"""``from_torch``: a module as a pure function of its parameters, buffers and inputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from meshwright.api.jit import jit
from meshwright.core.options import numpy_dtype_promotion, numpy_rank_promotion
from meshwright.core.source import warn
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MutationWarning, RuleError
from meshwright.interop.torch import trees
from meshwright.interop.torch.checks import Sizes, fitted, refuse_arguments, refuse_misfits, refuse_unknown_tensors
from meshwright.interop.torch.exported import EXPORTING, Exported, export
from meshwright.interop.torch.flags import without_derivative
from meshwright.interop.torch.graph import Interpreter, Keys
from meshwright.interop.torch.hooks import warn_of_hooks
from meshwright.interop.torch.state import arrays, tied
from meshwright.interop.torch.tensors import as_array, example_tensors

#: results that are what the module writes to something that it was given
_WRITTEN = {OutputKind.USER_INPUT_MUTATION: "argument", OutputKind.PARAMETER_MUTATION: "parameter"}


class TorchModel:
    """A PyTorch module as a pure function: ``model(params, *args, **kwargs)``.

    Attributes:
      params: arrays by the names that ``module.named_parameters()`` has; a tied parameter is there once.
      buffers: arrays by the names of ``module.named_buffers()``, as they were when the module was converted. Buffers
        whose values Python reads in the forward (``if self.flag``) are constants of the program, and not among them.
      tied: for each further name of a tied parameter, the one under which it is in ``params``.
      program: torch's ``ExportedProgram``.
    """

    def __init__(self, module: torch.nn.Module, exported: Exported, share: bool | None) -> None:
        program = self.program = exported.program
        self._functions = exported.functions  # which the program has by their numbers only
        self._refused = exported.refused
        self.__name__ = self.__qualname__ = type(module).__name__
        self.__module__ = type(module).__module__
        self.__doc__ = type(module).__doc__
        signature = program.graph_signature
        self._inputs = signature.input_specs
        self._outputs = signature.output_specs
        tensors = {**program.state_dict, **program.constants}
        kinds = {kind: [s.target for s in self._inputs if s.kind == kind] for kind in InputKind}
        names = tied({n: tensors[n] for n in kinds[InputKind.PARAMETER]})
        written = [s.target for s in self._outputs if s.kind == OutputKind.BUFFER_MUTATION]
        trained = [n for n, t in tensors.items() if isinstance(t, torch.nn.Parameter) and t.requires_grad]
        copied = trained if (module.training if share is None else not share) else []
        self.params = arrays(tensors, dict.fromkeys(names.values()), copied)
        buffers = [n for n in dict.fromkeys(kinds[InputKind.BUFFER]) if n not in exported.fixed]
        self.buffers = arrays(tensors, buffers, [*written, *([] if share else tensors)])
        self.tied = {name: first for name, first in names.items() if name != first}
        self._constants = {n: as_array(tensors[n]) for n in kinds[InputKind.CONSTANT_TENSOR]}
        self._constants |= {n: as_array(tensors[n], copy=True) for n in exported.fixed}
        self._metas = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
        self._parameters = trees.parameter_names(module)
        args, kwargs = program.example_inputs or ((), {})
        self._names = trees.paths(args, kwargs, self._parameters)
        self._jitted = jit(self._named_run(), static_argnums=(4,))

    def refuse_writes(self) -> None:
        """Warn of arguments and parameters that the module writes to, raise for results that are no values."""
        written: dict[str, list[str]] = {}
        for spec in self._outputs:
            if spec.kind in _WRITTEN:
                written.setdefault(_WRITTEN[spec.kind], []).append(repr(spec.target))
            elif spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
                raise RuleError(f"from_torch: {self.__name__} has a result of kind {spec.kind.name} ({spec.target})")
        for what, names in written.items():
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            warn(
                f"from_torch: {self.__name__} writes to its {what}{'s' * (len(names) > 1)} {', '.join(names[:5])}"
                f"{more} in place; the function made of it computes with what is written, and leaves its {what}s as "
                "they are",
                MutationWarning,
            )

    def _named_run(self) -> Any:
        def run(params: Any, buffers: Any, inputs: Any, key: Any, numbers: tuple[Any, ...]) -> Any:
            return self._run(params, buffers, inputs, key, numbers)

        run.__name__ = run.__qualname__ = self.__name__
        return run

    # --- calling --------------------------------------------------------------------------------------------
    def __call__(self, params: Mapping[str, Any], *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """The module's output for these parameters, with the buffers as they were; new buffers are dropped.

        Args:
          params: like :attr:`params`.
          key: a random key, if the module draws numbers (dropout in train mode). The n-th draw of a call, from 1, is by
            ``mw.random.fold_in(key, n)``; a dropout keeps what ``mw.random.bernoulli`` draws for ``1 - p``.

        Raises:
          ArgumentError: parameters or arguments of another structure, or a key is missing.
          ShapeError, DTypeError: parameters or arguments that the module was not exported for.
        """
        return self.apply(params, self.buffers, *args, key=key, **kwargs)[0]

    def apply(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any], *args: Any, key: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The module's output, and its buffers after the call (running statistics, counters, caches).

        Raises:
          ArgumentError: parameters, buffers or arguments of another structure, or a key is missing.
          ShapeError, DTypeError: parameters, buffers or arguments that the module was not exported for.
        """
        self._check("params", params, self.params)
        self._check("buffers", buffers, self.buffers)
        inputs, numbers = self._fitted(args, kwargs)
        outs, written = self._jitted(dict(params), dict(buffers), inputs, key, numbers)
        given = iter(outs)
        specs = [s for s in self._outputs if s.kind == OutputKind.USER_OUTPUT]
        leaves = [s.arg.value if isinstance(s.arg, ConstantArgument) else next(given) for s in specs]
        return trees.unflatten(self.program.call_spec.out_spec, leaves), {**buffers, **written}

    def _check(self, what: str, got: Any, expected: Mapping[str, Any]) -> None:
        if not isinstance(got, Mapping):
            raise ArgumentTypeError(f"{self.__name__}: expected {what} by their names, got {type(got).__name__}")
        if got.keys() != expected.keys():
            missing, more = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
            raise ArgumentError(f"{self.__name__}: {what} do not fit: missing are {missing}, left over are {more}")
        refuse_misfits(self.__name__, what, got, expected)

    def _fitted(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """The arrays among the arguments, and the numbers and other constants, in the order of the graph."""
        spec = self.program.call_spec.in_spec
        order = spec.children()[1].context or []
        ordered = {n: kwargs[n] for n in order if n in kwargs} | {n: v for n, v in kwargs.items() if n not in order}
        leaves = trees.leaves_as((args, ordered), spec)
        if leaves is None:
            raise ArgumentError(
                f"{self.__name__}: arguments of another structure than those it was exported with: expected "
                f"{', '.join(self._names)}, got {', '.join(trees.paths(args, ordered, self._parameters)) or 'none'}"
            )
        sizes, inputs, numbers = Sizes(self.program.range_constraints), [], []
        specs = [s for s in self._inputs if s.kind == InputKind.USER_INPUT]
        for x, input_spec, name in zip(leaves, specs, self._names):
            meta = None if isinstance(input_spec.arg, ConstantArgument) else self._metas[input_spec.arg.name]
            if isinstance(meta, torch.Tensor):
                inputs.append(fitted(as_array(x) if isinstance(x, torch.Tensor) else x, meta, name, sizes))
            elif meta is None and x != input_spec.arg.value:
                raise ArgumentError(
                    f"{self.__name__}: argument {name} was {input_spec.arg.value!r} when the module was exported, and "
                    f"is a part of the program; got {x!r}"
                )
            else:
                numbers.append(x)
        return inputs, tuple(numbers)

    # --- running --------------------------------------------------------------------------------------------
    def outputs(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any], inputs: Sequence[Any], key: Any, numbers: Any
    ) -> list[Any]:
        """All that the graph returns: what it writes to, then the results."""
        given, fixed = iter(inputs), iter(numbers)
        values = [
            without_derivative(
                self._value(spec, params, buffers, given, fixed), self._refused.get(getattr(spec.arg, "name", ""))
            )
            for spec in self._inputs
        ]
        with ExitStack() as stack:  # the rules promote as torch does, whatever the user's settings for ours
            stack.enter_context(numpy_dtype_promotion("standard"))
            stack.enter_context(numpy_rank_promotion("allow"))
            return list(Interpreter(Keys(key)).run(self.program.graph_module, values))

    def _run(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any], inputs: Sequence[Any], key: Any, numbers: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arrays among the results, and the buffers that were written to."""
        results, written = [], {}
        for spec, out in zip(self._outputs, self.outputs(params, buffers, inputs, key, numbers)):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                written[spec.target] = out
            elif spec.kind == OutputKind.USER_OUTPUT and not isinstance(spec.arg, ConstantArgument):
                results.append(out)
        return results, written

    def _value(self, spec: Any, params: Any, buffers: Any, inputs: Any, numbers: Any) -> Any:
        match spec.kind:
            case InputKind.PARAMETER:
                return params[self.tied.get(spec.target, spec.target)]
            case InputKind.BUFFER:
                return buffers[spec.target] if spec.target in buffers else self._constants[spec.target]
            case InputKind.CONSTANT_TENSOR:
                return self._constants[spec.target]
            case InputKind.USER_INPUT:
                is_array = isinstance(self._metas.get(spec.arg.name), torch.Tensor)
                return next(inputs) if is_array else next(numbers)
        raise RuleError(f"from_torch: {self.__name__} has an input of kind {spec.kind.name}, which is not supported")

    def __repr__(self) -> str:
        return (
            f"TorchModel({self.__name__!r}, {counted(len(self.params), 'parameter')}, "
            f"{counted(len(self.buffers), 'buffer')})"
        )


def _dynamic(dynamic: Any, args: tuple[Any, ...], kwargs: dict[str, Any], module: torch.nn.Module) -> Any:
    """What ``dynamic`` means to torch: True is every dimension of every tensor, a word is a dimension of that name."""
    if dynamic is None or dynamic is False:
        return None
    auto = torch.export.Dim.AUTO
    if dynamic is True:
        shapes = torch.utils._pytree.tree_map(
            lambda x: dict.fromkeys(range(x.ndim), auto) if isinstance(x, torch.Tensor) else None, (args, kwargs)
        )
        return shapes[0] if not kwargs else _by_name(module, *shapes)
    dims: dict[str, Any] = {}

    def named(x: Any) -> Any:
        if isinstance(x, str):
            return dims.setdefault(x, torch.export.Dim(x))
        if isinstance(x, dict):
            return {k: named(v) for k, v in x.items()}
        return type(x)(map(named, x)) if type(x) in (list, tuple) else x

    return named(dynamic)


def _by_name(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def _on_one_device(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """On the meta device all of it, if a parameter is there: its operands have to be on one device."""
    tensors = [*module.parameters(), *module.buffers()]
    if not any(t.is_meta for t in tensors):
        return module, args, kwargs
    if not all(t.is_meta for t in tensors):
        module = copy.deepcopy(module).to("meta")
    to_meta = lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x  # noqa: E731
    return module, *torch.utils._pytree.tree_map(to_meta, (args, kwargs))


def from_torch(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Any = None,
    share: bool | None = None,
) -> TorchModel:
    """See :func:`meshwright.from_torch`."""
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(f"from_torch: expected a torch.nn.Module, got {type(module).__name__}")
    if not isinstance(args, (tuple, list)):
        raise ArgumentTypeError(f"from_torch: example arguments are a tuple, (x,), got {type(args).__name__}")
    inputs, named = example_tensors((tuple(args), dict(kwargs or {})))
    refuse_unknown_tensors(module, inputs, named)
    refuse_arguments(module, inputs, named)
    warn_of_hooks(module)
    module, inputs, named = _on_one_device(module, inputs, named)
    with EXPORTING:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.enable_grad():
                exported = export(module, inputs, named, _dynamic(dynamic, inputs, named, module))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    model = TorchModel(module, exported, share)
    model.refuse_writes()
    return model
