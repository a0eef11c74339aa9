"""Tables: their schemas, Parquet, run files, judgments."""
