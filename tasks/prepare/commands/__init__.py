"""The processes behind commands of the flows, which read sources with this stage's code."""
