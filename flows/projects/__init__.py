"""A project's beginning (`retemper new`), and a newer Retemper in it (`retemper upgrade`)."""
