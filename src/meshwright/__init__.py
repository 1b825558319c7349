"""Meshwright: one array program, written for one device, becomes the program that every device of a mesh runs."""
