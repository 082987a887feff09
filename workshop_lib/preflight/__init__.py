"""`workshop preflight`: a minute's look at every rank, device, link and disk of an allocation before a long job."""
