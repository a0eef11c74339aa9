"""Data sets, encoders and articles from outside, resolved to files and versions."""
