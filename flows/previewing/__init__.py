"""`retemper preview`: search and train on a part of the prepared data within minutes, before a whole run."""
