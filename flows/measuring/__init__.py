"""Measurements of runs on this machine: times, sizes, environments."""
