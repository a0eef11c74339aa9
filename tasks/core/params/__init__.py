"""Parameters: sections of params.yaml and runtime.yaml as frozen records."""
