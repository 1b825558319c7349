"""Every op that PyTorch keeps samples of (``OpInfo``), eager and by ``from_torch``: values and gradients.

``python -m benchmarks.torch_ops --dtypes float32 bfloat16 --names softmax 'conv*'`` prints, for each op and dtype, how
many samples agree, and what of the others is refused or differs. Needs ``expecttest``, which torch's samples import.
Ops that draw random numbers, and results that nothing initializes, are left out.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

#: relative difference from the largest element that is rounding; samples of half width are of few digits
ROUNDING = {"float64": 1e-8, "complex128": 1e-8, "float32": 2e-4, "complex64": 2e-4, "bfloat16": 4e-2, "float16": 6e-3}
SECONDS = 150
#: results that are not a function of the arguments
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


class Case:
    """One sample of an op: its tensors, its call as a function of these, and what eager torch makes of it."""

    def __init__(self, op: Any, sample: Any) -> None:
        import torch

        tree = (sample.input, sample.args, sample.kwargs)
        leaves, self._spec = torch.utils._pytree.tree_flatten(tree)
        self._places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self._leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self.tensors = [leaves[i].detach().clone() for i in self._places]
        self._op, self._process = op, sample.output_process_fn_grad
        self.moving = [i for i, p in enumerate(self._places) if leaves[p].requires_grad]
        given = [t.clone().requires_grad_(i in self.moving) for i, t in enumerate(self.tensors)]
        outs = self(*given)
        generator = torch.Generator().manual_seed(0)
        self.outs = [o.detach().clone() for o in outs]
        self.weights: list[Any] = [_weight(o, generator) if o.requires_grad else None for o in outs]
        self.grads = self._grads(given, outs)

    def _grads(self, given: Sequence[Any], outs: Sequence[Any]) -> list[Any] | None:
        import torch

        pairs = [(o, w.to(o.dtype)) for o, w in zip(outs, self.weights) if w is not None]
        if not pairs or not self.moving:
            return None
        loss = sum(((o * w).real if o.is_complex() else o * w).sum() for o, w in pairs)
        try:
            found = torch.autograd.grad(loss, [given[i] for i in self.moving], allow_unused=True)
        except RuntimeError:
            return None
        return [None if g is None else g.detach() for g in found]

    def exact(self) -> tuple[list[Any], list[Any]] | None:
        """Results and gradients of the same numbers in 64 bits, of what was computed in 16; None if torch has none."""
        import torch

        narrow = (torch.float16, torch.bfloat16)
        if all(t.dtype not in narrow for t in self.tensors):
            return None
        wide = [t.double() if t.dtype in narrow else t.clone() for t in self.tensors]
        try:
            given = [t.requires_grad_(i in self.moving) for i, t in enumerate(wide)]
            outs = self(*given)
            return [o.detach() for o in outs], self._grads(given, outs) or []
        except (RuntimeError, ValueError, TypeError):
            return None

    def __call__(self, *tensors: Any) -> list[Any]:
        import torch

        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors):
            leaves[place] = tensor
        first, args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self._spec)
        out = self._process(self._op(first, *args, **kwargs))
        return [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]

    def shown(self) -> str:
        shapes = iter(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in self.tensors)
        leaves = [next(shapes) if i in self._places else x for i, x in enumerate(self._leaves)]
        import torch

        return str(torch.utils._pytree.tree_unflatten(leaves, self._spec)).replace("'", "")[:300]


def _weight(out: Any, generator: Any) -> Any:
    import torch

    return torch.randn(out.shape, generator=generator).to(out.dtype)


def _module(cases: Sequence[Case]) -> Any:
    import torch

    class Batch(torch.nn.Module):
        def forward(self, tensors: list[list[Any]]) -> list[list[Any]]:
            return [case(*given) for case, given in zip(cases, tensors)]

    return Batch().eval()


def differences(cases: Sequence[Case]) -> list[str]:
    """For each case what differs; empty where all agrees.

    Raises:
      Exception: what the import, or a run, of any of them raises.
    """
    import meshwright as mw

    model = mw.from_torch(_module(cases), ([c.tensors for c in cases],))
    given = [[mw.interop.torch.from_tensors(t) for t in c.tensors] for c in cases]
    moving = [[g[i] for i in c.moving] if c.grads is not None else [] for c, g in zip(cases, given)]

    def run(moving: Any) -> Any:
        inputs = []
        for case, fixed, moved in zip(cases, given, moving):
            inputs.append(list(fixed))
            for i, x in zip(case.moving, moved):
                inputs[-1][i] = x
        outs = model({}, inputs)
        loss = 0.0
        for case, found in zip(cases, outs):
            for x, w in zip(found, case.weights):
                if w is not None and case.grads is not None:
                    loss = loss + (x * mw.interop.torch.from_tensors(w)).real.sum().astype(np.float32)
        return loss, outs

    outs = mw.jit(run)(moving)[1]
    grads = mw.jit(mw.grad(run, has_aux=True))(moving)[0] if any(moving) else moving
    found = []
    for case, out, grad in zip(cases, outs, grads):
        if (exact := case.exact()) is not None and _as_exact(case, out, grad, *exact):
            found.append("")
            continue
        wrong = [f"result {i}: {w}" for i, (a, b) in enumerate(zip(out, case.outs)) if (w := _difference(a, b))]
        if len(out) != len(case.outs):
            wrong.append(f"{len(out)} results, not {len(case.outs)}")
        for i, a, b in zip(case.moving, grad, case.grads or ()):
            a = np.conj(np.asarray(a))
            w = _difference(a, np.zeros(a.shape, a.dtype) if b is None else b, is_gradient=True)
            wrong += [f"gradient {i}: {w}"] if w else []
        found.append("; ".join(wrong))
    return found


def _as_exact(case: Case, outs: Any, grads: Any, exact: Sequence[Any], slopes: Sequence[Any]) -> bool:
    """Whether results and gradients of 16 bits are about as near to the exact ones as torch's are."""
    if [(np.asarray(o).dtype.name, o.shape) for o in outs] != [(str(t.dtype)[6:], tuple(t.shape)) for t in case.outs]:
        return False
    ours, theirs = [*outs, *grads], [*case.outs, *(case.grads or ())]
    if len(ours) != len(theirs) or len(ours) != len(exact) + len(slopes):
        return False
    zeros = (np.zeros(np.asarray(o).shape) for o in ours)
    triples = [
        [z if x is None else _numbers(x) for x in three] for *three, z in zip(ours, theirs, [*exact, *slopes], zeros)
    ]
    return all(o.shape == e.shape and _is_as_near(o, t, e) for o, t, e in triples)


