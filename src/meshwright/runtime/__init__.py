"""The runtime: PJRT adapter, devices, arrays, executables, virtual meshes."""
