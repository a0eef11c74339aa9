"""Stage `freeze`: write the parameters and code digests that stages depend on. `retemper run` writes the same files itself."""
