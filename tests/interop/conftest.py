"""What the libraries around PyTorch need to be imported here."""

from benchmarks.torchvision_kernels import declare_kernels

declare_kernels()
