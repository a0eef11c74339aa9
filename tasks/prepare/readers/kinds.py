"""The reader for each kind of SPEC."""

from dataclasses import replace

from tasks.core.sources.datasets import DatasetSpec
from tasks.prepare.readers import beir, csv_tables, demo, msmarco, pairs, parquet
from tasks.prepare.source import Source


def read(spec: DatasetSpec, *, needs_qrels: bool = True) -> Source:
    """The dataset that `spec` names, as streams. UserError if a file is missing.

    If it has no qrels: UserError with `needs_qrels`, otherwise documents alone.
    """
    return replace(_read(spec, needs_qrels), name=str(spec))


def _read(spec: DatasetSpec, needs_qrels: bool) -> Source:
    if spec.kind == "demo":
        return demo.read()
    if spec.kind == "irds":
        from tasks.prepare.readers import irds  # imported here: it is slow to import, and only this kind needs it

        return irds.read(spec.place)
    if spec.kind == "msmarco":
        return msmarco.read(spec.folder)
    if spec.kind == "pairs":
        return pairs.read(spec.folder, spec.columns)
    return {"beir": beir.read, "csv": csv_tables.read, "parquet": parquet.read}[spec.kind](spec.folder, needs_qrels=needs_qrels)
