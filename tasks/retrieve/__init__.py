"""Stage `retrieve`: write the runs of one system on dev and test."""
