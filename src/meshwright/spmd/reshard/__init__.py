"""Resharding: plan a sequence of collectives between two layouts, then emit it."""
