"""Stage `rerank`: reorder the best documents of a run with a cross-encoder."""
