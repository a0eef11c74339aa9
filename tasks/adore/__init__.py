"""Stage `adore`: the query tower alone is trained, over fixed document vectors that each step searches in full (ADORE, LTRe, JPQ)."""
