"""What a trained round does: the papers' analyses, each a function of artifacts."""
