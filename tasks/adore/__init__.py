"""Stage `adore`: train only the query tower, over fixed document vectors that each step searches in full (ADORE, LTRe, JPQ)."""
