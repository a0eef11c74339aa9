"""Stage `analyses`: the papers' analyses of a trained round, each a function of artifacts."""
