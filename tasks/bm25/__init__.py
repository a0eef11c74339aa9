"""Stage `bm25`: the lexical index, candidates of every query, and training negatives."""
