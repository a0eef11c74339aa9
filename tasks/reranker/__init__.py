"""Stage `reranker`: a cross-encoder, used as is or fine-tuned on a source of negatives."""
