"""Ends with code 0 if the service of this container is well, whichever it is."""

import http.client
import sys

PLACES = ((8000, "/health"), (9100, "/metrics"))
"""Where services answer; each listens on one of the ports."""
WITHIN_S = 8.0


def main() -> int:
    """The code: 0 if the service answers 200."""
    for port, path in PLACES:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        try:
            connection.request("GET", path)
            return int(connection.getresponse().status != 200)
        except ConnectionRefusedError:
            continue
        except OSError:
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
