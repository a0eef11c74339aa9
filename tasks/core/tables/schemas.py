"""The tables passed between stages: one Arrow schema each, and their places in a corpus folder.

    corpus/documents.parquet       id, title, text
    corpus/queries/SPLIT.parquet   id, text, answers (strings; empty if the data has none)
    corpus/qrels/SPLIT.parquet     query, doc, grade (above 0: relevant)
    corpus/columns/SPLIT.parquet   query, column, value: the source's own fields of queries, if it has any
    corpus/stats.json              statistics of what was read
    candidates/SPLIT.parquet, negatives/NAME/train.parquet    query, doc, rank (from 1), score

Ids are the source's own strings.
"""

import pyarrow as pa

SPLITS = ("train", "dev", "test")
MEASURED = ("dev", "test")  # splits that systems have runs for
DOCUMENTS = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])
QUERIES = pa.schema([("id", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string()))])
QRELS = pa.schema([("query", pa.string()), ("doc", pa.string()), ("grade", pa.int32())])
COLUMNS = pa.schema([("query", pa.string()), ("column", pa.string()), ("value", pa.string())])
RANKED = pa.schema([("query", pa.string()), ("doc", pa.string()), ("rank", pa.int32()), ("score", pa.float32())])
