"""How long a per-device program takes on its mesh's machine."""
