"""The daemon as a person meets it: its settings, its ready line, its log, its HTTP doors, its end. Ends with "N passed,
N failed"."""
import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import wire  # noqa: E402

PARAMD = os.environ.get("PARAMD_BIN", os.path.join(ROOT, "build", "paramd"))
ANY = ["--listen", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0"]
PARAMCTL = os.path.join(os.path.dirname(PARAMD), "paramctl")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PARAMD_")}


def run(*flags, **env):
    return subprocess.run([PARAMD, *flags], capture_output=True, text=True, timeout=20, env={**CLEAN, **env})


@contextlib.contextmanager
def written(text):
    """A file with this text; its path."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        yield file.name


def rewrite(path, text):
    with open(path, "w") as file:
        file.write(text)


def soon(fact, seconds=10):
    """Looks until it is so."""
    end = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > end:
            raise AssertionError("it has not come to that")
        time.sleep(0.01)


class Running:
    """A daemon on free ports, with the fields of its ready line."""

    def __init__(self, *flags, env=None, limits=(), under=(), at=ANY):
        def limit():
            for what, most in limits:
                resource.setrlimit(what, (most, most))

        self.err = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([*under, PARAMD, *at, *flags], stdout=subprocess.PIPE, stderr=self.err, text=True,
                                     env={**CLEAN, **(env or {})}, preexec_fn=limit)
        line = self.proc.stdout.readline()
        if not line.startswith("paramd ready "):
            raise AssertionError(f"no ready line: {line!r} {self.log()}")
        self.line = line
        self.fields = dict(word.split("=", 1) for word in line.split()[2:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.communicate(timeout=10)
        self.err.close()

    def log(self):
        with open(f"/proc/self/fd/{self.err.fileno()}", encoding="utf-8") as file:  # from its start, the daemon writes on
            return file.read()

    def address(self, door):
        host, port = self.fields[door].split("://")[1].rsplit(":", 1)
        return host, int(port)

    def reload(self):
        """SIGHUP; what it said of it."""
        before = len(self.log())
        self.proc.send_signal(signal.SIGHUP)
        soon(lambda: "read anew" in self.log()[before:])
        return self.log()[before:]

    def get(self, door, path, method="GET", **headers):
        request = urllib.request.Request(self.fields[door] + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, dict(answer.headers), answer.read().decode()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def health_request(number):
    """A whole SP message of the bulk door that asks Health, which needs no HELLO."""
    head = struct.pack("<4sBBHHH16sIQIIiIIQI", b"PRMD", 1, 24, 0, 0, 0, bytes(16), 0, 0, 0, 0, 0, 0, 0, 2, 0)
    frame = struct.pack(">I", 0x80000000 | number) + head + struct.pack("<I", crc32c(head)) + b"{}"
    return struct.pack(">Q", len(frame)) + frame


class SlowReader:
    """Asks the bulk door so much, and reads so little, that the daemon is left with answers it cannot send."""

    def __init__(self, daemon):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(daemon.address("bulk"))
        self.socket.sendall(b"\0SP\0\0\x30\0\0")
        self.socket.recv(8, socket.MSG_WAITALL)
        self.socket.setblocking(False)
        requests = health_request(1) * 1000
        while select.select([], [self.socket], [], 0.5)[1]:  # until it takes no more
            self.socket.send(requests)

        self.reading = threading.Thread(target=self.read)
        self.quickly = threading.Event()

    def read_on(self):
        """A little at a time, as somebody does who is waited for; read_all ends it."""
        self.socket.setblocking(True)
        self.reading.start()

    def read(self):
        with contextlib.suppress(OSError):
            while not self.quickly.wait(0.02) and self.socket.recv(4096):
                pass

    def read_all(self):
        self.quickly.set()
        self.reading.join()
        with contextlib.suppress(ConnectionResetError):  # it is closed over requests that were not read any more
            while self.socket.recv(1 << 20):
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.quickly.set()
        if self.reading.ident is not None:
            self.reading.join()
        self.socket.close()


class Flags(unittest.TestCase):
    def test_help_names_every_flag_and_ends_with_0(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for flag in ("--listen", "--bulk", "--admin", "--probe", "--token-file", "--staging-max", "--log"):
            self.assertIn(flag, done.stdout)

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^paramd \d+\.\d+\.\d+\n$")

    def test_an_unknown_flag_is_told_with_the_nearest_and_status_2(self):
        done = run("--lisen", "tcp://127.0.0.1:0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean --listen", done.stderr)

    def test_bad_values_are_told_and_status_2(self):
        for flags, words in ((("--staging-max", "12q"), "--staging-max"), (("--log", "loud"), "error|warn|info|debug"),
                             (("--device", "tpu"), "--device"), (("--listen",), "needs URL"),
                             (("--token-file", "/nonexistent/token"), "No such file")):
            done = run(*flags)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(words, done.stderr)

    def test_an_address_beyond_this_machine_needs_a_token(self):
        done = run("--listen", "tcp://0.0.0.0:0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--token-file", done.stderr)

    def test_a_port_that_is_taken_is_told_with_status_1(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for flag, url in (("--listen", "tcp://127.0.0.1"), ("--bulk", "tcp://127.0.0.1"), ("--admin", "127.0.0.1"),
                              ("--probe", "127.0.0.1")):
                others = ANY if flag != "--listen" else ANY[2:]
                done = run(*others, flag, f"{url}:{port}")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, rf"paramd: {flag}: cannot listen on .*{port}: ")  # what gives it another


class Settings(unittest.TestCase):
    def test_help_fits_100_columns_and_tells_the_exit_statuses(self):
        text = run("--help").stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertIn("Exit status: 0 ", text)
        self.assertIn("PARAMD_TOKEN_FILE", text)

    def test_print_config_tells_values_and_origins_and_never_the_token(self):
        with written("s3cret-token-of-it\n") as token, written(f"# mine\ntoken-file = {token}\nround_timeout = 7.5\n") as conf:
            done = run("--config", conf, "--log", "warn", "--print-config", PARAMD_DRAIN_TIMEOUT="3")
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in (fr"token-file +=  ?{token} +# {conf}:2", fr"round-timeout +=  ?7.5 +# {conf}:3",
                         r"log +=  ?warn +# flag", r"drain-timeout +=  ?3 +# PARAMD_DRAIN_TIMEOUT", r"threads is not set",
                         r"admin +=  ?127.0.0.1:7780 +# default"):
                self.assertRegex(done.stdout, line)
            self.assertNotIn("s3cret", done.stdout + done.stderr)
            with written(done.stdout) as again:  # it is a file that --config takes
                self.assertEqual(run("--config", again, "--check-config").returncode, 0)

    def test_check_config_tells_good_and_bad_without_starting(self):
        self.assertEqual(run("--check-config").stdout, "paramd: the settings are good\n")
        self.assertIn("did you mean PARAMD_LOG?", run("--check-config", PARAMD_LGO="info").stderr)
        for text, words in (("lisen = x\n", ":1: 'lisen' is no setting; did you mean listen?"),
                            ("log = loud\n", ":1: log: 'loud'"), ("token-file = /nonexistent\n", "No such file"),
                            ("admin = 0.0.0.0:1\n", "--token-file"), ("listen = here\n", "--listen: ")):
            with written(text) as conf:
                done = run("--config", conf, "--check-config")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(words, done.stderr)

    def test_a_daemon_out_of_a_file_and_the_environment(self):
        with written("bulk = off\nlog-format = json\n") as conf:
            with Running(env={"PARAMD_CONFIG": conf, "PARAMD_LOG": "info"}) as d:
                self.assertEqual(d.fields["bulk"], "off")
                soon(lambda: d.log().endswith("\n"))
                self.assertEqual(json.loads(d.log().splitlines()[0])["level"], "info")

    def test_an_unknown_variable_is_only_a_warning(self):
        with Running(env={"PARAMD_LISTN": "x", "PARAMD_PORT_7700_TCP": "tcp://10.0.0.1:7700"}) as d:
            soon(lambda: "PARAMD_PORT_7700_TCP" in d.log())
            self.assertIn("PARAMD_LISTN in the environment is no setting; did you mean PARAMD_LISTEN?", d.log())

    def test_a_device_that_is_not_there_is_one_line_and_auto_tells_what_it_took(self):
        none = {"PARAMD_CUDA_PLUGIN": "/nowhere/paramd-cuda.so"}
        done = run("--device", "cuda:0", **none)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("no usable GPU: /nowhere/paramd-cuda.so: there is no such file; `make` builds it", done.stderr)
        with Running(env=none) as d:
            soon(lambda: "no usable GPU: /nowhere/paramd-cuda.so: " in d.log())
            self.assertEqual(d.fields["device"], "cpu")

    def test_a_name_that_begins_like_loopback_is_not_loopback(self):
        for host in ("127.0.0.1.example.com", "localhost.example.com"):
            self.assertEqual(run("--listen", f"tcp://{host}:0", "--check-config").returncode, 2)


class Reload(unittest.TestCase):
    def test_sighup_takes_what_may_change(self):
        with written("the-old-token-of-it\n") as token, written(f"token-file = {token}\nlog = warn\n") as conf:
            with Running("--config", conf) as d:
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer the-old-token-of-it")[0], 200)
                rewrite(token, "the-new-token-of-it\n")
                rewrite(conf, f"token-file = {token}\nlog = debug\nlog-format = json\nstaging-max = 64m\n")
                self.assertIn("the settings were read anew", d.reload())
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer the-old-token-of-it")[0], 401)
                status, _, body = d.get("admin", "/v1/info", Authorization="Bearer the-new-token-of-it")
                self.assertEqual(status, 200)
                self.assertEqual(json.loads(body)["memory"]["staging_max"], 64 << 20)
                self.assertTrue(json.loads(d.log().splitlines()[-1]))

    def test_a_reload_with_any_fault_changes_nothing(self):
        with written("the-old-token-of-it\n") as token, written(f"token-file = {token}\n") as conf:
            with Running("--config", conf) as d:
                rewrite(token, "the-new-token-of-it\n")
                for text, words in ((f"token-file = {token}\nthreads = 3\n", "threads cannot change"),
                                    (f"token-file = {token}\nlistn = x\n", "did you mean listen?"),
                                    ("token-file = /nonexistent\n", "No such file")):
                    rewrite(conf, text + "log-format = json\n")
                    said = d.reload()
                    self.assertIn(words, said)
                    self.assertIn("nothing has changed", said)
                    self.assertTrue(said.startswith("ts="), said)  # the format neither
                    self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer the-old-token-of-it")[0], 200)
                    self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer the-new-token-of-it")[0], 401)
                self.assertIsNone(d.proc.poll())


class Supervision(unittest.TestCase):
    def test_a_service_manager_is_told_when_it_is_ready_reloads_and_stops(self):
        for abstract in (False, True):
            with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                name = f"paramd-test-{os.getpid()}" if abstract else f"{folder}/notify"
                manager.bind("\0" + name if abstract else name)
                manager.settimeout(10)
                with Running(env={"NOTIFY_SOCKET": "@" + name if abstract else name}) as d:
                    self.assertEqual(manager.recv(100), b"READY=1")
                    d.proc.send_signal(signal.SIGHUP)
                    self.assertRegex(manager.recv(100), rb"^RELOADING=1\nMONOTONIC_USEC=\d+$")
                    self.assertEqual(manager.recv(100), b"READY=1")
                    d.proc.send_signal(signal.SIGTERM)
                    self.assertEqual(manager.recv(100), b"STOPPING=1")
                    self.assertEqual(d.proc.wait(8), 0)

    def test_a_manager_that_is_not_there_is_no_reason_to_stop(self):
        for name in ("/nonexistent/notify", "relative", "@", "/" + "x" * 200):
            with Running(env={"NOTIFY_SOCKET": name}) as d:
                self.assertEqual(d.get("probe", "/livez")[0], 200)


class Drain(unittest.TestCase):
    def test_what_is_under_way_is_finished_first(self):
        with Running("--drain-timeout", "60") as d, SlowReader(d) as slow:
            slow.read_on()
            d.proc.send_signal(signal.SIGTERM)
            soon(lambda: "told to stop" in d.log())
            with self.assertRaises(subprocess.TimeoutExpired):
                d.proc.wait(0.5)
            self.assertEqual(d.get("probe", "/livez")[0], 200)
            self.assertEqual(d.get("probe", "/readyz")[0], 503)
            slow.read_all()
            self.assertEqual(d.proc.wait(10), 0)

    def test_a_second_signal_ends_it_at_once(self):
        with Running("--drain-timeout", "600") as d, SlowReader(d) as slow:
            slow.read_on()
            d.proc.send_signal(signal.SIGTERM)
            soon(lambda: "told to stop" in d.log())
            d.proc.send_signal(signal.SIGTERM)
            self.assertEqual(d.proc.wait(8), 0)

    def test_after_drain_timeout_it_ends_whatever_is_left(self):
        with Running("--drain-timeout", "0.3") as d, SlowReader(d) as slow:
            slow.read_on()
            d.proc.send_signal(signal.SIGTERM)
            self.assertEqual(d.proc.wait(8), 0)

    def test_who_takes_nothing_is_not_waited_for(self):
        with Running("--drain-timeout", "600", "--staging-max", "1g") as d:
            body = b"\0" * (48 << 20)
            put = urllib.request.Request(d.fields["admin"] + f"/v1/keys/w?format=raw&dtype=uint8&shape={len(body)}", body,
                                         {"Content-Type": "application/octet-stream"}, method="PUT")
            self.assertEqual(urllib.request.urlopen(put, timeout=30).status, 201)
            with SlowReader(d), socket.create_connection(d.address("admin")) as web, \
                    socket.create_connection(d.address("admin")) as half:
                web.sendall(b"GET /v1/keys/w/value?format=raw HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(web.recv(15, socket.MSG_WAITALL), b"HTTP/1.1 200 OK")
                half.sendall(b"PUT /v1/keys/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
                soon(lambda: re.search(r"^paramd_http_body_bytes \d*[13579]$", d.get("probe", "/metrics")[2], re.M))
                d.proc.send_signal(signal.SIGTERM)
                self.assertEqual(d.proc.wait(100), 0)


class Pipe:
    """A FIFO that somebody holds open and nobody reads, full to the last byte or empty."""

    def __init__(self, full):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "pipe")
        os.mkfifo(self.path)
        self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.writer = os.open(self.path, os.O_WRONLY)
        self.filled = 0
        if full:
            side = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)  # a file of its own: the daemon's stays as it is
            for size in (4096, 1):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self.filled += os.write(side, b"x" * size)
            os.close(side)

    def read_until(self, word):
        os.set_blocking(self.reader, True)
        got = b""
        while word not in got:
            got += os.read(self.reader, 65536)
        return got[self.filled:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.reader)
        os.close(self.writer)
        self.folder.cleanup()


class Unread(unittest.TestCase):
    """A stderr, a stdout and a service manager that nobody reads keep no client waiting, nor the end."""

    def start(self, out, err, *flags, **env):
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as another:
            self.admin, self.probe = free.getsockname()[1], another.getsockname()[1]
        flags = ("--listen", "tcp://127.0.0.1:0", "--probe", f"127.0.0.1:{self.probe}", "--admin",
                 f"127.0.0.1:{self.admin}", *flags)
        proc = subprocess.Popen([PARAMD, *flags], stdout=out, stderr=err, env={**CLEAN, **env})
        self.addCleanup(lambda: proc.poll() is None and (proc.kill(), proc.wait()))
        soon(lambda: self.ask("/v1/info") == 200)
        return proc

    def ask(self, path, data=None, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}{path}", data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            return urllib.request.urlopen(request, timeout=20).status
        except urllib.error.HTTPError as answer:
            return answer.code
        except urllib.error.URLError as fault:
            if isinstance(fault.reason, ConnectionRefusedError):
                return None  # not listening yet
            raise

    def ends(self, proc):
        proc.send_signal(signal.SIGTERM)
        self.assertEqual(proc.wait(20), 0)

    def test_a_stderr_that_nobody_reads(self):
        with Pipe(full=False) as pipe:
            proc = self.start(subprocess.DEVNULL, pipe.writer, "--log", "info")
            self.assertEqual(self.ask("/v1/keys/w", b'{"data": [1]}', "PUT"), 201)
            for i in range(1500):  # a line of about 100 bytes each: more than the pipe takes
                self.assertEqual(self.ask("/v1/stores/default/reset", b"", "POST"), 200, i)
            before = os.get_blocking(pipe.writer)
            self.ends(proc)
            self.assertTrue(before)

    def test_a_stderr_that_is_full_from_the_start_and_is_read_later(self):
        with Pipe(full=True) as pipe:
            proc = self.start(subprocess.DEVNULL, pipe.writer, "--log", "debug")
            lost = 0
            while lost == 0:  # each request is a line or two
                for _ in range(200):
                    self.assertEqual(self.ask("/nothing"), 404)
                with urllib.request.urlopen(f"http://127.0.0.1:{self.probe}/metrics", timeout=20) as answer:
                    lost = int(re.search(rb"^paramd_log_lost_total (\d+)$", answer.read(), re.M).group(1))
            text = pipe.read_until(b"could not be written here").decode()
            self.assertRegex(text, r'level=warn component=log msg="\d+ lines of the log could not be written')
            self.ends(proc)

    def test_a_stdout_that_is_full(self):
        with Pipe(full=True) as pipe:
            proc = self.start(pipe.writer, subprocess.DEVNULL)
            self.ends(proc)
        with Pipe(full=True) as pipe:
            proc = self.start(pipe.writer, subprocess.DEVNULL)
            self.assertIn(b"paramd ready data=tcp://", pipe.read_until(b"device=cpu\n"))
            self.ends(proc)

    def test_a_start_that_fails_ends_when_nobody_reads_why(self):
        with Pipe(full=True) as pipe, socket.create_server(("127.0.0.1", 0)) as taken:
            done = subprocess.run([PARAMD, *ANY[2:], "--listen", f"tcp://127.0.0.1:{taken.getsockname()[1]}"],
                                  stderr=pipe.writer, timeout=20, env=CLEAN)
            self.assertEqual(done.returncode, 1)

    def test_a_service_manager_whose_queue_is_full_is_told_later(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            manager.bind(folder + "/notify")
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"x", folder + "/notify")
            proc = self.start(subprocess.DEVNULL, subprocess.DEVNULL, NOTIFY_SOCKET=folder + "/notify")
            manager.settimeout(30)
            while (said := manager.recv(100)) == b"x":
                pass
            self.assertEqual(said, b"READY=1")
            self.ends(proc)


class Tokens(unittest.TestCase):
    RIGHT = "s3cret-token-of-it"
    BAD_TOKEN = 34  # of the list of reasons

    def hello(self, peer, token):
        return peer.call("Hello", {"token": token})

    def test_a_token_that_can_be_guessed_or_has_several_lines_is_refused(self):
        for text, words in (("", "has 16 to 4096 characters"), ("fifteen-letters\n", "has 16 to 4096 characters"),
                            ("x" * 4097, "has 16 to 4096 characters"), ("a-token-for-one\nand-one-more\n", "several lines"),
                            ("sixteen-letters-\0x", "control characters")):
            with written(text) as token:
                for more in ((), ("--check-config",)):
                    done = run(*ANY, "--token-file", token, *more)
                    self.assertEqual(done.returncode, 2)
                    self.assertIn(words, done.stderr)
        for text in ("sixteen-letters-", "sixteen-letters-\r\n", "x" * 4096):
            with written(text) as token:
                self.assertEqual(run("--token-file", token, "--check-config").returncode, 0)

    def test_a_token_file_that_everybody_can_read_is_a_warning(self):
        with written(self.RIGHT) as token:
            for mode, warned in ((0o600, False), (0o640, False), (0o644, True)):
                os.chmod(token, mode)
                done = run("--token-file", token, "--check-config")
                self.assertEqual(done.returncode, 0)
                self.assertEqual("can be read by everybody" in done.stderr, warned)

    def test_paramd_token_protects_nothing_and_is_told(self):
        said = run("--check-config", PARAMD_TOKEN=self.RIGHT).stderr
        self.assertIn("name it by PARAMD_TOKEN_FILE", said)
        self.assertNotIn(self.RIGHT, said)
        with written(self.RIGHT) as token:
            self.assertEqual(run("--check-config", "--token-file", token, PARAMD_TOKEN=self.RIGHT).stderr, "")

    def test_a_token_in_a_url_is_not_logged(self):
        with written(self.RIGHT) as token, Running("--token-file", token, "--log", "debug") as d:
            self.assertEqual(d.get("admin", f"/v1/info?token={self.RIGHT}")[0], 401)
            self.assertEqual(d.get("admin", f"/v1/info?{self.RIGHT}", Authorization=f"Bearer {self.RIGHT}")[0], 400)
            soon(lambda: d.log().count("GET /v1/info ") == 2)
            self.assertNotIn(self.RIGHT, d.log())

    def test_wrong_tokens_at_the_data_doors_are_one_line_of_the_log_and_a_number(self):
        with written(self.RIGHT) as token, Running("--token-file", token) as d:
            for _ in range(80):
                with wire.Peer(d.fields["bulk"]) as p:
                    self.assertEqual(self.hello(p, "wrong-token-of-it").reason, self.BAD_TOKEN)
            d.proc.send_signal(signal.SIGTERM)
            self.assertEqual(d.proc.wait(20), 0)
            lines = [line for line in d.log().splitlines() if "token" in line]
            self.assertEqual([re.sub("ts=\\S+ ", "", line) for line in lines if "repeated" not in line],
                             ['level=warn component=server msg="tcp://127.0.0.1 said HELLO with a wrong token; '
                              '--token-file holds the right one"'])
            self.assertEqual(sum(int(n) for n in re.findall(r"repeated=(\d+)", "\n".join(lines))), 79)

    def test_a_connection_ends_with_the_tenth_wrong_token(self):
        with written(self.RIGHT) as token, Running("--token-file", token) as d:
            with wire.Peer(d.fields["bulk"]) as p:
                for _ in range(9):
                    self.assertEqual(self.hello(p, "wrong-token-of-it").reason, self.BAD_TOKEN)
                self.assertEqual(self.hello(p, self.RIGHT).status, 0)
                self.assertEqual(self.hello(p, "wrong-token-of-it").reason, self.BAD_TOKEN)
                with self.assertRaises(wire.Closed):
                    p.receive()
            with wire.Peer(d.fields["bulk"]) as p:  # all at once: the eleventh is not even compared
                hello = lambda token: p.message(wire.frame("Hello", body=json.dumps({"token": token}).encode(), worker=p.worker))
                p.raw(b"".join(hello("wrong-token-of-it") for _ in range(10)) + hello(self.RIGHT))
                with self.assertRaises(wire.Closed):
                    while True:
                        self.assertEqual(p.receive().reason, self.BAD_TOKEN)
            text = d.get("probe", "/metrics")[2]
            self.assertRegex(text, r'paramd_refused_total{reason="invalid-token"} 2[01]\n')
            self.assertIn('paramd_connections_refused_total{reason="invalid-token"} 2\n', text)


class Scarcity(unittest.TestCase):
    def test_without_descriptors_it_lives_counts_and_serves_again(self):
        with Running(limits=[(resource.RLIMIT_NOFILE, 64)]) as d:
            with contextlib.ExitStack() as all_of_them:
                for _ in range(40):
                    for door in ("data", "bulk"):
                        s = all_of_them.enter_context(socket.socket())
                        s.settimeout(2)
                        s.connect(d.address(door))
                soon(lambda: "connections were refused" in d.log())
                self.assertIsNone(d.proc.poll())
            soon(lambda: self.serves(d))

    def serves(self, d):
        with contextlib.suppress(OSError):
            with socket.create_connection(d.address("bulk"), 2) as s:
                s.settimeout(2)
                s.sendall(b"\0SP\0\0\x30\0\0" + health_request(1))
                return b"serving" in s.recv(8 + 12 + 80 + 200, socket.MSG_WAITALL) or d.get("admin", "/v1/info")[0] == 200
        return False

    def test_an_address_with_too_many_connections_is_one_line_that_tells_the_cap_and_the_setting(self):
        with Running("--address-connections", "3") as d, contextlib.ExitStack() as held:
            for _ in range(3):
                held.enter_context(wire.Peer(d.fields["bulk"]))
            for _ in range(40):
                with self.assertRaises(wire.Closed):
                    wire.Peer(d.fields["bulk"])
            text = d.get("probe", "/metrics")[2]
            self.assertIn('paramd_connections_refused_total{reason="limit-reached"} 40\n', text)
            soon(lambda: "--address-connections" in d.log())
            d.proc.send_signal(signal.SIGTERM)
            self.assertEqual(d.proc.wait(20), 0)
            lines = [line for line in d.log().splitlines() if "--address-connections" in line and "repeated" not in line]
            self.assertEqual([line.split("msg=")[1] for line in lines],
                             [f'"{d.fields["bulk"]}: tcp://127.0.0.1 is refused: it has 3 connections, the most for one '
                              'address; start the daemon with a larger --address-connections than 3"'])

    def test_warnings_that_repeat_are_folded(self):
        with Running() as d:
            for _ in range(200):
                with socket.create_connection(d.address("bulk"), 2) as s:
                    s.sendall(b"GET / HTTP/1.1\r\n\r\n")
            soon(lambda: "were refused so far" in d.log())
            self.assertLess(len(d.log().splitlines()), 20)

    def test_requests_are_logged_at_debug_only_and_without_the_token(self):
        with written("s3cret-token-of-it\n") as token:
            for level, told in (("info", False), ("debug", True)):
                with Running("--log", level, "--token-file", token) as d:
                    with socket.create_connection(d.address("bulk"), 2) as s:
                        s.sendall(b"\0SP\0\0\x30\0\0" + health_request(1))
                        s.settimeout(5)
                        s.recv(8 + 20, socket.MSG_WAITALL)
                    d.get("admin", "/v1/info", Authorization="Bearer s3cret-token-of-it")
                    d.proc.send_signal(signal.SIGTERM)
                    self.assertEqual(d.proc.wait(8), 0)
                    self.assertEqual("Health" in d.log(), told)
                    self.assertNotIn("s3cret", d.log())


class Life(unittest.TestCase):
    def test_the_ready_line_has_each_address_with_its_real_port(self):
        with Running() as d:
            self.assertRegex(d.line, r"^paramd ready data=tcp://127\.0\.0\.1:\d+ bulk=tcp://127\.0\.0\.1:\d+ "
                                     r"admin=http://127\.0\.0\.1:\d+ probe=http://127\.0\.0\.1:\d+ device=cpu\n$")
            for field in ("data", "bulk", "admin", "probe"):
                port = int(re.search(r":(\d+)$", d.fields[field]).group(1))
                self.assertGreater(port, 0)
                socket.create_connection(("127.0.0.1", port), 2).close()

    def test_bulk_off_and_two_front_doors(self):
        with tempfile.TemporaryDirectory() as folder:
            with Running("--bulk", "off", "--listen", f"ipc://{folder}/front") as d:
                self.assertEqual(d.fields["bulk"], "off")
                self.assertEqual(len(d.fields["data"].split(",")), 2)

    def test_it_runs_and_stops_without_its_web_doors(self):
        with Running("--admin", "off", "--probe", "off") as d:
            self.assertEqual((d.fields["admin"], d.fields["probe"]), ("off", "off"))
            d.reload()
            d.proc.send_signal(signal.SIGTERM)
            self.assertEqual(d.proc.wait(8), 0)

    def beside(self, *others):
        """The port of a front door, and the bulk door's beside it. `others`: flags with {next} for the port after it."""
        for _ in range(20):  # until two free ports lie side by side
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            flags = [word.format(next=port + 1) for word in ("--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0", *others)]
            proc = subprocess.Popen([PARAMD, "--listen", f"tcp://127.0.0.1:{port}", *flags], stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, text=True, env=CLEAN)
            line = proc.stdout.readline()
            proc.terminate()
            proc.communicate(timeout=10)
            if line:
                break
        self.assertIn(f"data=tcp://127.0.0.1:{port}", line)
        return port, int(re.search(r" bulk=tcp://127\.0\.0\.1:(\d+) ", line).group(1))

    def test_a_name_is_reached_at_all_of_its_addresses_at_every_door(self):
        with written("127.0.0.1 two.test\n127.0.0.2 two.test\n") as hosts:
            under = ["unshare", "-rm", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"']
            if subprocess.run([*under, "true"], capture_output=True).returncode != 0:
                self.skipTest("a hosts file of its own takes leave to mount (unshare -rm)")
            doors = ["--listen", "tcp://two.test:0", "--admin", "two.test:0", "--probe", "two.test:0"]
            with Running("--insecure", under=under, at=doors) as d:
                for door in ("data", "bulk", "admin", "probe"):
                    for address in ("127.0.0.1", "127.0.0.2"):
                        with self.subTest(door=door, address=address):
                            socket.create_connection((address, d.address(door)[1]), 60).close()
                for address in ("127.0.0.1", "127.0.0.2"):
                    port = d.address("probe")[1]
                    with urllib.request.urlopen(f"http://{address}:{port}/livez", timeout=60) as answer:
                        self.assertEqual(answer.status, 200)
                d.proc.terminate()
                self.assertEqual(d.proc.wait(60), 0)

    def test_a_daemon_on_a_unix_socket_listens_on_no_port_that_was_not_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            proc = subprocess.Popen([PARAMD, "--listen", f"ipc://{folder}/door", "--admin", "off", "--probe", "off"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=CLEAN)
            try:
                line = proc.stdout.readline()
                self.assertIn(" bulk=off ", line)
                create = ["call", "Create", '{"store": "default", "type": "dist_async"}']
                for words in (create, ["put", "w", "[1, 2]"], ["get", "w"]):     # a client needs no bulk door
                    done = subprocess.run([PARAMCTL, "--url", f"ipc://{folder}/door", *words], capture_output=True, text=True,
                                          timeout=60, env=CLEAN)
                    self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("2", done.stdout)
                mine = {os.readlink(f"/proc/{proc.pid}/fd/{n}") for n in os.listdir(f"/proc/{proc.pid}/fd")}
                for table in ("tcp", "tcp6"):
                    with open(f"/proc/net/{table}", encoding="ascii") as rows:
                        self.assertFalse([row for row in rows.readlines()[1:] if f"socket:[{row.split()[9]}]" in mine])
            finally:
                proc.terminate()
                proc.communicate(timeout=60)
            self.assertEqual(proc.returncode, 0)

    def test_the_bulk_door_stands_at_the_port_after_the_front_door(self):
        port, bulk = self.beside()
        self.assertEqual(bulk, port + 1)

    def test_where_the_next_port_is_given_to_another_door_the_bulk_door_takes_a_free_one(self):
        for flag, prefix in (("--listen", "tcp://"), ("--admin", ""), ("--probe", "")):
            with self.subTest(flag):
                port, bulk = self.beside(flag, prefix + "127.0.0.1:{next}")
                self.assertNotIn(bulk, (port, port + 1))

    def test_sigterm_and_sigint_end_it_with_0_and_at_once_when_idle(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Running() as d:
                d.proc.send_signal(number)
                self.assertEqual(d.proc.wait(8), 0)  # it would drain for 5 s if something were under way

    def test_garbage_on_every_port_does_not_end_it(self):
        with Running() as d:
            for field in ("data", "bulk", "admin", "probe"):
                host, port = d.fields[field].split("://")[1].rsplit(":", 1)
                for junk in (b"\0" * 64, b"GET / HTTP/1.0\r\n\r\n" * 50, os.urandom(4096),
                             b"\0SP\0\0\x30\0\0" + b"\xff" * 64, b"\0SP\0\0\x30\0\0" + b"\0\0\0\0\0\0\0\x08\x80\0\0\1abcd"):
                    with socket.create_connection((host, int(port)), 2) as s:
                        s.sendall(junk)
            self.assertEqual(d.get("probe", "/livez")[0], 200)
            self.assertIsNone(d.proc.poll())


class Http(unittest.TestCase):
    def test_info_livez_readyz(self):
        with Running() as d:
            status, headers, body = d.get("admin", "/v1/info")
            self.assertEqual(status, 200)
            self.assertEqual(headers["Content-Type"], "application/json")
            info = json.loads(body)
            self.assertEqual(info["device"], "cpu")
            self.assertEqual(info["bulk"]["port"], int(d.fields["bulk"].rsplit(":", 1)[1]))
            self.assertEqual(d.get("probe", "/livez")[0], 200)
            self.assertEqual(d.get("probe", "/readyz")[0], 200)

    def test_what_is_not_there_is_a_problem_document_that_says_what_is(self):
        with Running() as d:
            status, headers, body = d.get("admin", "/nothing")
            self.assertEqual(status, 404)
            self.assertEqual(headers["Content-Type"], "application/problem+json")
            self.assertIn("/v1/info", json.loads(body)["detail"])
            status, headers, body = d.get("admin", "/v1/info", method="POST")
            self.assertEqual(status, 405)
            self.assertEqual(headers["Allow"], "GET, HEAD")

    def test_the_token_is_asked_for_on_the_admin_port_and_not_on_the_probe_port(self):
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
            file.write("s3cret-token-of-it\n")
            file.flush()
            with Running("--token-file", file.name) as d:
                self.assertEqual(d.get("admin", "/v1/info")[0], 401)
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer s3cret-token-of-iT")[0], 401)
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer s3cret-token-of-it")[0], 200)
                self.assertEqual(d.get("probe", "/livez")[0], 200)


if __name__ == "__main__":
    counted.main()
