"""Linear algebra, with the names and defaults of ``jax.scipy.linalg``."""

from meshwright.core.absent import absent as _absent
from meshwright.numpy.linalg import expm
from meshwright.numpy.stages import give_stages as _give_stages
from meshwright.scipy.linalg.decompositions import (
    cho_factor,
    cho_solve,
    cholesky,
    det,
    eigh,
    eigh_tridiagonal,
    hessenberg,
    inv,
    lu,
    lu_factor,
    lu_solve,
    polar,
    qr,
    qr_multiply,
    rsf2csf,
    schur,
    solve,
    solve_triangular,
    svd,
)
from meshwright.scipy.linalg.functions import expm_frechet, funm, solve_sylvester, sqrtm
from meshwright.scipy.linalg.structured import (
    block_diag,
    circulant,
    companion,
    convolution_matrix,
    dft,
    fiedler,
    hadamard,
    hankel,
    helmert,
    hilbert,
    invhilbert,
    invpascal,
    leslie,
    pascal,
    toeplitz,
)

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion", "convolution_matrix", "det", "dft",
    "eigh", "eigh_tridiagonal", "expm", "expm_frechet", "fiedler", "funm", "hadamard", "hankel", "helmert",
    "hessenberg", "hilbert", "inv", "invhilbert", "invpascal", "leslie", "lu", "lu_factor", "lu_solve", "pascal",
    "polar", "qr", "qr_multiply", "rsf2csf", "schur", "solve", "solve_sylvester", "solve_triangular", "sqrtm", "svd",
    "toeplitz",
]  # fmt: skip

_give_stages(globals())

__getattr__ = _absent("scipy.linalg")
