"""Reductions and cumulative ops, by named ops or by arbitrary functions."""
