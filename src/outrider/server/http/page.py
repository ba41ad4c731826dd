"""The web page: static files, with a Content-Security-Policy that allows nothing from other hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, folder: Path) -> frozenset[str]:
    """Serve the files that are in a folder now, and its index.html at / too; returns their paths.

    Without an index.html nothing is served. There is a route for each file, so that no request can reach
    other files; links are left out.
    """
    if not (folder / "index.html").is_file():
        return frozenset()
    found = sorted(path for path in folder.rglob("*") if path.suffix in TYPES and not path.is_symlink())
    files = {"/" + path.relative_to(folder).as_posix(): path for path in found}
    files["/"] = folder / "index.html"
    for path, file in files.items():
        app.router.routes.append(Route(path, _serve_file(file), include_in_schema=False))
    return frozenset(files)


def _serve_file(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return FileResponse(file, media_type=TYPES[file.suffix], headers=HEADERS)

    return page