def _is_as_near(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray) -> bool:
    if exact.dtype.kind != "f":
        return bool((ours == theirs).all())
    finite = np.isfinite(exact) & np.isfinite(theirs)
    if not finite.any():
        return False
    off, torchs = (np.abs(x - exact)[finite].max() for x in (ours, theirs))
    scale = np.abs(exact[finite]).max()
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return bool(same[~finite].all() and off <= 2 * torchs + 4e-3 * scale)


def _numbers(x: Any) -> np.ndarray:
    import torch

    if isinstance(x, torch.Tensor):
        x = x.resolve_conj().resolve_neg()
        x = x.double() if x.dtype in (torch.bfloat16, torch.float16) or "float8" in str(x.dtype) else x
        return x.numpy()
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.name not in _KNOWN and x.dtype.kind in "Vf" else x


_KNOWN = {"float32", "float64", "complex64", "complex128"}


def _difference(ours: Any, torchs: Any, is_gradient: bool = False) -> str:
    """What differs, in words; empty if only rounding does."""
    dtype = np.asarray(ours).dtype.name
    a, b = _numbers(ours), _numbers(torchs)
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    named = str(getattr(torchs, "dtype", b.dtype)).removeprefix("torch.")
    narrowed = {"int64": "int32", "float64": "float32", "complex128": "complex64"}
    if not is_gradient and dtype not in (named, narrowed.get(named)):
        return f"dtype {dtype}, not {named}"
    if not a.size:
        return ""
    if a.dtype.kind not in "fc":
        bad = a != b.astype(a.dtype)
        return f"{bad.sum()} of {a.size}: {a[bad][:3]} not {b[bad][:3]}" if bad.any() else ""
    with np.errstate(all="ignore"):
        finite = np.isfinite(b)
        scale = max(float(np.abs(b[finite]).max()), 0.05) if finite.any() else 1.0
        tolerance = ROUNDING.get(dtype, 6e-3)
        close = np.abs(a - b) <= tolerance * np.maximum(np.abs(b), 0.05 * scale)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & close)
    bad = ~same
    return f"{bad.sum()} of {a.size}: {a[bad][:3]} not {b[bad][:3]}" if bad.any() else ""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def cases_of(op: Any, dtype: Any, most: int) -> tuple[list[Case], Counter[str]]:
    """Some of the samples of an op, and how many of them eager torch does not run, or runs differently each time."""
    import torch

    torch.manual_seed(0)
    needs = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    needs = needs and dtype in op.supported_backward_dtypes("cpu")
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=needs))
    chosen = samples if len(samples) <= most else [samples[i * len(samples) // most] for i in range(most)]
    cases, left = [], Counter[str]()
    for sample in chosen:
        try:
            torch.manual_seed(1)
            case = Case(op, sample)
            torch.manual_seed(2)
            again = case(*[t.clone() for t in case.tensors])
        except Exception:
            left["not run by torch"] += 1
            continue
        if not case.outs:
            left["no tensors"] += 1
        elif any(_difference(_numbers(a), _numbers(b)) for a, b in zip(again, case.outs)):
            left["random"] += 1
        else:
            cases.append(case)
    return cases, left


def report(op: Any, dtype: Any, most: int) -> Iterator[dict[str, Any]]:
    """What comes of the samples of an op: those that agree counted, the others each with what is different."""
    import meshwright as mw

    named = {"op": op.name, "variant": op.variant_test_name, "dtype": str(dtype)[6:]}
    try:
        cases, left = cases_of(op, dtype, most)
    except Exception as error:
        yield {**named, "status": "unsampled", "text": f"{type(error).__name__}: {error}"[:200]}
        return
    if left:
        yield {**named, "status": "left", "text": str(dict(left)), "count": sum(left.values())}
    if not cases:
        return

    def attempt(some: Sequence[Case]) -> list[tuple[str, str]]:
        try:
            with _limited(SECONDS):
                return [("WRONG" if w else "agrees", w) for w in differences(some)]
        except mw.errors.MeshwrightError as error:
            kind, text = "refused", f"{type(error).__name__}: {error}"
        except Exception as error:
            kind, text = "ERROR", f"{type(error).__name__}: {error}"
        if len(some) == 1:
            return [(kind, text[:700])]
        if len(some) > 4 and kind == "refused":
            middle = len(some) // 2
            return [*attempt(some[:middle]), *attempt(some[middle:])]
        return [found for case in some for found in attempt([case])]

    start = time.process_time()
    found = attempt(cases)
    agree = sum(kind == "agrees" for kind, _ in found)
    seconds = round(time.process_time() - start, 1)
    yield {**named, "status": "agrees", "count": agree, "of": len(cases), "seconds": seconds}
    for case, (kind, text) in zip(cases, found):
        if kind != "agrees":
            yield {**named, "status": kind, "text": text, "sample": case.shown()}


def chosen_ops(names: Sequence[str]) -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    ops = [o for o in op_db if o.name not in UNDEFINED]
    return [o for o in ops if not names or any(n == o.name or (n.endswith("*") and n[:-1] in o.name) for n in names)]


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--samples", type=int, default=12, help="at most so many of an op")
    parser.add_argument("--skip", type=int, default=0, help="start after so many ops")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    import torch

    import meshwright as mw

    torch.set_num_threads(1)
    total = Counter[str]()
    for dtype in (getattr(torch, d) for d in args.dtypes):
        wide = dtype in (torch.int64, torch.float64, torch.complex128, torch.bool)
        with mw.enable_x64(wide):
            for i, op in enumerate(chosen_ops(args.names)):
                if i < args.skip or dtype not in op.dtypes:
                    continue
                for row in report(op, dtype, args.samples):
                    total[row["status"]] += row.get("count", 1)
                    say(json.dumps({"index": i, **row}))
                sys.stdout.flush()
                if i % 25 == 0:
                    torch._dynamo.reset()
    say(json.dumps({"status": "total", **total}))


if __name__ == "__main__":
    main()
