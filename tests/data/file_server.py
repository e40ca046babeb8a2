"""A file server on loopback that misbehaves as it is told to."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from rscfed_jax.data.download import Published


class FileServer(ThreadingHTTPServer):
    """Serves files by name, and knows what it was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []  # bytes that each of the first answers sends before it breaks off
        self.errors: list[int] = []  # status of each of the first answers
        self.resumes = True  # whether it knows ranges
        self.pause = 0.0  # seconds in the middle of a file
        self.asked: list[tuple[str, str | None]] = []  # name and range

    def publish(self, name: str, content: bytes, **changes) -> Published:
        """Serves a file, and says how it is known."""
        self.files[name] = content
        url = f"http://127.0.0.1:{self.server_port}/{name}"
        facts = {"md5": hashlib.md5(content).hexdigest(), "size": len(content)}
        return Published(url, **facts | changes)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: FileServer

    def do_GET(self):
        """Sends a file or what is left of it, as far as the server's faults let it."""
        name, asked = urlsplit(self.path).path[1:], self.headers.get("Range")
        self.server.asked.append((name, asked))
        if self.server.errors or name not in self.server.files:
            self.send_error(self.server.errors.pop(0) if self.server.errors else 404)
            return
        content, start = self.server.files[name], 0
        if asked and self.server.resumes:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        until = start + self.server.cuts.pop(0) if self.server.cuts else len(content)
        middle = (start + until) // 2
        with contextlib.suppress(ConnectionError):  # the client may have given up
            self.wfile.write(content[start:middle])
            self.wfile.flush()
            time.sleep(self.server.pause)
            self.wfile.write(content[middle:until])

    def log_message(self, *_):
        """Keeps the console quiet."""


@contextlib.contextmanager
def file_server() -> Iterator[FileServer]:
    """The server, in a thread."""
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
