"""Parameters of report."""

from pydantic import Field

from tasks.core.metrics.selection import METRIC
from tasks.core.stage.params import Params


class Report(Params):
    """What the report compares."""

    metric: str = Field(METRIC, description="measure that chooses the best model on dev and is tested for significance")
    baselines: tuple[str, ...] = Field(
        ("bm25", "init", "warmup"), description="systems in the table that every other system is tested against"
    )
    alpha: float = Field(0.05, gt=0, lt=1, description="family-wise error rate of the paired t-tests, with Holm's correction")
    seed: int = Field(42, ge=0, description="seed for the sample of queries shown")
