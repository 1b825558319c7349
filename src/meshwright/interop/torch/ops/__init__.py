"""What torch's ops are here, a file a kind; importing this fills the table."""

from meshwright.interop.torch.ops import (
    attention,
    convolution,
    creation,
    ctc,
    elementwise,
    fourier,
    indexing,
    linalg,
    losses,
    nibbles,
    normalization,
    pooling,
    products,
    randomness,
    recurrent,
    reductions,
    regions,
    shapes,
    sorting,
    special,
)
