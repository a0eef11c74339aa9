"""Stage `prepare`: any source of documents, queries and qrels becomes the one corpus form (tasks.core.tables.schemas)."""
