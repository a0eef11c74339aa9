"""Parameters of report."""

from pydantic import Field

from tasks.core.stage.params import Params


class Report(Params):
    """What is compared with what."""

    metric: str = Field("nDCG@10", description="chooses the best model on dev, and is tested for significance")
    baselines: tuple[str, ...] = Field(
        ("bm25", "init", "warmup"), description="every system is tested against each of these that is in the table"
    )
    alpha: float = Field(0.05, gt=0, lt=1, description="family-wise error rate of the paired t-tests, Holm-corrected")
    seed: int = Field(42, ge=0, description="draws the example queries shown")
