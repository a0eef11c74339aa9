"""Parameters of report."""

from pydantic import Field

from tasks.core.metrics.selection import METRIC
from tasks.core.statistics.tested import Tested


class Report(Tested):
    """What the report compares."""

    metric: str = Field(METRIC, description="measure that chooses the best model on dev and is tested for significance")
    baselines: tuple[str, ...] = Field(
        ("bm25", "init", "warmup"), description="systems in the table that every other system is tested against"
    )
