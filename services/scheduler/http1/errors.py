"""What goes wrong between two sides of HTTP/1.1."""


class RemoteProtocolError(Exception):
    """The client sent what no server has to read. The connection ends with the answer `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class LocalProtocolError(Exception):
    """We did what is not due in this state: a defect of ours."""


def malformed(what: str) -> RemoteProtocolError:
    """The error 400 for bytes that are no HTTP/1.1."""
    return RemoteProtocolError(400, f"this is no valid HTTP/1.1 request: {what}")
