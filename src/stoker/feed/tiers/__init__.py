"""Where samples wait. One tier is one file."""
