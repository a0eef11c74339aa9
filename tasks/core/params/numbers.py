"""Upper limits of numbers in params.yaml: beyond them, libraries fail in ways of their own."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(le=2**31 - 1)]
Seed = Annotated[int, Field(le=2**32 - 1)]  # scikit-learn's limit
Epochs = Annotated[float, Field(le=1e6)]
