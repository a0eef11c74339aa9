"""Stage `chunk`: articles cut into chunks of whole sentences, as tokens."""
