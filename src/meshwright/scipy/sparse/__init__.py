"""``scipy.sparse``: solvers that need products with a matrix alone."""

from meshwright.scipy.sparse import linalg

__all__ = ["linalg"]
