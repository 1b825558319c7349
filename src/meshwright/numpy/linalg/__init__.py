"""Linear algebra: the array API's ``linalg`` extension, NumPy's and JAX's functions, and common ones of SciPy.

Leading dimensions are batches. Computed by LAPACK in float32, float64, complex64 and complex128.
"""

from meshwright.numpy.linalg.decompositions import (
    EighResult,
    EigResult,
    QRResult,
    SVDResult,
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from meshwright.numpy.linalg.determinants import SlogdetResult, det, slogdet
from meshwright.numpy.linalg.norms import cond, matrix_norm, matrix_rank, norm, vector_norm
from meshwright.numpy.linalg.powers import expm, matrix_power
from meshwright.numpy.linalg.products import cross, diagonal, outer, trace
from meshwright.numpy.linalg.solving import (
    cho_factor,
    cho_solve,
    inv,
    lstsq,
    lu_factor,
    lu_solve,
    pinv,
    solve,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from meshwright.numpy.linear import matmul, multi_dot, tensordot, vecdot
from meshwright.numpy.manipulation import matrix_transpose

__all__ = [
    "EigResult",
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]
