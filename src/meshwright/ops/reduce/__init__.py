"""Reductions and cumulative ops, by a named op or by any function."""
