"""An object store in a process of its own: `python store.py FOLDER DELAY_MS` serves a folder's files by HTTP.

Each answer is late, by a sleep. It writes its port to stdout, and ends with its stdin.
"""

import http.server
import sys
import threading
import time
from pathlib import Path


class Store(http.server.BaseHTTPRequestHandler):
    """GET /key: the file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        body = (self.server.root / self.path[1:]).read_bytes()
        time.sleep(self.server.delay)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    server.root, server.delay = Path(sys.argv[1]), float(sys.argv[2]) / 1e3
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
