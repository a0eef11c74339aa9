"""How large numbers of params.yaml may be: beyond that, libraries fail in ways of their own."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(le=2**31 - 1)]
Seed = Annotated[int, Field(le=2**32 - 1)]  # as scikit-learn has it
Epochs = Annotated[float, Field(le=1e6)]
