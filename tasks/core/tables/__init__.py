"""Tables: their schemas, Parquet, ids, judgments."""
