"""Tables: their schemas, Parquet, run files, ids, judgments."""
