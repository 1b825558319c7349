"""What the libraries around PyTorch need to be imported here."""

from importlib.util import find_spec
from pathlib import Path

#: operators that torchvision's Python registers something for when it is imported, whether it has their kernels or not
_OPERATORS = (
    "nms(Tensor boxes, Tensor scores, float iou) -> Tensor",
    "qnms(Tensor boxes, Tensor scores, float iou) -> Tensor",
)


def _declare_operators_of_torchvision():
    """On PyPI torchvision's kernels are built for CUDA alone and cannot be loaded beside PyTorch for CPUs, of which its
    models in Python need none."""
    import torch

    (kernels,) = Path(find_spec("torchvision").origin).parent.glob("_C.*") or [None]
    try:
        torch.ops.load_library(kernels)
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in _OPERATORS:
            library.define(f"{operator}(Tensor boxes, Tensor scores, float iou) -> Tensor")
        return library  # which forgets them when it goes


LIBRARY = _declare_operators_of_torchvision() if find_spec("torch") and find_spec("torchvision") else None
