"""This machine: devices, processes, and work given to a device ahead of time."""
