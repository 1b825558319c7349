"""From the per-device program to what the devices of a target execute."""
