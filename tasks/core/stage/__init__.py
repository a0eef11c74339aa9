"""What every stage is made of: entry, errors, files, parameters, progress, devices."""
