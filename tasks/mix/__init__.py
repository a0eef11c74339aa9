"""Stage `mix`: two sources of negatives as one, in any ratio."""
