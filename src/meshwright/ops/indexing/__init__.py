"""Reading and writing windows at computed positions: dynamic slices, gather, scatter."""
