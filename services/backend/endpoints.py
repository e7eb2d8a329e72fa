"""Where engines publish their snapshots. Apart from what publishes: a launcher needs no more."""


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """Where a data-parallel rank publishes, if its engine is told `endpoint`: each elsewhere."""
    if not rank:
        return endpoint
    if endpoint.startswith("tcp://"):
        address, _, port = endpoint.rpartition(":")
        return f"{address}:{int(port) + rank}"
    return f"{endpoint}.rank{rank}"
