"""Jaxprs: data structure, op contract, tracing, printing, verification."""
