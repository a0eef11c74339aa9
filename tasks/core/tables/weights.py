"""Weights of training pairs, data/weights/train.parquet: query, doc, weight of those that do not weigh 1.

Apart from the other schemas, which every stage imports: a change here re-runs prepare and training alone.
"""

import pyarrow as pa

WEIGHTS = pa.schema([("query", pa.string()), ("doc", pa.string()), ("weight", pa.float32())])
