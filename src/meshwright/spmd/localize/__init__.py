"""Ops on local shapes: what their ``localize`` works with, and the windows of rows that devices exchange."""
