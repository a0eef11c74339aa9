"""Code for GPUs only: exact search in half precision with proven results, and faiss indexes that are built and searched there."""
