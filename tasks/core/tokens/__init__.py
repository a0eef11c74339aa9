"""Tokens: tokenizers, folders of token ids, and chunks."""
