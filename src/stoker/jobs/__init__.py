"""Training jobs: submitted, queued, run, watched, cancelled and resumed; from HTTP, Python and a browser."""
