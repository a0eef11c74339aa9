"""The texts of documents and queries: read, analysed into words, compared."""
