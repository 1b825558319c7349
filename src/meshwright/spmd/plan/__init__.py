"""The search for a program's shardings: which dimensions of its arguments to split by which mesh axes."""
