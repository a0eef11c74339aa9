"""Training data of other tools, as a BEIR folder."""
