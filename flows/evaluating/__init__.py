"""Any models on any data sets, by ordinary runs in second trees of the project."""
