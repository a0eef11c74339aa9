"""Which reader reads which kind of SPEC."""

from tasks.core.sources import DatasetSpec
from tasks.prepare import beir, demo
from tasks.prepare.source import Source


def read(spec: DatasetSpec) -> Source:
    """The dataset that `spec` names, as streams; UserError where a file is missing."""
    if spec.kind == "demo":
        return demo.read()
    return beir.read(spec.folder)
