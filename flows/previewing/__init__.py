"""`retemper preview`: a part of the prepared data, searched and trained on within minutes, before a whole run."""
