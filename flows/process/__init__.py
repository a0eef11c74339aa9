"""Processes, signals, locks and the terminal."""
