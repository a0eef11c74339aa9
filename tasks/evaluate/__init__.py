"""Stage `evaluate`: metrics of one system's runs on dev and test."""
