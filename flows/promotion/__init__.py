"""Whether a new model becomes champion: the rules, their evidence, and what they can show."""
