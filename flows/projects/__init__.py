"""Start a project (`retemper new`), and bring a newer Retemper into it (`retemper upgrade`)."""
