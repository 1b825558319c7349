"""Ops of imported programs that depend on a mesh not yet chosen, or that have no equivalent here."""
