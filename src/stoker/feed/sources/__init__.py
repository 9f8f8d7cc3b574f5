"""Where samples are read. One source is one file; each is imported where it is used."""
