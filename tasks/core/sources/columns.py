"""The columns of CSV and Parquet tables, each by all names that it may have."""

DOCUMENT_ID, TITLE, TEXT = ("_id", "id", "docid", "doc_id", "pid"), ("title",), ("text", "passage", "body")
QUERY_ID, QUERY_TEXT, ANSWERS = ("_id", "id", "qid", "query_id", "query-id"), ("text", "query"), ("answers",)
QREL_QUERY = ("query-id", "query_id", "qid", "query")
QREL_DOC = ("corpus-id", "corpus_id", "docid", "doc_id", "doc", "pid")
QREL_GRADE = ("score", "grade", "relevance")
WEIGHT = "weight"  # its only name, in qrels in BEIR form too
