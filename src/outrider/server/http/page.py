"""The web page: a few files, under a policy that lets nothing else run in it."""

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
    """Show the files that are in a folder now, at / too if there is an index.html; returns their paths.

    Without an index.html nothing is shown. Nothing else of the file system can be reached.
    """
    if not (folder / "index.html").is_file():
        return frozenset()
    found = sorted(path for path in folder.rglob("*") if path.suffix in TYPES and not path.is_symlink())
    files = {"/" + path.relative_to(folder).as_posix(): path for path in found}
    files["/"] = folder / "index.html"
    for path, file in files.items():
        app.router.routes.append(Route(path, _shown(file), include_in_schema=False))
    return frozenset(files)


def _shown(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return FileResponse(file, media_type=TYPES[file.suffix], headers=HEADERS)

    return page
