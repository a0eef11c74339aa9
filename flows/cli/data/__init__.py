"""Commands on new data."""
