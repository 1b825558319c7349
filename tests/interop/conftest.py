"""What the libraries around PyTorch need to be imported here."""

from importlib.util import find_spec
from pathlib import Path


def _declare_operators_of_torchvision():
    """On PyPI torchvision's kernels are built for CUDA alone and cannot be loaded beside PyTorch for CPUs, of which its
    models in Python need none. What it registers something for when it is imported has to be there all the same."""
    import torch

    (kernels,) = Path(find_spec("torchvision").origin).parent.glob("_C.*") or [None]
    try:
        torch.ops.load_library(kernels)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float iou) -> Tensor")
        return library  # which forgets them when it goes


LIBRARY = _declare_operators_of_torchvision() if find_spec("torch") and find_spec("torchvision") else None
