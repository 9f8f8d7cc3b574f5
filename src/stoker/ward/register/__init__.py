"""The cases by what is wrong with them: reads, workers, the host, devices, ranks, and nothing wrong."""
