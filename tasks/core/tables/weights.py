"""Weights of training pairs, data/weights/train.parquet: query, doc, weight, only for pairs whose weight is not 1.

This schema is apart from the others, which every stage imports: a change here re-runs only prepare and training.
"""

import pyarrow as pa

WEIGHTS = pa.schema([("query", pa.string()), ("doc", pa.string()), ("weight", pa.float32())])
