"""Running programs: the PJRT adapter, devices, arrays, executables, virtual meshes."""
