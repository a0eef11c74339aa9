"""The champion: the model that is served, its history in git, its figures on new data."""
