"""Linear algebra and Fourier transforms, batched over leading dimensions."""
