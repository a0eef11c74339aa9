"""Tokens to vectors, without gradients."""
