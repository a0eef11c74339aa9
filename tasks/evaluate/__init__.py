"""Stage `evaluate`: runs and metrics of one system on dev and test."""
