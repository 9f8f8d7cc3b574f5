"""Where jobs run: an engine starts a runner, looks whether it is there, and stops it."""
