"""``scipy.sparse``: iterative solvers, which only need products with a matrix."""

from meshwright.scipy.sparse import linalg

__all__ = ["linalg"]
