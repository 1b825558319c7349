"""Ops that hold jaxprs or functions: calls, control flow, user-defined rules, callbacks, checks."""
