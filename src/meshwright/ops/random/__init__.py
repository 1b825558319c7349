"""Random bits, keys, and numbers made of them."""
