"""Stage `retrieve`: runs of one system on dev and test."""
