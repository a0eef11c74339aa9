"""Stage `reranker`: a cross-encoder, as it came or fine-tuned on a source of negatives."""
