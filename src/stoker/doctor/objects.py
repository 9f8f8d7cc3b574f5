"""Samples that are objects of a store which answers over HTTP, apart from rows of a service. Pure."""

from stoker.doctor.evidence import Evidence

# Bytes of a sample: the rows of a feature service have some hundreds, the header of its answer among them;
# pictures and sounds have thousands.
_LEAST = 4096


def object_bytes(run: Evidence) -> float | None:
    """What a sample brings over HTTP, where every one is an answer of its own and too large for a row."""
    asked = run.making.get("bytes")
    if not asked or not run.samples or (run.calls("http") or 0.0) < 0.8:
        return None
    size = float(asked) / (run.samples / run.batches)
    return size if size >= _LEAST else None
