"""Communication passes: small rewrites of the per-device program that make it send less.

Each is a function from jaxpr to jaxpr; :mod:`meshwright.spmd.passes.pipeline` lists them in order.
"""
