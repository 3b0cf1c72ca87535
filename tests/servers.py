"""Real servers for the tests of the shared tier, on the loopback interface only, and a proxy that spoils what they say.

Each runs in a directory of its own, is waited for until it answers, and is ended by its own process id.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

WAIT = 60  # seconds after which something that was waited for will not come any more

T = TypeVar("T")
S = TypeVar("S", bound="Server")


def until(condition: Callable[[], T], what: str = "a condition") -> T:
    """Wait until something is so, and return what it is."""
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {WAIT} s for {what}"
        time.sleep(0.005)
    return value


def free_port() -> int:
    """A port that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def needs_program(name: str) -> str:
    """The path of a program; the test is skipped where there is none."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def request(url: str, method: str = "GET", data: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body that a web server answers with; 0 where there is no answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=data, method=method), timeout=WAIT) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


class Server:
    """A server program. It can be stopped, paused, and started again on its port.

    Args:
        directory: where it may write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: S) -> S:
        for _ in range(5):  # somebody else may take the port first
            self.port = free_port()
            with contextlib.suppress(ConnectionError):
                self.start()
                return self
        raise AssertionError(f"{type(self).__name__} does not start: {self.log()}")

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers; raises `ConnectionError` where it ends instead."""
        command = self.command()
        with open(self.directory / "log", "ab") as log:
            process = subprocess.Popen(command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._process = process
        try:
            until(lambda: process.poll() is not None or self.answers(), f"{command[0]} to answer")
            if process.poll() is not None:
                raise ConnectionError(f"{command[0]} has ended")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(WAIT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it from doing anything while the block runs: its connections stay, and nothing is answered."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "T")
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""


class RedisServer(Server):
    """A Redis server that keeps everything in memory."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._program = needs_program("redis-server")
        self._library = pytest.importorskip("redis", reason="the library redis is not installed")
        self._arguments = arguments
        super().__init__(directory)

    def command(self) -> list[str]:
        fixed = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--hz", "100")
        return [self._program, *fixed, *self._arguments]

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (self._library.RedisError, OSError):
            return False

    def client(self) -> Any:
        return self._library.Redis(port=self.port, socket_timeout=WAIT)

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def objects(self) -> list[str]:
        """The names of what is stored there."""
        with self.client() as client:
            return sorted(key.decode().rpartition(":")[2] for key in client.scan_iter("*:object:*"))


_NGINX = """\
daemon off;
master_process off;
pid nginx.pid;
error_log stderr error;
load_module {modules}/ngx_http_dav_ext_module.so;
events {{ worker_connections 512; }}
http {{
  access_log access.log;
  client_max_body_size 0;
  client_body_temp_path temp/body;
  proxy_temp_path temp/proxy;
  fastcgi_temp_path temp/fastcgi;
  uwsgi_temp_path temp/uwsgi;
  scgi_temp_path temp/scgi;
  server {{
    listen {address};
    root files;
    location / {{
      dav_methods PUT DELETE MKCOL COPY MOVE;
      dav_ext_methods PROPFIND OPTIONS;
      create_full_put_path on;
    }}
    location /full/ {{
      if ($request_method = PUT) {{ return 507; }}
      dav_ext_methods PROPFIND OPTIONS;
    }}
    location /private/ {{
      auth_basic "private";
      auth_basic_user_file users;
      dav_methods PUT DELETE MKCOL COPY MOVE;
      create_full_put_path on;
    }}
    location /broken/ {{ return 500; }}
    location /forbidden/ {{ return 403; }}
    location /page/ {{ default_type text/html; return 200 "<html>Please log in</html>"; }}
  }}
}}
"""

_MODULES = "/usr/lib/nginx/modules"


class Nginx(Server):
    """A web server that takes WebDAV's methods.

    Below /full/ it takes no objects, below /broken/ it always fails; /private/ is for `user` with a password.
    """

    password = "the/pass@word"

    def __init__(self, directory: Path) -> None:
        self._program = needs_program("nginx")
        if not os.path.exists(f"{_MODULES}/ngx_http_dav_ext_module.so"):
            pytest.skip("nginx has no dav-ext module (libnginx-mod-http-dav-ext)")
        pytest.importorskip("obstore", reason="the library obstore is not installed")
        super().__init__(directory)
        for name in ("files", "temp"):
            (directory / name).mkdir(exist_ok=True)
        (directory / "users").write_text(f"user:{{PLAIN}}{self.password}\n")

    def command(self) -> list[str]:
        (self.directory / "nginx.conf").write_text(_NGINX.format(modules=_MODULES, address=self.address))
        return [self._program, "-e", "stderr", "-p", f"{self.directory}/", "-c", "nginx.conf"]

    def answers(self) -> bool:
        return request(f"http://{self.address}/broken/")[0] == 500

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def requests(self, part: str = "") -> int:
        """How many requests it has answered that have a text in them."""
        path = self.directory / "access.log"
        return sum(part in line for line in path.read_text().splitlines()) if path.exists() else 0


class S3Server(Server):
    """moto's imitation of S3, with an empty bucket."""

    bucket = "kernels"

    def __init__(self, directory: Path) -> None:
        pytest.importorskip("moto.server", reason="moto[server] is not installed")
        pytest.importorskip("obstore", reason="the library obstore is not installed")
        super().__init__(directory)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        return request(f"http://{self.address}/{self.bucket}", "PUT", b"")[0] == 200

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/some/prefix"

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which S3's clients find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": "an-access-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
            "AWS_REGION": "eu-central-1",
        }


class Proxy:
    """Passes bytes to and from a server on this host, or does something worse, by `mode`, from one moment to the next.

    The modes are `through`; `swallow`, take everything and answer nothing; `refuse`, close every connection;
    `garbage`, answer something else; `truncate`, answer the first half and close; `trickle`, answer byte by byte; and
    `small`, pass on nothing that is longer than 1000 bytes, as a network does that loses large packets.

    Args:
        port: the server's; without one everything is swallowed.
    """

    modes = ("swallow", "refuse", "garbage", "truncate", "trickle")

    def __init__(self, port: int = 0) -> None:
        self.mode = "through" if port else "swallow"
        self.connections = 0
        self.asked = 0  # how often bytes came from clients
        self._port = port
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.is_set():
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if self.mode == "refuse":
                return
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self._port))) if self._port else None
            if server is not None:
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16):
                self.asked += 1
                if self.mode == "refuse":
                    client.shutdown(socket.SHUT_RDWR)
                    return
                if server is None or self.mode == "swallow" or (self.mode == "small" and len(data) > 1000):
                    continue
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.mode in {"through", "small"}:
                    client.sendall(data)
                elif self.mode == "garbage":
                    client.sendall(bytes(byte ^ 0x5A for byte in data))
                elif self.mode == "truncate":
                    client.sendall(data[: len(data) // 2])
                    break
                elif self.mode == "trickle":
                    for byte in data:
                        client.sendall(bytes((byte,)))
                        if self._stopped.wait(0.05) or self.mode != "trickle":
                            break
                    else:
                        continue
                    break
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """The port of a socket that listens and accepts nothing: the kernel connects, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener.getsockname()[1]


def is_free_of(text: str, *secrets: str) -> bool:
    """Whether none of these is in a text, quoted or not."""
    return not any(re.search(re.escape(secret), text, re.IGNORECASE) for secret in secrets)
