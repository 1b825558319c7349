"""Shardings chosen for a program: which dimensions of its arguments to split by which mesh axes."""
