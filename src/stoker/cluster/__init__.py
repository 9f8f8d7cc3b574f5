"""Several machines: trainings, searches and stagings on the nodes of a cluster, for `--on`.

The names load when first used; Ray is imported where a cluster of it is opened.
"""

__all__: list[str] = []
