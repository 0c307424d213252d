"""A web server on this machine that misbehaves on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers each path with the function the test registered, and records the requests."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        self.server.answers[self.path](self)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str | None]] = []

    def offer(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@contextmanager
def running_server() -> Iterator[Server]:
    """A server in a thread, stopped at the end."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(timeout=10)


def whole(content: bytes, *, resumes: bool = True) -> Answer:
    def answer(handler: Handler) -> None:
        asked = handler.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and resumes else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:])

    return answer


def broken_once(content: bytes, *, resumes: bool = True) -> Answer:
    """Half of the content and then a dead connection; everything the next time."""
    answers = iter([half(content)])

    def answer(handler: Handler) -> None:
        next(answers, whole(content, resumes=resumes))(handler)

    return answer


def half(content: bytes) -> Answer:
    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            return handler.send_error(503)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        handler.close_connection = True
        return None

    return answer


def status(code: int) -> Answer:
    return lambda handler: handler.send_error(code)
