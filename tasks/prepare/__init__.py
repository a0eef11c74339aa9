"""Stage `prepare`: convert any source of documents, queries, and qrels to the one corpus format (tasks.core.tables.schemas)."""
