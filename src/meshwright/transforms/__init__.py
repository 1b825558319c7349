"""Transformations of functions and jaxprs: differentiation, batching, rematerialization, checkify."""
