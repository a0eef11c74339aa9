"""Why a model changed: its difference from another split over what made both, and the batch of an inbox that made it worse."""
