"""Stage `mine`: the top documents of every training query, known positives removed."""
