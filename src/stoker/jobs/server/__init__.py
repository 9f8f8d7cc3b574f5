"""The HTTP side: the API, its guard, streams, figures, and the process that serves them."""
