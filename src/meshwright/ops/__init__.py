"""Every op, with all its rules in one place; importing this package registers them all."""
