"""Transformations of functions and jaxprs: derivatives, batching, dead code."""
