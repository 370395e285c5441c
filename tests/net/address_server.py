"""An HTTP server that says where name servers are: whatever the test wants it to say."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AddressSite:
    """Answers every request with `answer`; `asked` has the paths. While `talks` is cleared, it reads and is silent."""

    def __init__(self, answer=""):
        self.answer = answer
        self.status = 200
        self.headers = {}
        self.asked = []
        self.talks = threading.Event()
        self.talks.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.talks.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wrap(self, context):
        """Speak TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def _handler(self):
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.asked.append(self.path)
                site.talks.wait()
                body = site.answer.encode()
                self.send_response(site.status)
                for name, value in ({"Content-Length": str(len(body))} | site.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
