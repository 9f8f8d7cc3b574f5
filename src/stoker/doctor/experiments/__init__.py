"""Experiments in the script's process beside replay and drain, a file each; `trial.py` calls them.

Those here end a run: they read the user's dataset again, and nothing of the script runs after them.
"""
