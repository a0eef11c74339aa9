"""Approximate nearest neighbours: faiss indexes, built, searched, and kept without their documents."""
