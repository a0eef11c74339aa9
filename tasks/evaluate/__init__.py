"""Stage `evaluate`: compute the metrics of one system's runs on dev and test."""
