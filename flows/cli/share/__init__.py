"""Commands that share results and clean up."""
