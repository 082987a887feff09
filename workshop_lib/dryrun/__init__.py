"""`workshop dryrun`: a script as one of many ranks that don't exist."""
