"""Stage `teacher`: negatives scored by a cross-encoder, for losses that learn from its scores."""
