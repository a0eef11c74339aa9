"""Stage `rescore`: the best of a run put in a new order by a bi-encoder."""
