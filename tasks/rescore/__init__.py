"""Stage `rescore`: reorder the best documents of a run with a bi-encoder."""
