"""Stage `freeze`: parameters and digests of code as the stages depend on them. `retemper run` writes the same files itself."""
