"""Stage `rerank`: the best of a run put in a new order by a cross-encoder."""
