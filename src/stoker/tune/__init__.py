"""Tries changes one at a time on the user's own loop, and keeps what is proved."""
