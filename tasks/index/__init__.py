"""Stage `index`: a faiss index over the vectors, and its recall against exact search."""
