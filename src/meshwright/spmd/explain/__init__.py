"""Explanations: each collective with its causes, and the annotation that would remove it."""
