"""Explanations for people: each collective with its causes, and the annotation that would remove it."""
