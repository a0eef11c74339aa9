"""Code that every stage uses: entry point, errors, files, parameters, progress, devices."""
