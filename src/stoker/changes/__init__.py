"""Changes that apply to an unmodified script, a file each."""

from stoker.changes.applied import from_file, put, told
from stoker.changes.catalogue import ALL
from stoker.changes.change import Change, Kind
from stoker.changes.settings import check, find, read

__all__ = ["ALL", "Change", "Kind", "check", "find", "from_file", "put", "read", "told"]
