"""A web server: GET /users/1,2,3 answers 33 float32 a user, GET /prints/7 a picture of 12,288 bytes."""

import random
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def features(user):
    draw = random.Random(user)
    row = [draw.gauss(0, 1) for _ in range(32)]
    return struct.pack("33f", *row, float(row[0] > 0))


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body in one segment
    disable_nagle_algorithm = True

    def do_GET(self):
        numbers = [int(word) for word in self.path.rpartition("/")[2].split(",")]
        if self.path.startswith("/prints/"):
            body = b"".join(random.Random(number).randbytes(12288) for number in numbers)
        else:
            body = b"".join(known[number] for number in numbers)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Nothing: the console is the training's."""


known = [features(user) for user in range(6000)]

if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    print(server.server_address[1], flush=True)
    server.serve_forever()
