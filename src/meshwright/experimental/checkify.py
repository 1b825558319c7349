"""``jax.experimental.checkify``: errors as values of traced programs."""

from meshwright.transforms.checkify import (
    Error,
    all_checks,
    automatic_checks,
    check,
    check_error,
    checkify,
    div_checks,
    float_checks,
    index_checks,
    nan_checks,
    user_checks,
)

__all__ = [
    "Error",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "div_checks",
    "float_checks",
    "index_checks",
    "nan_checks",
    "user_checks",
]
