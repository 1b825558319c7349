"""Ops that hold jaxprs: calls, control flow, functions with rules of the user's, callbacks, checks."""
