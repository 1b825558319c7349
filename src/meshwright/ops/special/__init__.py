"""Special functions as elementwise ops: Bessel functions, incomplete beta and gamma functions."""
