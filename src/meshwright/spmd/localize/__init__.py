"""Localization: ops on local shapes, with the context that their ``localize`` uses."""
