"""The daemon as a person meets it: its flags, its ready line, its HTTP doors, its end. Ends with "N passed, N failed"."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PARAMD = os.environ.get("PARAMD_BIN", os.path.join(ROOT, "build", "paramd"))
ANY = ["--listen", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0"]


def run(*flags):
    return subprocess.run([PARAMD, *flags], capture_output=True, text=True, timeout=20)


class Running:
    """A daemon on free ports, with the fields of its ready line."""

    def __init__(self, *flags):
        self.proc = subprocess.Popen([PARAMD, *ANY, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.proc.stdout.readline()
        if not line.startswith("paramd ready "):
            raise AssertionError(f"no ready line: {line!r} {self.proc.stderr.read()}")
        self.line = line
        self.fields = dict(word.split("=", 1) for word in line.split()[2:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.communicate(timeout=10)

    def get(self, door, path, method="GET", **headers):
        request = urllib.request.Request(self.fields[door] + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, dict(answer.headers), answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, dict(answer.headers), answer.read().decode()


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
        for flags, words in ((("--staging-max", "12q"), "--staging-max"), (("--log", "loud"), "error warn info debug"),
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
            for flags in (["--listen", f"tcp://127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0"],
                          [*ANY, "--bulk", f"tcp://127.0.0.1:{port}"], [*ANY[:2], "--admin", f"127.0.0.1:{port}"]):
                done = run(*flags)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(str(port), done.stderr)


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

    def test_sigterm_and_sigint_end_it_with_0_and_at_once_when_idle(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Running() as d:
                d.proc.send_signal(number)
                self.assertEqual(d.proc.wait(8), 0)  # it would drain for 10 s if something were under way

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
            file.write("s3cret\n")
            file.flush()
            with Running("--token-file", file.name) as d:
                self.assertEqual(d.get("admin", "/v1/info")[0], 401)
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer s3creT")[0], 401)
                self.assertEqual(d.get("admin", "/v1/info", Authorization="Bearer s3cret")[0], 200)
                self.assertEqual(d.get("probe", "/livez")[0], 200)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad > 0)
