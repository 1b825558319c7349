"""Resharding: plans a sequence of collectives between two layouts, and emits it."""
