"""The cases by what is wrong with them: one file for reads, workers, the host, devices, and nothing wrong."""
