"""A live page: what engines do, and what is predicted of each request there.

The page is static and knows nothing; what it shows comes from `/console/state`, for admin keys. It
asks once a second while somebody looks, each time over another connection, so that it hears of all
replicas behind an address. A replica computes nothing for it otherwise.
"""

from importlib import resources

from foretell.services.scheduler.http1.response import Response

STATE = "/console/state"
_SCRIPTS = ("console.js", "engines.js", "format.js", "requests.js", "server.js")
_FILES = {
    "/console": ("console.html", "text/html; charset=utf-8"),
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
    **{f"/console/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def static_pages() -> dict[str, Response]:
    """A page for each path that shows nothing of the cluster."""
    return {path: _page(*file) for path, file in _FILES.items()}


def _page(name: str, content_type: str) -> Response:
    body = (resources.files(__name__) / name).read_bytes()
    return Response(200, body, content_type, _HEADERS)
