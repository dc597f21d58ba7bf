"""REST, /metrics and the page from outside, by raw sockets and urllib: every route with good and bad requests, each row
of what libmicrohttpd lets through, slow clients, few descriptors. Ends with "N passed, N failed"."""
import base64
import concurrent.futures
import contextlib
import http.client
import io
import json
import os
import re
import resource
import shutil
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
import urllib.parse
import urllib.request

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PARAMD = os.environ.get("PARAMD_BIN", os.path.join(ROOT, "build", "paramd"))
ANY = ["--listen", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0"]
MANUAL = os.path.join(ROOT, "web", "rest.md")

sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import paramd  # noqa: E402


class Running:
    """A daemon on free ports, with the fields of its ready line."""

    def __init__(self, *flags, files=None):
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        self.errors = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([PARAMD, *ANY, *flags], stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                     preexec_fn=limit)
        line = self.proc.stdout.readline()
        if not line.startswith("paramd ready "):
            self.errors.seek(0)
            raise AssertionError(f"no ready line: {line!r} {self.errors.read()}")
        self.fields = dict(word.split("=", 1) for word in line.split()[2:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends it as an operator would; what a sanitizer has to say counts."""
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            status = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            status = "did not end"
        self.proc.stdout.close()
        self.errors.seek(0)
        said = self.errors.read()
        self.errors.close()
        if status != 0:
            raise AssertionError(f"the daemon ended with {status}: {said[-3000:]}")

    def port(self, door="admin"):
        return int(self.fields[door].rsplit(":", 1)[1])

    def ask(self, method, path, body=None, door="admin", **headers):
        """(status, headers, body); JSON is decoded. body: bytes, or anything else as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content_Type", "application/json")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        c = http.client.HTTPConnection("127.0.0.1", self.port(door), timeout=10)
        try:
            c.request(method, path, body, named)
            answer = c.getresponse()
            data = answer.read()
        finally:
            c.close()
        kind = answer.headers.get("Content-Type", "")
        if "json" in kind and method != "HEAD":
            data = json.loads(data)
        return answer.status, answer.headers, data

    def raw(self, text, door="admin", wait=5.0):
        """All that comes back until the daemon closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port(door)), 5) as s:
            s.sendall(text if isinstance(text, bytes) else text.encode())
            return read_all(s, wait)


def read_all(s, wait):
    """(bytes, closed) of a socket: until the other side ends, or for `wait` seconds."""
    got = b""
    until = time.monotonic() + wait
    while time.monotonic() < until:
        s.settimeout(max(0.01, until - time.monotonic()))
        try:
            part = s.recv(65536)
        except socket.timeout:
            break
        except ConnectionResetError:
            return got, True
        if not part:
            return got, True
        got += part
    return got, False


def statuses(data):
    return [int(n) for n in re.findall(rb"HTTP/1\.[01] (\d{3})", data)]


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def request(method, path, *headers, body=b"", host="127.0.0.1", version="HTTP/1.1"):
    return b"".join([f"{method} {path} {version}\r\n".encode(), f"Host: {host}\r\n".encode() if host else b"",
                     *[h.encode() + b"\r\n" for h in headers], b"\r\n", body])


class Case(unittest.TestCase):
    """One daemon for a class."""

    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.d = Running(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def refused(self, answer, status, code, *words):
        self.assertEqual((answer[0], answer[2].get("code") if isinstance(answer[2], dict) else None), (status, code), answer[2])
        self.assertEqual(answer[1]["Content-Type"], "application/problem+json")
        self.assertEqual(answer[2]["status"], status)
        self.assertEqual(answer[2]["type"], "/problems/" + code)
        for word in words:
            self.assertIn(word, answer[2]["detail"])

    def made(self, path, value, **how):
        status, headers, row = self.d.ask("PUT", path, value, **how)
        self.assertEqual(status, 201, row)
        return headers, row


class Stores(Case):
    def test_they_are_listed_by_name_default_first_until_it_is_set(self):
        names = ["b", "zz", "a", "ab", "d", "e", "B"]
        with Running() as d:
            for name in names:
                d.ask("POST", "/v1/stores", {"store": name, "type": "dist_async"})
            listed = lambda: [s["store"] for s in d.ask("GET", "/v1/stores")[2]["items"]]
            self.assertEqual(listed(), ["default", *sorted(names)])
            d.ask("POST", "/v1/stores", {"store": "default", "type": "dist_async"})
            self.assertEqual(listed(), sorted([*names, "default"]))

    def test_default_is_listed_before_it_is_set_and_set_by_its_create(self):
        with Running() as d:
            status, _, all_ = d.ask("GET", "/v1/stores")
            self.assertEqual((status, all_["total"], all_["next_cursor"]), (200, 1, None))
            self.assertEqual((all_["items"][0]["store"], all_["items"][0]["type"]), ("default", None))
            self.assertEqual(d.ask("GET", "/v1/stores/default")[2]["type"], None)
            self.assertEqual(d.ask("GET", "/v1/keys")[2], {"items": [], "next_cursor": None, "total": 0})
            self.refused(d.ask("GET", "/v1/keys/w"), 404, "no-such-key")
            self.assertEqual(d.ask("POST", "/v1/stores/default/reset")[2], {"deleted": 0})
            for list_ in ("workers", "rounds"):
                self.assertEqual(d.ask("GET", f"/v1/stores/default/{list_}")[2]["total"], 0)
            self.refused(d.ask("GET", "/v1/stores/default/updater"), 404, "no-such-store")
            self.refused(d.ask("DELETE", "/v1/stores/default"), 404, "no-such-store")
            status, headers, made = d.ask("POST", "/v1/stores", {"store": "default", "type": "dist_sync", "num_workers": 2})
            self.assertEqual((status, made["type"], headers["Location"]), (201, "dist_sync", "/v1/stores/default"))

    def test_a_first_init_makes_default_async_with_string_keys(self):
        with Running() as d:
            self.assertEqual(d.ask("PUT", "/v1/keys/3", {"data": [1]})[0], 201)
            store = d.ask("GET", "/v1/stores/default")[2]
            self.assertEqual((store["type"], store["key_type"], store["keys"], store["bytes"]), ("dist_async", "str", 1, 4))

    def test_create_get_list_reset_delete(self):
        status, headers, made = self.d.ask("POST", "/v1/stores", {"store": "a b/ä", "type": "dist_async", "versions_max": 3})
        self.assertEqual((status, made["created"], made["versions_max"]), (201, True, 3))
        at = headers["Location"]
        self.assertEqual(at, "/v1/stores/a%20b%2F%C3%A4")
        self.assertEqual(self.d.ask("GET", at)[2]["store"], "a b/ä")
        self.assertIn("a b/ä", [s["store"] for s in self.d.ask("GET", "/v1/stores")[2]["items"]])
        again = self.d.ask("POST", "/v1/stores", {"store": "a b/ä", "type": "dist_async"})
        self.assertEqual((again[0], again[2]["created"]), (200, False))
        self.refused(self.d.ask("POST", "/v1/stores", {"store": "a b/ä", "type": "dist_async", "versions_max": 4}), 409,
                     "store-differs", "versions_max")
        self.made(at + "/keys/7", {"data": [1, 2]}, )
        self.assertEqual(self.d.ask("POST", at + "/reset")[2], {"deleted": 1})
        self.assertEqual(self.d.ask("GET", at)[2]["key_type"], None)
        self.made(at + "/keys/7?type=int", {"data": [1, 2]})
        self.assertEqual(self.d.ask("DELETE", at)[0], 204)
        self.refused(self.d.ask("GET", at), 404, "no-such-store", "a b/ä")
        self.refused(self.d.ask("DELETE", at), 404, "no-such-store")

    def test_bad_documents_are_told_with_their_place(self):
        for body, status, code, word in (
                (b"{", 400, "malformed-json", "line 1"), (b"[]", 400, "malformed-json", "object"),
                (b'{"store": "x", "store": "y", "type": "local"}', 400, "malformed-json", "duplicate"),
                (b'{"store": "x", "type": "local", "num_worker": 1}', 400, "unknown-parameter", "did you mean"),
                (b'{"type": "local"}', 400, "invalid-argument", "/store"),
                (b'{"store": "x", "type": "dist_sync"}', 400, "invalid-argument", "num_workers"),
                (b'{"store": "x", "type": "dist_lazy"}', 400, "invalid-argument", "lazy"),
                (b'{"store": "", "type": "local"}', 400, "invalid-argument", "name"),
                (b'{"store": ' + b"[" * 40 + b"]" * 40 + b"}", 400, "malformed-json", "deep"),
                (b'"\xff"', 400, "malformed-json", "0xff"), (b"", 400, "malformed-json", "line 1")):
            self.refused(self.d.ask("POST", "/v1/stores", body, Content_Type="application/json"), status, code, word)
        # jansson quotes what follows a backslash, whether it is a character or not
        broken = b'{"n": "\\\xde'
        for method, path in (("POST", "/v1/stores"), ("PUT", "/v1/keys/k"), ("PUT", "/v1/stores/default/updater"),
                             ("PUT", "/v1/networks/n")):
            answer = self.d.ask(method, path, broken, Content_Type="application/json", If_Match="*")
            self.refused(answer, 400, "malformed-json", "line 1")
        self.refused(self.d.ask("POST", "/v1/stores", b"a=b", Content_Type="application/x-www-form-urlencoded"), 415,
                     "unsupported-media-type", "application/json")


class Keys(Case):
    def test_a_value_goes_in_and_comes_out_in_each_form(self):
        value = np.array([[1.5, -2, 0.1], [3e-9, 4e30, 5]], "float32")
        self.made("/v1/keys/json", {"data": value.astype(float).tolist()})
        self.made("/v1/keys/npy", npy(value), Content_Type="application/x-npy")
        self.made("/v1/keys/raw?dtype=float32&shape=2,3", value.tobytes(), Content_Type="application/octet-stream")
        for key in ("json", "npy", "raw"):
            status, headers, said = self.d.ask("GET", f"/v1/keys/{key}/value")
            self.assertEqual((status, said["key"], said["shape"], said["dtype"], said["version"]), (200, key, [2, 3], "float32", 1))
            np.testing.assert_array_equal(np.array(said["data"], "float32"), value)
            _, headers, data = self.d.ask("GET", f"/v1/keys/{key}/value?format=npy")
            self.assertEqual(headers["Content-Type"], "application/x-npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(data)), value)
            _, headers, data = self.d.ask("GET", f"/v1/keys/{key}/value", Accept="application/octet-stream")
            self.assertEqual((headers["Paramd-Dtype"], headers["Paramd-Shape"], headers["Paramd-Version"]), ("float32", "2, 3", "1"))
            self.assertEqual(data, value.tobytes())

    def test_every_dtype_reads_back_as_the_same_bits(self):
        for dtype, values in (("float32", [0.1, -0.0, 1e-45, 3.4028235e38, 16777217.0, 1 / 3]),
                              ("float64", [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]),
                              ("int8", [-128, 127, 0]), ("uint8", [0, 255]), ("int32", [-2**31, 2**31 - 1]),
                              ("int64", [-2**63, 2**63 - 1, 2**53 + 1])):
            value = np.array(values, dtype)
            self.made(f"/v1/keys/bits-{dtype}", npy(value), Content_Type="application/x-npy")
            said = self.d.ask("GET", f"/v1/keys/bits-{dtype}/value")[2]
            if dtype == "int64":
                self.assertTrue(all(isinstance(v, str) for v in said["data"]))
            back = np.array([int(v) if "int" in dtype else v for v in said["data"]], dtype)
            self.assertEqual(back.tobytes(), value.tobytes(), dtype)
            self.made(f"/v1/keys/back-{dtype}", {"dtype": dtype, "data": said["data"]})
            self.assertEqual(self.d.ask("GET", f"/v1/keys/back-{dtype}/value?format=raw")[2], value.tobytes())

    def test_numbers_that_json_has_not_are_texts(self):
        value = np.array([np.nan, np.inf, -np.inf, 1], "float32")
        self.made("/v1/keys/nonfinite", npy(value), Content_Type="application/x-npy")
        said = self.d.ask("GET", "/v1/keys/nonfinite/value")[2]
        self.assertEqual(said["data"], ["NaN", "Infinity", "-Infinity", 1.0])
        self.made("/v1/keys/nonfinite2", {"data": said["data"]})
        np.testing.assert_array_equal(np.load(io.BytesIO(self.d.ask("GET", "/v1/keys/nonfinite2/value?format=npy")[2])), value)

    def test_finite_numbers_never_become_infinite(self):
        for dtype, most, beyond in (("float16", 65519, 65520), ("bfloat16", 3.3895e38, 3.4e38), ("float32", 3.4028235e38, 1e39)):
            _, row = self.made(f"/v1/keys/most-{dtype}", {"dtype": dtype, "data": [[most, -most], ["Infinity", 0]]})
            self.assertTrue(np.isfinite(self.d.ask("GET", f"/v1/keys/most-{dtype}/value")[2]["data"][0]).all())
            for number in (beyond, -beyond):
                status, _, said = self.d.ask("PUT", f"/v1/keys/beyond-{dtype}", {"dtype": dtype, "data": [[1, 2], [3, number]]},
                                             If_None_Match="*")
                self.assertEqual(status, 400, said)
                self.assertIn(f"/data: element 3, {number:g}, is too large for {dtype}; write \"Infinity\"", said["detail"])

    def test_shapes_scalars_and_empty_values(self):
        for name, shape in (("scalar", ()), ("one", (1,)), ("empty", (0,)), ("hollow", (2, 0, 3)), ("deep", (1,) * 8)):
            value = np.ones(shape, "float64")
            _, row = self.made(f"/v1/keys/shape-{name}", npy(value), Content_Type="application/x-npy")
            self.assertEqual((row["shape"], row["bytes"]), (list(shape), value.nbytes))
            self.assertEqual(self.d.ask("GET", f"/v1/keys/shape-{name}/value")[2]["data"], value.tolist())
            back = np.load(io.BytesIO(self.d.ask("GET", f"/v1/keys/shape-{name}/value?format=npy")[2]))
            self.assertEqual((back.shape, back.dtype), (value.shape, value.dtype))
        self.made("/v1/keys/shape-flat", {"shape": [2, 2], "data": [1, 2, 3, 4]})
        self.assertEqual(self.d.ask("GET", "/v1/keys/shape-flat/value")[2]["data"], [[1, 2], [3, 4]])

    def test_a_value_of_many_parts_and_the_limit_of_json(self):
        value = np.arange(700000, dtype="float32")
        self.made("/v1/keys/large", npy(value), Content_Type="application/x-npy")
        self.assertEqual(self.d.ask("GET", "/v1/keys/large/value?format=raw")[2], value.tobytes())
        refused = self.d.ask("GET", "/v1/keys/large/value")
        self.refused(refused, 413, "value-too-large-for-json", "npy", "raw")
        self.assertEqual(self.d.ask("GET", refused[2]["raw"])[2], value.tobytes())
        self.assertEqual(self.d.ask("GET", refused[2]["npy"])[0], 200)
        self.made("/v1/keys/edge", npy(np.zeros(10000, "uint8")), Content_Type="application/x-npy")
        self.assertEqual(len(self.d.ask("GET", "/v1/keys/edge/value")[2]["data"]), 10000)
        self.refused(self.d.ask("PUT", "/v1/keys/long", b'{"data": [' + b"1," * 400000 + b"1]}", Content_Type="application/json"),
                     413, "value-too-large-for-json", "npy")

    def test_put_never_replaces(self):
        self.made("/v1/keys/once", {"data": [1]}, If_None_Match="*")
        answer = self.d.ask("PUT", "/v1/keys/once", {"data": [2]})
        self.refused(answer, 409, "key-exists")
        self.assertEqual(answer[2]["status_name"], "ALREADY_EXISTS")
        answer = self.d.ask("PUT", "/v1/keys/once", {"data": [2]}, If_None_Match="*")
        self.refused(answer, 412, "key-exists")
        self.assertEqual(answer[2]["status_name"], "ALREADY_EXISTS")
        self.refused(self.d.ask("PUT", "/v1/keys/once", {"data": [2]}, If_None_Match='"1.1"'), 400, "invalid-argument", "*")
        self.assertEqual(self.d.ask("GET", "/v1/keys/once/value")[2]["data"], [1])

    def test_bad_values_are_told(self):
        good = np.ones((2, 2), "float32")
        fortran, big = npy(np.asfortranarray(good)), npy(good.astype(">f4"))
        for body, kind, code, word in (
                ({"data": [[1, 2], [3]]}, None, "shape-mismatch", "depth 1"),
                ({"data": [1, "x"]}, None, "invalid-argument", "element 1"),
                ({"dtype": "float33", "data": [1]}, None, "invalid-argument", "/dtype"),
                ({"dtype": "int8", "data": [200]}, None, "invalid-argument", "element 0"),
                ({"dtype": "int32", "data": [1.5]}, None, "invalid-argument", "element 0"),
                ({"shape": [3], "data": [1]}, None, "shape-mismatch", "3"),
                ({"shape": [-1], "data": []}, None, "too-large", "negative"),
                ({"shape": [2**40, 2**40], "data": []}, None, "too-large", "shape"),
                ({"values": [1]}, None, "unknown-parameter", "/values"), ({}, None, "invalid-argument", "/data"),
                ({"data": [[[[[[[[[1]]]]]]]]]}, None, "invalid-argument", "8"),
                (b"[1, 2]", "application/json", "invalid-argument", "data"), (b"{", "application/json", "malformed-json", "line"),
                (b"{" + b'"a":[' * 40, "application/json", "malformed-json", "deep"),
                (fortran, "application/x-npy", "invalid-argument", "ascontiguousarray"),
                (big, "application/x-npy", "invalid-argument", "astype"),
                (npy(good)[:-1], "application/x-npy", "shape-mismatch", "15"), (npy(good)[:40], "application/x-npy", "invalid-argument", "header"),
                (b"\x93NUMPY", "application/x-npy", "invalid-argument", "npy"),
                (npy(np.array(["a"])), "application/x-npy", "invalid-argument", "type"),
                (b"1234", "application/octet-stream", "invalid-argument", "dtype="),
                (b"1234", "text/plain", "unsupported-media-type", "application/x-npy"), (b"1234", None, "unsupported-media-type", "Content-Type")):
            headers = {"Content_Type": kind} if kind else {}
            answer = self.d.ask("PUT", "/v1/keys/bad", body, **headers)
            self.assertEqual(answer[2]["code"], code, (body, answer[2]))
            self.assertIn(word, answer[2]["detail"])
        self.refused(self.d.ask("PUT", "/v1/keys/bad?dtype=float32&shape=3", b"1234", Content_Type="application/octet-stream"),
                     422, "shape-mismatch", "12")
        self.refused(self.d.ask("PUT", "/v1/keys/bad?shape=1", {"data": [1]}), 400, "invalid-argument", "raw")
        self.refused(self.d.ask("GET", "/v1/keys/bad"), 404, "no-such-key")

    def test_the_form_may_be_said_in_the_query_or_left_to_the_file(self):
        value = np.arange(3, dtype="int32")
        self.made("/v1/keys/form-q?format=npy", npy(value), Content_Type="application/x-www-form-urlencoded")
        c = http.client.HTTPConnection("127.0.0.1", self.d.port(), timeout=5)
        c.putrequest("PUT", "/v1/keys/form-none")
        c.putheader("Content-Length", str(len(npy(value))))
        c.endheaders(npy(value))
        self.assertEqual(c.getresponse().status, 201)
        c.close()

    def test_what_is_accepted_decides_the_form(self):
        self.made("/v1/keys/accept", {"data": [1]})
        for accept, kind in ((None, "application/json"), ("*/*", "application/json"), ("text/html, */*;q=0.1", "application/json"),
                             ("application/json;q=0.2, application/x-npy", "application/x-npy"),
                             ("application/octet-stream;q=0.9, application/x-npy;q=0.1", "application/octet-stream")):
            headers = {"Accept": accept} if accept else {}
            self.assertEqual(self.d.ask("GET", "/v1/keys/accept/value", **headers)[1]["Content-Type"], kind, accept)
        self.refused(self.d.ask("GET", "/v1/keys/accept/value", Accept="image/png"), 406, "not-acceptable", "application/x-npy")
        self.refused(self.d.ask("GET", "/v1/keys/accept/value", Accept="application/json;q=0"), 406, "not-acceptable")
        self.refused(self.d.ask("GET", "/v1/keys/accept/value?format=xml"), 400, "invalid-argument", "npy")

    def test_tags_follow_the_version_and_the_creation(self):
        headers, row = self.made("/v1/keys/tagged", {"data": [1]})
        tag = headers["ETag"]
        self.assertEqual(tag, f'"{row["version"]}.{row["id"]}"')
        for path in ("/v1/keys/tagged", "/v1/keys/tagged/value"):
            self.assertEqual(self.d.ask("GET", path)[1]["ETag"], tag)
            for match in (tag, "*", f'"x", {tag}'):
                status, _, body = self.d.ask("GET", path, If_None_Match=match)
                self.assertEqual((status, body), (304, b""), match)
            for match in ('"9.9"', "W/" + tag, "nonsense"):
                self.assertEqual(self.d.ask("GET", path, If_None_Match=match)[0], 200, match)
        answer = self.d.ask("DELETE", "/v1/keys/tagged", If_Match='"7.7"')
        self.refused(answer, 412, "etag-mismatch")
        self.assertEqual((answer[2]["current_etag"], answer[2]["current"]["key"]), (tag, "tagged"))
        self.assertEqual(self.d.ask("DELETE", "/v1/keys/tagged", If_Match=tag)[0], 204)
        self.assertNotEqual(self.made("/v1/keys/tagged", {"data": [1]})[0]["ETag"], tag)
        self.refused(self.d.ask("DELETE", "/v1/keys/tagged", If_Match=tag), 412, "etag-mismatch")
        self.assertEqual(self.d.ask("DELETE", "/v1/keys/tagged", If_Match="*")[0], 204)
        self.refused(self.d.ask("DELETE", "/v1/keys/tagged"), 404, "no-such-key")
        self.made("/v1/keys/tagged", {"data": [1]})
        self.assertEqual(self.d.ask("DELETE", "/v1/keys/tagged?force=true")[0], 204)
        self.refused(self.d.ask("DELETE", "/v1/keys/tagged?force=yes"), 400, "invalid-argument", "true or false")

    def same_stats(self, told, x, version):
        """What REST tells of an array, beside numpy."""
        x = np.asarray(x).astype("float64").ravel()
        good = x[np.isfinite(x)]
        self.assertEqual((told["version"], told["count"], told["nans"], told["infinities"], told["zeros"]),
                         (version, x.size, np.isnan(x).sum(), np.isinf(x).sum(), (x == 0).sum()))
        if good.size:
            np.testing.assert_allclose([told["norm"], told["mean"]], [np.sqrt(np.sum(good**2)), good.mean()], rtol=1e-9, atol=1e-12)
            self.assertEqual((told["min"], told["max"]), (good.min(), good.max()))
        else:
            self.assertEqual((told["norm"], told["mean"], told["min"], told["max"]), (0, None, None, None))
        least = told["histogram"]["least_exponent"]
        edges = np.concatenate([[0], 2.0 ** np.arange(least, least + 63), [np.inf]])
        np.testing.assert_array_equal(told["histogram"]["counts"], np.histogram(np.abs(good[good != 0]), edges)[0])

    def test_statistics_are_those_of_numpy(self):
        rng = np.random.default_rng(7)
        for dtype in ("float32", "float64", "float16", "int8", "uint8", "int32", "int64"):
            size = 20000 if dtype == "float32" else 777
            value = rng.normal(size=size) * 10.0 ** rng.integers(-14, 4, size=size) if dtype[0] == "f" else rng.integers(0, 100, size)
            value = value.astype(dtype)
            value[5] = 0
            if dtype[0] == "f":
                value[:4] = [np.nan, np.inf, -np.inf, -0.0]
            self.made(f"/v1/keys/stats-{dtype}", npy(value), Content_Type="application/x-npy")
            status, headers, told = self.d.ask("GET", f"/v1/keys/stats-{dtype}/stats")
            self.assertEqual((status, told["dtype"], told["version"], told["gradient"], told["update"], told["update_ratio"]),
                             (200, dtype, 1, None, None, None))
            self.same_stats(told["value"], value, 1)
            self.assertEqual(self.d.ask("GET", f"/v1/keys/stats-{dtype}/stats", If_None_Match=headers["ETag"])[0], 304)
        self.made("/v1/keys/stats-none", {"data": ["NaN", "Infinity"]})
        self.same_stats(self.d.ask("GET", "/v1/keys/stats-none/stats")[2]["value"], [np.nan, np.inf], 1)
        self.refused(self.d.ask("GET", "/v1/keys/nowhere/stats"), 404, "no-such-key")
        self.refused(self.d.ask("GET", "/v1/stores/nowhere/keys/w/stats"), 404, "no-such-store")
        self.refused(self.d.ask("GET", "/v1/keys/stats-none/stats?brief=1"), 400, "unknown-parameter", "type")

    def test_statistics_of_a_step(self):
        rng = np.random.default_rng(8)
        w, g = rng.normal(size=(2, 50000)).astype("float32")
        g[100] = 0
        with paramd.kv.create("dist_sync", num_workers=1, url=self.d.fields["data"], store="steps") as kv:
            kv.init(3, w)
            kv.set_optimizer("sgd", learning_rate=0.25)
            told = self.d.ask("GET", "/v1/stores/steps/keys/3/stats")[2]
            self.assertEqual((told["key"], told["key_type"], told["behind"]), ("3", "int", None))
            kv.push(3, g)
            new = kv.pull(3)
            _, headers, told = self.d.ask("GET", "/v1/stores/steps/keys/3/stats")
            self.same_stats(told["gradient"], g, 2)
            self.same_stats(told["value"], new, 2)
            self.same_stats(told["update"], new.astype("float64") - w, 2)
            change = np.linalg.norm(new.astype("float64") - w) / np.linalg.norm(new.astype("float64"))
            self.assertAlmostEqual(told["update_ratio"], change, delta=1e-9)
            self.assertEqual((told["contributors"], told["behind"], told["staleness"]), (1, 0, None))
            self.assertEqual(self.d.ask("GET", "/v1/stores/steps/keys/3/stats", If_None_Match=headers["ETag"])[0], 304)
            kv.push(3, g)
            kv.pull(3)
            self.assertEqual(self.d.ask("GET", "/v1/stores/steps/keys/3/stats", If_None_Match=headers["ETag"])[0], 200)

    def test_integer_keys_have_one_address_each(self):
        self.d.ask("POST", "/v1/stores", {"store": "ints", "type": "dist_async"})
        at = "/v1/stores/ints/keys/"
        _, row = self.made(at + "-9223372036854775808?type=int", {"data": [1]})
        self.assertEqual((row["key"], row["key_type"]), ("-9223372036854775808", "int"))
        self.made(at + "12", {"data": [1]})
        for bad in ("007", "+1", "1.0", "1e3", "-0", "9223372036854775808", "x", "%2B1", "%201"):
            self.refused(self.d.ask("GET", at + bad), 400, "invalid-key", "integers")
        self.refused(self.d.ask("PUT", at + "w?type=str", {"data": [1]}), 409, "mixed-key-types", "Mixed key types")
        self.refused(self.d.ask("GET", at + "12?type=long"), 400, "invalid-argument", "int or str")
        said = self.d.ask("GET", "/v1/stores/ints/keys")[2]
        self.assertEqual([(k["key"], k["key_type"]) for k in said["items"]], [("-9223372036854775808", "int"), ("12", "int")])
        self.assertEqual(self.d.ask("GET", at + "12/value")[2]["key"], "12")

    def test_lists_go_page_by_page_through_changes(self):
        self.d.ask("POST", "/v1/stores", {"store": "pages", "type": "dist_async"})
        at = "/v1/stores/pages/keys"
        names = sorted(f"layer{i}/w é" for i in range(25))
        for name in names:
            self.made(f"{at}/{urllib.parse.quote(name, safe='')}", {"data": [1]})
        self.made(at + "/other", {"data": [1]})
        got, cursor, pages = [], "", 0
        while cursor is not None:
            query = {"limit": 10, "prefix": "layer", **({"cursor": cursor} if cursor else {})}
            status, _, said = self.d.ask("GET", at + "?" + urllib.parse.urlencode(query))
            self.assertEqual((status, said["total"]), (200, 25 + (pages > 0)))
            got += [k["key"] for k in said["items"]]
            cursor = said["next_cursor"]
            pages += 1
            if pages == 1:  # one is made in front of the cursor: neither repeated nor missed
                self.made(at + "/layer0", {"data": [1]})
        self.assertEqual((got, pages), (names, 3))
        for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "limit=01"):
            self.refused(self.d.ask("GET", f"{at}?{query}"), 400, "invalid-argument", "1000")
        for cursor in ("x", "%20", "aQ", "c w", base64.urlsafe_b64encode(b"q7").decode().rstrip("="),
                       base64.urlsafe_b64encode(b"s\xff").decode().rstrip("=")):
            self.refused(self.d.ask("GET", f"{at}?cursor={urllib.parse.quote(cursor)}"), 400, "bad-cursor")
        self.refused(self.d.ask("GET", "/v1/stores/nowhere/keys"), 404, "no-such-store")

    def test_names_are_decoded_once_and_strictly(self):
        for name in ("a/b", "a b", "ä€𝄞", "..", ".", "%2F", "a%b", "a+b", "a?b=c&d", "#", "'\"<>", "value", "a\nb", "x" * 512):
            path = "/v1/keys/" + urllib.parse.quote(name, safe="").replace(".", "%2E")
            _, row = self.made(path, {"data": [1]})
            self.assertEqual(row["key"], name)
            self.assertEqual(self.d.ask("GET", path)[2]["key"], name)
            self.assertEqual(self.d.ask("GET", path + "/value")[2]["key"], name)
        for path, status, code in (
                ("/v1/keys/a%00b", 400, "invalid-key"), ("/v1/keys/%00", 400, "invalid-key"), ("/v1/keys/%", 400, "invalid-key"),
                ("/v1/keys/%4", 400, "invalid-key"), ("/v1/keys/%zz", 400, "invalid-key"), ("/v1/keys/%ff", 400, "invalid-key"),
                ("/v1/keys/%c0%af", 400, "invalid-key"), ("/v1/keys/%ed%a0%80", 400, "invalid-key"), ("/v1/keys/", 400, "invalid-key"),
                ("/v1/keys//value", 400, "invalid-key"), ("/v1/stores//keys", 400, "invalid-key"),
                ("/v1/keys/" + "y" * 1025, 400, "invalid-key"), ("/v1/keys/" + "y" * 513, 400, "invalid-argument"),
                ("/v1/keys/a/b", 404, "no-such-path"), ("/v1/keys/a/value/", 404, "no-such-path"), ("//v1/keys", 404, "no-such-path"),
                ("/" + "a/" * 20, 404, "no-such-path"), ("/v1/keys?prefix=%", 400, "invalid-key"), ("/v1/keys?prefix=%00", 400, "invalid-key")):
            self.refused(self.d.ask("GET", path), status, code)
        self.assertEqual(self.d.ask("GET", "/v1/keys/%252F")[2]["key"], "%2F")
        self.refused(self.d.ask("GET", "/v1/keys/%25252F"), 404, "no-such-key")
        for query, found in (("prefix=a+b", ["a b"]), ("prefix=a%2Bb", ["a+b"]), ("prefix=a%20b", ["a b"]), ("prefix=%C3%A4", ["ä€𝄞"])):
            self.assertEqual([k["key"] for k in self.d.ask("GET", "/v1/keys?" + query)[2]["items"]], found, query)
        data, _ = self.d.raw(b"GET /v1/keys/\xc3\xa4%E2%82%AC\xf0\x9d\x84\x9e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertEqual(statuses(data), [200])

    def test_no_header_comes_out_of_a_name(self):
        data, _ = self.d.raw(request("PUT", "/v1/keys/a%0D%0AX-Evil:%20yes", "Content-Type: application/json", "Content-Length: 11",
                                     "Connection: close", body=b'{"data": 1}'))
        self.assertEqual(statuses(data), [201])
        self.assertNotIn(b"\r\nX-Evil", data)

    def test_any_number_of_query_parameters_gets_an_answer(self):
        for count in (300, 500, 2000, 3500):
            target = "/v1/keys?" + "&".join(f"p{i}=1" for i in range(count))
            self.refused(self.d.ask("GET", target), 400, "unknown-parameter", "8")
        many = self.d.raw(request("GET", "/v1/keys?" + "a&" * 20000, "Connection: close"), wait=20)[0]  # more than fits
        self.assertEqual(statuses(many), [414])
        self.assertEqual(self.d.ask("GET", "/v1/keys?limit=3&prefix=x")[0], 200)

    def test_a_query_parameter_that_is_none_is_refused(self):
        for path, word in (("/v1/keys?prefx=a", "did you mean prefix"), ("/v1/keys?limit=1&limit=2", "twice"), ("/v1/info?x", "no query"),
                           ("/v1/keys?Prefix=a", "prefix"), ("/v1/stores?limit=1", "no query"), ("/v1/keys?" + "&".join(f"a{i}=1" for i in range(9)), "8")):
            self.refused(self.d.ask("GET", path), 400, "unknown-parameter", word)
        self.assertEqual(self.d.ask("GET", "/v1/keys?&limit=1&")[0], 200)


class Updaters(Case):
    AT = "/v1/stores/u/updater"

    def setUp(self):
        self.d.ask("POST", "/v1/stores", {"store": "u", "type": "dist_async"})
        self.d.ask("POST", "/v1/stores/u/reset")
        self.made("/v1/stores/u/keys/w", {"data": [1, 2]})

    def test_get_has_a_tag_and_knows_it(self):
        status, headers, said = self.d.ask("GET", self.AT)
        self.assertEqual((status, said), (200, {"type": "assign"}))
        self.assertEqual(self.d.ask("GET", self.AT, If_None_Match=headers["ETag"])[0], 304)

    def test_a_swap_tells_from_which_version_on(self):
        tag = self.d.ask("GET", self.AT)[1]["ETag"]
        status, headers, said = self.d.ask("PUT", self.AT, {"type": "sgd", "learning_rate": 0.5}, If_Match=tag)
        self.assertEqual((status, said["changed"], said["effective_from_version"], said["dry_run"]), (200, True, 2, False))
        self.assertEqual((said["updater"]["learning_rate"], said["previous"]), (0.5, {"type": "assign"}))
        self.assertEqual(headers["ETag"], self.d.ask("GET", self.AT)[1]["ETag"])
        self.assertNotEqual(headers["ETag"], tag)
        same = self.d.ask("PUT", self.AT, {"learning_rate": 0.5, "type": "sgd"}, If_Match=headers["ETag"])
        self.assertEqual((same[0], same[2]["changed"], same[1]["ETag"]), (200, False, headers["ETag"]))
        back = self.d.ask("PUT", self.AT, said["previous"], If_Match="*")
        self.assertEqual((back[0], back[2]["changed"]), (200, True))
        self.assertEqual(self.d.ask("PUT", self.AT, b"null", Content_Type="application/json", If_Match="*")[2]["changed"], False)

    def test_an_assign_that_equals_the_one_of_a_store_without_updater_changes_nothing(self):
        for body in (b"null", b'{"type": "assign"}'):
            for _ in range(2):
                said = self.d.ask("PUT", self.AT, body, Content_Type="application/json", If_Match="*")[2]
                self.assertEqual((said["changed"], "first_versions" in said, said["dropped"]), (False, False, []))
            self.d.ask("POST", "/v1/stores/u/reset")

    def test_what_a_document_leaves_out_is_named(self):
        self.d.ask("PUT", self.AT, {"type": "sgd", "momentum": 0.9}, If_Match="*")
        for dry_run in ("true", "false"):
            said = self.d.ask("PUT", f"{self.AT}?dry_run={dry_run}", {"type": "sgd"}, If_Match="*")[2]
            self.assertEqual(said["dropped"], [{"name": "momentum", "from": 0.9, "to": 0}])
            if dry_run == "true":
                self.assertIn("/momentum: goes from 0.9 back to its default, 0, as the document does not say it",
                              said["report"]["warnings"])

    def test_a_dry_run_of_a_program_tells_what_it_needs(self):
        document = {"type": "program", "text": "slot m = 0\nm = 0.9 * m + grad\nstored -= 0.1 * m\n"}
        for _ in range(2):
            status, _, said = self.d.ask("PUT", self.AT + "?dry_run=true", document, If_Match="*")
            self.assertEqual(status, 200, said)
            self.assertEqual([slot["name"] for slot in said["program"]["slots"]], ["m"])
            self.assertGreater(said["program"]["bytes_per_element"]["f32"], 0)

    def test_a_dry_run_changes_nothing(self):
        before = self.d.ask("GET", self.AT)[1]["ETag"]
        status, _, said = self.d.ask("PUT", self.AT + "?dry_run=true", {"type": "adam"}, If_Match=before)
        self.assertEqual((status, said["changed"], said["dry_run"], said["effective_from_version"]), (200, True, True, 2))
        self.assertEqual(self.d.ask("GET", self.AT)[1]["ETag"], before)
        self.refused(self.d.ask("PUT", self.AT + "?dry_run=1", {"type": "adam"}, If_Match="*"), 400, "invalid-argument", "true or false")

    def report(self, document, states="keep"):
        status, _, said = self.d.ask("PUT", f"{self.AT}?dry_run=true&states={states}", document, If_Match="*")
        self.assertEqual((status, "updater" in said), (200, False), said)
        return said["report"], {slot.pop("name"): slot for slot in said["report"]["slots"]}

    def trained(self, names, document):
        """Keys of 4 elements that have stepped once under the document."""
        for name in names:
            self.made(f"/v1/stores/u/keys/{name}", {"data": [1, 2, 3, 4]})
        self.assertEqual(self.d.ask("PUT", self.AT, document, If_Match="*")[0], 200)
        with paramd.kv.create("dist_async", url=self.d.fields["data"], store="u") as kv:
            for name in names:
                kv.push(name, np.ones(4, "float32"))
            kv.wait()

    def test_a_dry_run_tells_which_keys_are_matched_and_how_much_state_there_will_be(self):
        for name in ("a_bias", "b_bias", "c_weight"):
            self.made(f"/v1/stores/u/keys/{name}", {"data": [1, 2, 3, 4]})
        self.made("/v1/stores/u/keys/half", {"dtype": "float16", "data": [1, 2]})
        said, slots = self.report({"type": "adam", "overrides": [{"match": "*_bias", "wd_mult": 0},
                                                                 {"match": "none*", "lr_mult": 2}]})
        self.assertEqual((said["keys"], said["keys_looked_at"]), (5, 5))
        self.assertEqual(said["overrides"], [{"match": "*_bias", "keys": 2}, {"match": "none*", "keys": 0}])
        # two slots of f32 for 3 * 4 + 2 (w) + 2 (half) elements, and the f32 copy of half
        self.assertEqual(said["state_bytes"], {"now": 0, "then": 2 * 16 * 4 + 2 * 4})
        self.assertEqual(slots["mean"], {"kept": 0, "converted": 0, "anew": 5, "dropped": 0})
        self.assertEqual(slots["master"], {"kept": 0, "converted": 0, "anew": 1, "dropped": 0})
        self.assertEqual([w.split(":")[0] for w in said["warnings"]], ["/overrides/1/match"])
        self.assertEqual(self.report({"type": "add"})[0]["warnings"], [])

    def test_a_dry_run_tells_what_becomes_of_the_state_in_each_way_and_so_it_comes(self):
        self.trained(["a", "b"], {"type": "sgd", "momentum": 0.9})
        said, slots = self.report({"type": "adam"})
        self.assertEqual((slots["momentum"]["dropped"], slots["mean"]["anew"], said["begin_anew"]), (2, 3, 2))
        self.assertIn("states=convert", said["warnings"][0])
        said, slots = self.report({"type": "adam"}, "convert")
        self.assertEqual((slots["mean"]["converted"], slots["var"]["converted"], said["begin_anew"]), (2, 2, 0))
        self.assertEqual(slots["mean"]["anew"], 1)  # w has not stepped, so it has no momentum yet
        said, slots = self.report({"type": "sgd", "momentum": 0.5})
        self.assertEqual((slots["momentum"], said["begin_anew"], said["warnings"]),
                         ({"kept": 2, "converted": 0, "anew": 1, "dropped": 0}, 0, []))
        said, slots = self.report({"type": "sgd", "momentum": 0.9}, "reset")
        self.assertEqual((slots["momentum"]["anew"], slots["momentum"]["dropped"], said["begin_anew"]), (3, 2, 2))
        said = self.report({"type": "adam"})[0]
        self.trained([], {"type": "adam"})
        with paramd.kv.create("dist_async", url=self.d.fields["data"], store="u") as kv:
            for name in ("a", "b", "w"):
                kv.push(name, np.ones(kv.pull(name).shape, "float32"))
            kv.wait()
        self.assertEqual(self.report({"type": "adam"})[0]["state_bytes"]["now"], said["state_bytes"]["then"])
        said = self.report({"type": "sgd", "momentum": 0.9})[0]  # keeps its count, and yet loses what it could have
        self.assertEqual((len(said["warnings"]), said["begin_anew"]), (1, 0))
        self.assertIn("slots of 3 of the keys go", said["warnings"][0])
        self.assertEqual(self.report({"type": "sgd", "momentum": 0.9}, "convert")[0]["warnings"], [])
        self.assertEqual(self.report({"type": "sgd"})[0]["warnings"], [])  # needs none

    def test_a_dry_run_warns_of_schedules_that_are_over_and_of_halves_without_masters(self):
        self.trained(["a"], {"type": "sgd"})
        over = {"type": "sgd", "schedule": {"type": "poly", "max_update": 1, "base_lr": 0.5, "final_lr": 0.125}}
        self.assertIn("stays at 0.125", self.report(over)[0]["warnings"][0])
        self.d.ask("POST", "/v1/stores/u/reset")  # with which the count of updates begins anew
        self.assertEqual(self.report(over)[0]["warnings"], [])
        self.assertEqual(self.report({"type": "sgd", "schedule": {"type": "constant"}})[0]["warnings"], [])
        self.made("/v1/stores/u/keys/half", {"dtype": "float16", "data": [1, 2]})
        self.assertIn("/multi_precision: 1 ", self.report({"type": "sgd", "multi_precision": False})[0]["warnings"][0])

    def test_a_swap_to_a_state_for_which_memory_max_has_no_room_is_refused_and_its_dry_run(self):
        with Running("--memory-max", "1m") as d:
            data = npy(np.zeros(60_000, "float32"))  # and its spare: 480 kB
            status, _, said = d.ask("PUT", "/v1/keys/w", data, Content_Type="application/x-npy")
            self.assertEqual(status, 201, said)
            self.assertEqual(d.ask("PUT", "/v1/stores/default/updater?dry_run=true", {"type": "sgd"}, If_Match="*")[0], 200)
            for how in ("?dry_run=true", ""):
                status, _, said = d.ask("PUT", "/v1/stores/default/updater" + how, {"type": "rmsprop", "centered": True},
                                        If_Match="*")
                self.assertEqual(said["code"], "limit-reached", said)
                self.assertIn("the state of 1 key under rmsprop needs 720000 bytes more", said["detail"])
                self.assertIn("raise --memory-max", said["detail"])

    def test_a_swap_names_the_first_version_of_each_key(self):
        self.trained(["a"], {"type": "sgd"})
        self.made("/v1/stores/u/keys/never", {"data": [1]})
        said = self.d.ask("PUT", self.AT, {"type": "lion"}, If_Match="*")[2]
        self.assertEqual(said["effective_from_version"], 3)
        self.assertEqual({(k["key"], k["key_type"], k["version"]) for k in said["first_versions"]},
                         {("a", "str", 3), ("never", "str", 2), ("w", "str", 2)})
        self.assertNotIn("first_versions", self.d.ask("PUT", self.AT, {"type": "lion"}, If_Match="*")[2])
        self.d.ask("POST", "/v1/stores/u/reset")
        self.made("/v1/stores/u/keys/-7?type=int", {"data": [1]})
        said = self.d.ask("PUT", self.AT, {"type": "sgd", "overrides": [{"match": "-?", "lr_mult": 2}]}, If_Match="*")[2]
        self.assertEqual(said["first_versions"], [{"key": "-7", "key_type": "int", "version": 2}])
        self.assertEqual(self.report(said["updater"])[0]["overrides"], [{"match": "-?", "keys": 1}])

    def test_what_becomes_of_the_states_may_be_said(self):
        for states in ("keep", "reset"):
            self.assertEqual(self.d.ask("PUT", self.AT + "?states=" + states, {"type": "adam"}, If_Match="*")[0], 200)
        self.refused(self.d.ask("PUT", self.AT + "?states=burn", {"type": "adam"}, If_Match="*"), 400, "invalid-argument", "keep")

    def test_all_faults_are_told_at_once(self):
        many = {"type": "sgd", **{f"wrong{i}": 1 for i in range(30)}, "learning_rate": "fast"}
        answer = self.d.ask("PUT", self.AT, many, If_Match="*")
        self.refused(answer, 422, "validation-failed")
        self.assertEqual({e["pointer"] for e in answer[2]["errors"]}, {f"/wrong{i}" for i in range(30)} | {"/learning_rate"})
        self.assertTrue(all(e["detail"] for e in answer[2]["errors"]))
        self.assertIn("did you mean", self.d.ask("PUT", self.AT, {"type": "sdg"}, If_Match="*")[2]["errors"][0]["detail"])
        for body in (b"[1]", b"{}", b'{"type": 3}', b'"sgd"'):
            self.refused(self.d.ask("PUT", self.AT, body, Content_Type="application/json", If_Match="*"), 422, "validation-failed")
        self.refused(self.d.ask("PUT", self.AT, b"{", Content_Type="application/json", If_Match="*"), 400, "malformed-json")
        self.refused(self.d.ask("PUT", self.AT, b"[" * 50 + b"]" * 50, Content_Type="application/json", If_Match="*"), 400, "malformed-json", "deep")
        self.made("/v1/stores/u/keys/i", {"dtype": "int32", "data": [1]})
        self.refused(self.d.ask("PUT", self.AT, {"type": "sgd"}, If_Match="*"), 422, "updater-incompatible", "'i'")

    @unittest.skipUnless(shutil.which("curl"), "it needs curl: package curl")
    def test_the_line_that_a_refusal_prints_works(self):
        document = {"type": "sgd", "learning_rate": 0.25}
        answer = self.d.ask("PUT", self.AT, document)
        self.refused(answer, 428, "precondition-required", "If-Match")
        self.assertEqual(answer[2]["current"], {"type": "assign"})
        done = subprocess.run(["sh", "-c", answer[2]["curl"] + " -sS"], capture_output=True, text=True, timeout=20)
        self.assertTrue(json.loads(done.stdout)["changed"], done)
        answer = self.d.ask("PUT", self.AT, {"type": "adam"}, If_Match='"0"')
        self.refused(answer, 412, "etag-mismatch")
        self.assertEqual(answer[2]["current_etag"], self.d.ask("GET", self.AT)[1]["ETag"])
        done = subprocess.run(["sh", "-c", answer[2]["curl"] + " -sS"], capture_output=True, text=True, timeout=20)
        self.assertEqual(json.loads(done.stdout)["updater"]["type"], "adam", done)
        name = "it's {odd} [1-3]"
        path = "/v1/stores/u/keys/it's%20{odd}%20[1-3]"
        self.made(path, {"data": [1]})
        answer = self.d.ask("DELETE", path, If_Match='"0"')
        self.assertEqual(answer[2]["current"]["key"], name)
        done = subprocess.run(["sh", "-c", answer[2]["curl"] + " -sS -w '%{http_code}'"], capture_output=True, text=True, timeout=20)
        self.assertEqual(done.stdout, "204", done)

    @unittest.skipUnless(shutil.which("curl"), "it needs curl: package curl")
    def test_with_a_token_the_line_takes_it_from_the_environment(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("s3cret-token-of-it")
            file.flush()
            with Running("--token-file", file.name) as d:
                key = {"Authorization": "Bearer s3cret-token-of-it"}
                self.assertEqual(d.ask("PUT", "/v1/keys/w", {"data": [1]}, **key)[0], 201)
                answer = d.ask("PUT", "/v1/stores/default/updater", {"type": "add"}, **key)
                self.assertNotIn("s3cret", json.dumps(answer[2]))
                done = subprocess.run(["sh", "-c", answer[2]["curl"] + " -sS"], capture_output=True, text=True, timeout=20,
                                      env={**os.environ, "PARAMD_TOKEN": "s3cret-token-of-it"})
                self.assertTrue(json.loads(done.stdout)["changed"], done)

    def test_of_two_who_swap_at_once_one_is_told(self):
        tag = self.d.ask("GET", self.AT)[1]["ETag"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda i: self.d.ask("PUT", self.AT, {"type": "sgd", "learning_rate": (i + 1) / 16}, If_Match=tag),
                                    range(8)))
        self.assertEqual(sorted(a[0] for a in answers), [200] + [412] * 7)


class Jobs(Case):
    def join(self, store, worker):
        """A member by the protocol alone: HELLO and Join over the front door's wire."""
        return Client(self.d, store, worker)

    def test_rounds_name_who_is_missing_and_since_when(self):
        self.d.ask("POST", "/v1/stores", {"store": "job", "type": "dist_sync", "num_workers": 2, "worker_timeout": 600})
        a, b = self.join("job", "ann"), self.join("job", "bob")
        try:
            workers = self.d.ask("GET", "/v1/stores/job/workers")[2]
            self.assertEqual([(w["name"], w["rank"], w["state"]) for w in workers["items"]], [("ann", 0, "member"), ("bob", 1, "member")])
            self.assertEqual(workers["total"], 2)
            self.made("/v1/stores/job/keys/w", {"data": [0, 0]})
            a.init("w", np.zeros(2, "float32"))
            a.push(1, np.ones(2, "float32"))
            status, _, said = self.d.ask("GET", "/v1/stores/job/rounds")
            self.assertEqual((status, said["total"], len(said["items"])), (200, 1, 1))
            round_ = said["items"][0]
            self.assertEqual((round_["key"], round_["key_type"], round_["step"], round_["missing"]), ("w", "str", 1, [{"name": "bob", "rank": 1}]))
            self.assertIn("bob", round_["waiting"])
            self.assertRegex(round_["since"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertLess(abs(round_["since_unix_ms"] / 1000 - time.time()), 60)
            self.refused(self.d.ask("DELETE", "/v1/stores/job/keys/w"), 409, "round-open")
            self.refused(self.d.ask("POST", "/v1/stores/job/workers/ann/dismiss"), 400, "invalid-argument", "alive")
            self.refused(self.d.ask("POST", "/v1/stores/job/workers/1/dismiss"), 400, "invalid-argument", "alive")
            self.refused(self.d.ask("POST", "/v1/stores/job/workers/carl/dismiss"), 404, "no-such-worker")
            self.assertEqual(self.d.ask("DELETE", "/v1/stores/job/keys/w?force=true")[0], 204)
            self.assertEqual(self.d.ask("GET", "/v1/stores/job/rounds")[2]["items"], [])
        finally:
            a.close()
            b.close()

    def test_a_dead_worker_can_be_dismissed(self):
        self.d.ask("POST", "/v1/stores", {"store": "dying", "type": "dist_sync", "num_workers": 1, "worker_timeout": 1})
        self.join("dying", "dora").close()
        for _ in range(100):
            state = self.d.ask("GET", "/v1/stores/dying/workers")[2]["items"][0]["state"]
            if state == "dead":
                break
            time.sleep(0.1)
        self.assertEqual(state, "dead")
        self.assertEqual(self.d.ask("POST", "/v1/stores/dying/workers/dora/dismiss")[0], 204)
        self.assertEqual(self.d.ask("GET", "/v1/stores/dying/workers")[2]["items"][0]["state"], "left")

    def test_an_operators_init_counts_for_workers_and_leaves_no_progress(self):
        self.d.ask("POST", "/v1/stores", {"store": "both", "type": "dist_async"})
        a = self.join("both", "ann")
        try:
            self.made("/v1/stores/both/keys/w", {"data": [1, 2]})
            self.assertEqual(a.init("w", np.zeros(2, "float32")), 2)  # EXISTED: this value does not count
            self.assertEqual(self.d.ask("GET", "/v1/stores/both/keys/w/value")[2]["data"], [1, 2])
            self.assertEqual(self.d.ask("GET", "/v1/stores/both/workers")[2]["total"], 1)
            a.push(1, np.full(2, 7, "float32"))
            said = self.d.ask("GET", "/v1/stores/both/keys/w/value")[2]
            self.assertEqual((said["data"], said["version"]), ([7, 7], 2))
            self.assertTrue(self.d.ask("GET", "/v1/stores/both/keys/w")[1]["ETag"].startswith('"2.'))
        finally:
            a.close()


CRC = [0] * 256
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    CRC[_i] = _c


def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c = CRC[(c ^ byte) & 255] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


class Client:
    """A worker over the bulk door's wire (api/protocol.md), so that the test needs no library."""

    def __init__(self, d, store, name):
        self.id, self.epoch, self.session, self.sequence, self.request = os.urandom(16), 0, 0, 0, 0
        self.s = socket.create_connection(("127.0.0.1", d.port("bulk")), 5)
        self.s.sendall(bytes.fromhex("0053500000300000"))
        self.take(8)
        said = self.json(1, {"client": "test", "name": name})
        self.epoch, self.session = said["epoch"], said["session"]
        stores = {s["store"]: s["id"] for s in self.json(4, {})["items"]}
        self.store = stores[store]
        self.json(5, {"store": self.store, "name": name})

    def close(self):
        self.s.close()

    def take(self, n):
        got = b""
        while len(got) < n:
            part = self.s.recv(n - len(got))
            if not part:
                raise AssertionError("the daemon closed the connection")
            got += part
        return got

    def call(self, method, fixed=b"", desc=b"", body=b"", flags=0, named=False):
        self.request += 1
        self.sequence += named
        head = struct.pack("<4sBBHHH16sIQIIiIIQI", b"PRMD", 1, method, flags, 0, 0, self.id, self.epoch, self.sequence if named else 0,
                           self.session, 5000, 0, len(fixed), len(desc), len(body), 0)
        head += struct.pack("<I", crc32c(head)) + fixed + desc
        head += b"\0" * (-(4 + len(head)) % 16)
        self.s.sendall(struct.pack(">QI", 4 + len(head) + len(body), 0x80000000 | self.request) + head + body)
        frame = self.take(struct.unpack(">Q", self.take(8))[0])[4:]
        status, reason = struct.unpack_from("<HH", frame, 8)
        sizes = struct.unpack_from("<IIQ", frame, 52)
        at = 76 + sizes[0] + sizes[1]
        body = frame[at + -(4 + at) % 16:]
        if status:
            raise AssertionError(f"status {status}, reason {reason}: {body.decode()}")
        return frame[76:76 + sizes[0]], frame[76 + sizes[0]:at], body

    def json(self, method, document):
        return json.loads(self.call(method, body=json.dumps(document).encode())[2])

    def init(self, key, value):
        name = key.encode()
        entry = struct.pack("<qQQQHBBBBH", 0, 0, 0, value.nbytes, len(name), 1, 0, value.ndim, 0, 0)
        entry += struct.pack(f"<{value.ndim}q", *value.shape) + name
        entry += b"\0" * (-len(entry) % 8)
        _, desc, _ = self.call(9, struct.pack("<IIQI", self.store, 1, 77, 0), entry, flags=2)
        self.key, _, _, outcome = struct.unpack_from("<QQQI", desc)
        return outcome

    def push(self, step, value):
        entry = struct.pack("<QQQQQBBHI", self.key, step, 0, value.nbytes, value.nbytes, 0, 0, 0, 0)
        fixed, _, _ = self.call(12, struct.pack("<III", self.store, 1, 0), entry, value.tobytes(), named=True)
        recorded, faults = struct.unpack_from("<II", fixed)
        assert (recorded, faults) == (1, 0), (recorded, faults)


class Gate(Case):
    """Each row of reference 2.2, and who may ask."""

    def closes(self, text, *expected):
        data, closed = self.d.raw(text)
        self.assertEqual(statuses(data), list(expected), data[:300])
        self.assertTrue(closed, data[:300])
        return data

    def test_two_ways_to_read_a_length_are_refused_and_the_connection_ends(self):
        smuggled = b"0\r\n\r\nGET /v1/stores HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        json_type = "Content-Type: application/json"
        for headers in (("Content-Length: 4", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", "Content-Length: 60"),
                        ("Content-Length: 5", "Content-Length: 60"), ("Content-Length: 5", "Content-Length: 5"),
                        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")):
            data = self.closes(request("POST", "/v1/stores", json_type, *headers, body=smuggled), 400)
            self.assertIn(b"ambiguous-framing", data)

    def test_two_hosts_or_other_single_headers_twice_are_refused(self):
        for header in ("Host: localhost", "Authorization: a", "Origin: b", "If-Match: c", "Content-Type: d"):
            data = self.closes(request("GET", "/v1/info", header, header if header[0] != "H" else "X: y"), 400)
            self.assertIn(b"ambiguous-framing", data)

    def test_codings_that_are_not_known_are_refused_at_once(self):
        for coding in ("gzip, chunked", "gzip", "identity", "chunked, chunked", "xchunked", "chunked;q=1"):
            began = time.monotonic()
            self.closes(request("PUT", "/v1/keys/x", f"Transfer-Encoding: {coding}", body=b"0\r\n\r\n"), 501)
            self.assertLess(time.monotonic() - began, 3)

    def test_a_space_before_the_colon_smuggles_nothing(self):
        body = b"GET /v1/stores HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        data, closed = self.d.raw(request("POST", "/v1/stores", f"Content-Length : {len(body)}", body=body), wait=1)
        self.assertEqual(statuses(data), [400], data)
        self.assertTrue(closed)

    def test_a_body_where_none_belongs_ends_the_connection(self):
        body = b"GET /v1/stores HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for method, path in (("GET", "/v1/info"), ("DELETE", "/v1/keys/x"), ("POST", "/v1/stores/default/reset")):
            self.closes(request(method, path, f"Content-Length: {len(body)}", body=body), 400)
            self.closes(request(method, path, "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n"), 400)

    def test_odd_request_lines(self):
        for text, expected in ((b"GET /v1/info HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n", [200, 400]),
                               (request("GET", "/v1/info", "X: a\r\n  folded", "Connection: close"), [200, 400]),
                               (request("GET", "/v1/info", version="HTTP/1.0"), [200]),
                               (request("get", "/v1/info", "Connection: close"), [405]), (request("TRACE", "/v1/info", "Connection: close"), [405]),
                               (request("CONNECT", "127.0.0.1:80", "Connection: close"), [400, 405]),
                               (request("OPTIONS", "*", "Connection: close"), [400, 405]), (request("PATCH", "/v1/keys/w", "Connection: close"), [405]),
                               (request("GET", "http://127.0.0.1/v1/info", "Connection: close"), [400]),
                               (request("GET", "http://evil.example/v1/info", "Connection: close"), [400]),
                               (request("GET", "/v1/info", "Connection: close", version="HTTP/9.9"), [400, 505])):
            data, _ = self.d.raw(text, wait=3)
            self.assertEqual(len(statuses(data)), 1, (text, data))
            self.assertIn(statuses(data)[0], expected, (text, data))
            self.assertNotIn(b"folded", data)

    def test_lengths_that_are_no_lengths(self):
        for length in ("-1", "+5", "0x10", "1e3", "5 5", "99999999999999999999999", ""):
            data, _ = self.d.raw(request("PUT", "/v1/keys/x", f"Content-Length: {length}", body=b"hello"), wait=2)
            self.assertIn(statuses(data)[0], (400, 413, 415), (length, data))  # the library says its own 400 twice, then closes

    def test_what_is_too_long_is_refused(self):
        for text, code in ((request("GET", "/" + "a" * 65536), 414), (request("GET", "/v1/info", "X: " + "b" * 65536), 431),
                           (request("GET", "/v1/info", *[f"X{i}: y" for i in range(3000)]), 431)):
            data, closed = self.d.raw(text)
            self.assertEqual((statuses(data), closed), ([code], True), data[:200])

    def test_a_long_chunk_extension_does_no_harm(self):
        data, closed = self.d.raw(request("POST", "/v1/stores", "Content-Type: application/json", "Transfer-Encoding: chunked",
                                          body=b"5;" + b"x" * 40960 + b"\r\nhello\r\n0\r\n\r\n"), wait=3)
        self.assertTrue(closed or statuses(data), data)
        self.assertEqual(self.d.ask("GET", "/v1/info")[0], 200)

    def test_nul_is_in_no_name_and_no_header(self):
        data, _ = self.d.raw(request("GET", "/v1/keys/a%00b", "Connection: close"))
        self.assertEqual(statuses(data), [400])
        # The library cuts a value off there, before anybody sees it.
        for header in ("Host: evil.example\0", "Host: 127.0.0.1\0.evil.example", "Host: \0", "X: \0\r\nHost: 127.0.0.1"):
            for more in (("Connection: close",), ()):
                data, closed = self.d.raw(request("GET", "/v1/info", *more, header, host=None), wait=20)
                self.assertEqual((statuses(data), closed), ([400], True), (header, data[:200]))
        for plain in ("X:", "X: ", "X:   y  ", "X:\ty\t", "X: y\r\nX: y", "Cookie: a=b; c", "X: " + "y" * 20000):
            for lines in ((plain, "Connection: close"), ("Connection: close", plain)):
                data, _ = self.d.raw(request("GET", "/v1/info", *lines), wait=20)
                self.assertEqual(statuses(data), [200], plain)
        data, _ = self.d.raw(b"GET /v1/info\0/../stores HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", wait=2)
        self.assertNotIn(b'"items"', data)

    def test_an_answer_before_the_body_ends_the_connection(self):
        for expect in ((), ("Expect: 100-continue",)):
            self.closes(request("PUT", "/v1/keys/x", "Content-Type: application/x-npy", f"Content-Length: {65 << 20}", *expect), 413)
            self.closes(request("POST", "/v1/stores", "Content-Type: application/json", f"Content-Length: {2 << 20}", *expect), 413)
            self.closes(request("POST", "/v1/nothing", "Content-Length: 10", *expect), 404)
        data, _ = self.d.raw(request("POST", "/v1/stores", "Content-Type: application/json", "Content-Length: 11", "Expect: 100-continue",
                                     "Connection: close", body=b'{"store":1}'))
        self.assertEqual(statuses(data)[-1], 400)

    def test_a_chunked_body_is_counted_while_it_comes(self):
        def chunks(size):
            return b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(size >> 16)) + b"0\r\n\r\n"
        data, _ = self.d.raw(request("POST", "/v1/stores", "Content-Type: application/json", "Transfer-Encoding: chunked", body=chunks(1 << 20)))
        self.assertEqual(statuses(data), [413])
        try:
            data, closed = self.d.raw(request("POST", "/v1/stores", "Content-Type: application/json", "Transfer-Encoding: chunked",
                                              body=chunks(16 << 20)))
        except (BrokenPipeError, ConnectionResetError):
            data, closed = b"", True
        self.assertTrue(closed and statuses(data) in ([], [413]), data[:200])
        good = b'{"store": "chunks", "type": "dist_async"}'
        data, _ = self.d.raw(request("POST", "/v1/stores", "Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close",
                                     body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(good), good)))
        self.assertEqual(statuses(data), [201])

    def test_names_of_other_machines_are_refused(self):
        for host, status in (("127.0.0.1", 200), ("127.0.0.1:7780", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:7780", 200),
                             ("10.1.2.3", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403),
                             ("127.0.0.1:80:80", 403), ("127.0.0.1:x", 403), ("[::1", 403), ("[evil]", 403), ("user@127.0.0.1", 403),
                             ("127.0.0.1, evil.example", 403), ("a" * 300, 403), ("", 403)):
            data, _ = self.d.raw(request("GET", "/v1/info", "Connection: close", host=host or None, version="HTTP/1.1" if host else "HTTP/1.0"))
            self.assertEqual(statuses(data), [status], (host, data[:200]))
        with Running("--advertise", "store.example") as d:
            data, _ = d.raw(request("GET", "/v1/info", "Connection: close", host="store.example:7780"))
            self.assertEqual(statuses(data), [200])
        data, _ = self.d.raw(request("GET", "/livez", "Connection: close", host="pod-17.cluster"), door="probe")
        self.assertEqual(statuses(data), [200])

    def test_pages_of_other_origins_are_refused(self):
        here = f"127.0.0.1:{self.d.port()}"
        for origin, status in ((f"http://{here}", 200), (f"https://{here}", 200), ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1", 403),
                               (f"http://{here}.evil.example", 403), (f"ftp://{here}", 403), ("", 403)):
            answer = self.d.ask("GET", "/v1/info", Origin=origin, Host=here)
            self.assertEqual(answer[0], status, origin)
            self.assertNotIn("Access-Control-Allow-Origin", answer[1])

    def test_other_methods_are_405_with_what_there_is(self):
        for path, allow in (("/v1/info", "GET, HEAD"), ("/v1/stores", "GET, HEAD, POST"), ("/v1/keys/w", "GET, HEAD, PUT, DELETE"),
                            ("/v1/stores/s/updater", "GET, HEAD, PUT"), ("/v1/stores/s/reset", "POST")):
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                if method in allow:
                    continue
                status, headers, _ = self.d.ask(method, path)
                self.assertEqual((status, headers["Allow"]), (405, allow), (method, path))

    def test_an_error_without_body_keeps_the_connection(self):
        c = http.client.HTTPConnection("127.0.0.1", self.d.port(), timeout=5)
        for path, status in (("/nothing", 404), ("/v1/keys?x=1", 400), ("/v1/info", 200)):
            c.request("GET", path)
            answer = c.getresponse()
            answer.read()
            self.assertEqual((answer.status, answer.headers.get("Connection")), (status, None))
        c.close()

    def test_head_is_get_without_the_body(self):
        for path in ("/v1/info", "/v1/stores", "/", "/nothing"):
            get, head = self.d.ask("GET", path), self.d.ask("HEAD", path)
            self.assertEqual((head[0], head[2], head[1]["Content-Type"]), (get[0], b"", get[1]["Content-Type"]))

    def test_the_token_is_asked_for_everywhere_but_for_the_shell_of_the_page(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("s3cret-token-of-it")
            file.flush()
            with Running("--token-file", file.name) as d:
                routes = d.ask("GET", "/v1", Authorization="Bearer s3cret-token-of-it")[2]["items"]
                for r in routes:
                    path = re.sub(r"{\w+}", "x", r["path"])
                    for given in (None, "Bearer wrong", "Bearer s3cret-token-of-it ", "Basic s3cret-token-of-it", "s3cret-token-of-it",
                                  "Bearer", "Bearer s3cret-token-of-i"):
                        headers = {"Authorization": given} if given else {}
                        status, said, _ = d.ask(r["method"], path, **headers)
                        if path.startswith("/v1"):
                            self.assertEqual((status, said["WWW-Authenticate"]), (401, "Bearer"), (r, given))
                        else:
                            self.assertNotEqual(status, 401, r)
                self.assertEqual(d.ask("GET", "/v1/info", Authorization="bearer s3cret-token-of-it")[0], 200)
                self.assertEqual(d.ask("GET", "/v1/info", Authorization="Bearer s3cret-token-of-it", Host="any.example")[0], 200)
                self.refused(d.ask("POST", "/v1/stores", b"{}", Content_Type="application/json"), 401, "invalid-token", "missing")


    def test_a_header_with_a_nul_is_no_token(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("s3cret-token-of-it")
            file.flush()
            with Running("--token-file", file.name) as d:
                for end in ("\0", "\0x", "\0\0", "\t\0"):
                    got = d.raw(request("GET", "/v1/info", "Authorization: Bearer s3cret-token-of-it" + end,
                                        "Connection: close"), wait=20)[0]
                    self.assertEqual(statuses(got), [400], end)
                    got = d.raw(request("GET", "/v1/info", "Authorization: Bearer s3cret-token-of-it" + end), wait=20)
                    self.assertEqual((statuses(got[0]), got[1]), ([400], True), end)  # nobody knows what follows

    def test_a_new_connection_is_served_however_many_of_its_address_are_idle(self):
        with Running() as d, contextlib.ExitStack() as held:
            for door, path in (("admin", "/v1/info"), ("probe", "/livez")):
                for i in range(300):
                    s = held.enter_context(socket.create_connection(("127.0.0.1", d.port(door)), 20))
                    s.settimeout(20)
                    s.sendall(request("GET", path))
                    self.assertEqual(s.recv(15, socket.MSG_WAITALL), b"HTTP/1.1 200 OK", (door, i))
                self.assertEqual(d.ask("GET", path, door=door)[0], 200)

    def test_a_connection_ends_with_the_tenth_wrong_token(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("s3cret-token-of-it")
            file.flush()
            with Running("--token-file", file.name) as d:
                ask = request("GET", "/v1/info", "Authorization: Bearer wrong")
                got, closed = d.raw(ask * 30, wait=20)
                self.assertEqual((statuses(got), closed), ([401] * 10, True))
                without = d.raw(request("GET", "/v1/info") * 30 + request("GET", "/", "Connection: close"), wait=20)[0]
                self.assertEqual(statuses(without), [401] * 30 + [200])  # a page that has to ask for it
                right = request("GET", "/v1/info", "Authorization: Bearer s3cret-token-of-it", "Connection: close")
                self.assertEqual(statuses(d.raw(ask * 9 + right, wait=20)[0]), [401] * 9 + [200])


class Page(Case):
    def test_the_page_its_script_and_its_looks(self):
        for path, kind in (("/", "text/html"), ("/ui/page.css", "text/css"), ("/ui/page.js", "text/javascript")):
            status, headers, body = self.d.ask("GET", path)
            self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, kind))
            self.assertGreater(len(body), 500)
            policy = headers["Content-Security-Policy"]
            for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
                self.assertIn(rule, policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertNotRegex(body.decode(), r"(?i)(src|href)=.?https?://|innerHTML|\bstyle=|\bon\w+=")

    def test_each_error_code_has_a_page(self):
        answer = self.d.ask("GET", "/v1/keys/nothing")
        said = self.d.ask("GET", answer[2]["type"])
        self.assertEqual((said[0], said[2]["code"], said[2]["status"]), (200, "no-such-key", 404))
        self.refused(self.d.ask("GET", "/problems/nonsense"), 404, "no-such-path")


LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\})? (\S+)$')


def parse_metrics(text):
    """{name: {labels: value}}; AssertionError where Prometheus would complain."""
    metrics, types, helps = {}, {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, help_ = line[7:].split(" ", 1)
            assert name not in helps and help_.strip(), line
            helps.add(name)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name in helps and name not in types and kind in ("counter", "gauge", "histogram"), line
            assert kind != "counter" or name.endswith("_total"), line
            assert kind == "counter" or not name.endswith("_total"), line
            types[name] = kind
        else:
            match = LINE.match(line)
            assert match, line
            name, labels, value = match.groups()
            family = re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in types else name
            assert family in types and family == list(types)[-1], line
            assert labels not in metrics.setdefault(name, {}), line
            metrics[name][labels] = float(value)
    for name, kind in types.items():
        if kind != "histogram":
            continue
        buckets = list(metrics[name + "_bucket"].values())
        assert buckets == sorted(buckets) and '{le="+Inf"}' in metrics[name + "_bucket"]
        assert buckets[-1] == metrics[name + "_count"][None]
    return metrics


class Metrics(Case):
    def scrape(self, tries=30):
        status, headers, body = self.d.ask("GET", "/metrics", door="probe")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        metrics = parse_metrics(body.decode())
        # A core that is kept waiting by a busy machine lets its last numbers be told.
        return metrics if metrics["paramd_core_answers"][None] == 1 or tries == 0 else self.scrape(tries - 1)

    def test_it_counts_what_happens(self):
        self.d.ask("POST", "/v1/stores", {"store": 'a"b\\c', "type": "dist_async"})
        before = self.scrape()
        self.made("/v1/stores/a%22b%5Cc/keys/w", {"data": [1, 2]})
        for _ in range(3):
            self.d.ask("GET", "/v1/keys/none")
        self.d.ask("GET", "/nothing")
        after = self.scrape()
        row = '{store="a\\"b\\\\c"}'
        self.assertEqual(after["paramd_keys"][row] - before["paramd_keys"][row], 1)
        key = '{route="/v1/keys/{key}",method="GET",code="404"}'
        self.assertEqual(after["paramd_http_requests_total"][key] - before["paramd_http_requests_total"].get(key, 0), 3)
        self.assertGreaterEqual(after["paramd_http_requests_total"]['{route="none",method="any",code="404"}'], 1)
        self.assertEqual(after["paramd_core_answers"][None], 1)
        self.assertGreater(after["process_resident_memory_bytes"][None], 1e6)
        self.assertLess(abs(after["process_start_time_seconds"][None] - time.time()), 3600)
        self.assertGreater(after["process_open_fds"][None], 3)

    def test_the_start_time_is_the_same_at_each_scrape(self):
        self.assertEqual(len({self.scrape()["process_start_time_seconds"][None] for _ in range(30)}), 1)

    @unittest.skipUnless(shutil.which("promtool"), "it needs promtool: package prometheus")
    def test_promtool_has_nothing_to_say(self):
        text = self.d.ask("GET", "/metrics", door="probe")[2]
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=20)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))


class Manual(Case):
    def test_the_manual_has_a_section_for_each_route_and_no_other(self):
        with open(MANUAL, encoding="utf-8") as f:
            heads = [part.strip() for line in f if line.startswith("### ") for part in line[4:].split("·")]
        routes = [f"{r['method']} {r['path']}" for r in self.d.ask("GET", "/v1")[2]["items"]]
        routes += [f"GET {path}" for path in ("/livez", "/readyz", "/metrics")]
        self.assertEqual(sorted(heads), sorted(routes))

    @unittest.skipUnless(shutil.which("curl"), "it needs curl: package curl")
    def test_the_lines_of_the_manual_work_in_their_order(self):
        with open(MANUAL, encoding="utf-8") as f:
            lines = re.findall(r"^    \$ (.+)$", f.read(), re.M)
        self.assertGreater(len(lines), 10)
        with Running() as d, tempfile.TemporaryDirectory() as folder:
            np.save(os.path.join(folder, "w.npy"), np.ones((2, 2), "float32"))
            for line in lines:
                line = line.replace("127.0.0.1:7780", f"127.0.0.1:{d.port()}").replace("127.0.0.1:7781", f"127.0.0.1:{d.port('probe')}")
                done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=20, cwd=folder)
                self.assertEqual(done.returncode, 0, (line, done.stderr))
                self.assertNotIn('"type": "/problems/', done.stdout, line)


class Slow(unittest.TestCase):
    """These wait for the daemon's own time-outs, side by side."""

    def test_slow_clients_are_cut_and_nobody_else_is_hurt(self):
        with Running() as d:
            big = np.zeros(8 << 20, "uint8")
            self.assertEqual(d.ask("PUT", "/v1/keys/big", npy(big), Content_Type="application/x-npy")[0], 201)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                jobs = {"headers": pool.submit(self.drip_headers, d), "body": pool.submit(self.drip_body, d),
                        "answer": pool.submit(self.read_slowly, d), "idle": pool.submit(self.idle, d), "mute": pool.submit(self.mute, d)}
                for _ in range(20):
                    began = time.monotonic()
                    self.assertEqual(d.ask("GET", "/v1/info")[0], 200)
                    self.assertEqual(d.ask("GET", "/readyz", door="probe")[0], 200)
                    self.assertLess(time.monotonic() - began, 2)
                    time.sleep(0.2)
                for name, job in jobs.items():
                    job.result()
            cut = parse_metrics(d.ask("GET", "/metrics", door="probe")[2].decode())["paramd_http_cut_connections_total"]
            for phase in ("headers", "body", "answer", "idle"):
                self.assertGreaterEqual(cut[f'{{phase="{phase}"}}'], 1, phase)
            self.assertEqual(d.ask("GET", "/v1/keys/big/value?format=raw")[2], big.tobytes())

    def connect(self, d, buffer=None):
        s = socket.socket()
        if buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        s.connect(("127.0.0.1", d.port()))
        return s

    def until_closed(self, s, send, limit):
        began = time.monotonic()
        while time.monotonic() - began < limit:
            try:
                if send:
                    s.sendall(send)
                s.settimeout(0.5)
                if s.recv(512) == b"":
                    break
            except socket.timeout:
                continue
            except OSError:
                break
        s.close()
        return time.monotonic() - began

    def drip_headers(self, d):
        s = self.connect(d)
        s.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nX: ")
        self.assertLess(self.until_closed(s, b"a", 20), 15)

    def mute(self, d):
        self.assertLess(self.until_closed(self.connect(d), b"", 20), 15)

    def drip_body(self, d):
        s = self.connect(d)
        s.sendall(request("PUT", "/v1/keys/slow", "Content-Type: application/x-npy", "Content-Length: 1000000"))
        self.assertLess(self.until_closed(s, b"\0" * 100, 30), 25)

    def read_slowly(self, d):
        s = self.connect(d, 4096)
        s.sendall(request("GET", "/v1/keys/big/value?format=raw"))
        began = time.monotonic()
        while time.monotonic() - began < 60:
            time.sleep(0.5)
            try:
                if s.recv(256) == b"":
                    break
            except OSError:
                break
            cut = parse_metrics(d.ask("GET", "/metrics", door="probe")[2].decode())["paramd_http_cut_connections_total"]
            if cut['{phase="answer"}']:
                break
        s.close()
        self.assertLess(time.monotonic() - began, 50)

    def idle(self, d):
        s = self.connect(d)
        s.sendall(request("GET", "/v1/info"))
        data, closed = read_all(s, 45)
        s.close()
        self.assertEqual((statuses(data), closed), ([200], True))

    def test_one_address_has_32_connections_and_others_are_served(self):
        with Running() as d:
            held = [socket.create_connection(("127.0.0.1", d.port()), 5) for _ in range(32)]
            extra = socket.create_connection(("127.0.0.1", d.port()), 5)
            self.assertTrue(read_all(extra, 3)[1])
            other = socket.create_connection(("127.0.0.1", d.port()), 5, source_address=("127.0.0.2", 0))
            other.sendall(request("GET", "/v1/info", "Connection: close"))
            self.assertEqual(statuses(read_all(other, 5)[0]), [200])
            self.assertEqual(d.ask("GET", "/livez", door="probe")[0], 200)
            for s in (*held, extra, other):
                s.close()

    def test_200_slow_clients_and_a_trainer(self):
        with Running() as d:
            d.ask("POST", "/v1/stores", {"store": "t", "type": "dist_async"})
            worker = paramd.kv.create("dist_async", url=d.fields["data"], store="t", worker_name="ann")
            self.assertEqual(d.ask("PUT", "/v1/stores/t/keys/w", {"data": [0] * 64})[0], 201)
            self.assertEqual(d.ask("PUT", "/v1/stores/t/updater", {"type": "add"}, If_Match="*")[0], 200)
            worker.init("w", np.zeros(64, "float32"))  # it is there: this value does not count
            slow = []
            for i in range(200):
                s = socket.create_connection(("127.0.0.1", d.port()), 5, source_address=(f"127.0.0.{10 + i // 25}", 0))
                s.sendall(b"PUT /v1/keys/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n" + (b"\r\n" if i % 2 else b"X: "))
                slow.append(s)
            began, steps = time.monotonic(), 0
            while time.monotonic() - began < 6:
                steps += 1
                worker.push("w", np.ones(64, "float32"))
                if steps % 50 == 0:
                    for s in slow:
                        try:
                            s.send(b"a")
                        except OSError:
                            pass
                    self.assertEqual(d.ask("GET", "/readyz", door="probe")[0], 200)
            self.assertGreater(steps, 100)
            np.testing.assert_array_equal(worker.pull("w"), np.full(64, steps, "float32"))
            said = d.ask("GET", "/v1/stores/t/keys/w/value")[2]
            self.assertEqual((said["data"], said["version"]), ([steps] * 64, steps + 1))
            for s in slow:
                s.close()
            worker.close()


class Ends(unittest.TestCase):
    def test_with_few_descriptors_it_stays_alive_and_calm(self):
        with Running(files=64) as d:
            held = []
            for door in ("admin", "probe", "data", "bulk") * 40:
                s = socket.socket()
                s.settimeout(2)
                try:
                    s.connect(("127.0.0.1", d.port(door)))
                    held.append(s)
                except OSError:
                    s.close()
            time.sleep(0.5)
            def cpu():
                with open(f"/proc/{d.proc.pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            before = cpu()
            time.sleep(2)
            with open(PARAMD, "rb") as f:
                capped = not re.search(b"__[at]san_init", f.read())  # sanitizers bring an accept4 of their own
            if capped:
                self.assertLess(cpu() - before, 1.0, "it spins")
            self.assertIsNone(d.proc.poll())
            for s in held:
                s.close()
            for _ in range(50):
                try:
                    if d.ask("GET", "/v1/info")[0] == 200 and d.ask("GET", "/livez", door="probe")[0] == 200:
                        break
                except OSError:
                    pass
                time.sleep(0.2)
            self.assertEqual(d.ask("GET", "/v1/info")[0], 200)
            self.assertEqual(d.ask("GET", "/livez", door="probe")[0], 200)

    def test_while_it_drains_it_is_not_ready_and_it_ends_with_requests_in_hand(self):
        d = Running("--drain-timeout", "5")
        s = socket.create_connection(("127.0.0.1", d.port()), 5)
        s.sendall(request("PUT", "/v1/keys/x", "Content-Type: application/x-npy", "Content-Length: 1000000"))
        over = threading.Event()

        def go_on():  # who stands still is not waited for
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    s.sendall(b"x")

        sender = threading.Thread(target=go_on)
        sender.start()
        for _ in range(100):
            if b"_body_bytes" in d.ask("GET", "/metrics", door="probe")[2]:
                break
        time.sleep(0.3)
        d.proc.send_signal(signal.SIGTERM)
        seen = None
        for _ in range(100):
            try:
                seen = d.ask("GET", "/readyz", door="probe")[0]
            except OSError:
                break
            if seen == 503:
                break
            time.sleep(0.02)
        self.assertEqual(seen, 503)
        self.assertEqual(d.ask("GET", "/livez", door="probe")[0], 200)
        self.assertEqual(d.ask("GET", "/v1/info")[0], 200)
        self.assertEqual(d.ask("PUT", "/v1/keys/late", {"data": [1]})[2]["code"], "draining")
        began = time.monotonic()
        d.stop()
        self.assertLess(time.monotonic() - began, 8)
        over.set()
        sender.join()
        s.close()

    def test_a_second_signal_ends_it_at_once_with_connections_open(self):
        d = Running("--drain-timeout", "30")
        held = [socket.create_connection(("127.0.0.1", d.port()), 5) for _ in range(8)]
        held[0].sendall(request("PUT", "/v1/keys/x", "Content-Length: 1000"))
        time.sleep(0.2)
        d.proc.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        began = time.monotonic()
        d.stop()
        self.assertLess(time.monotonic() - began, 5)
        for s in held:
            s.close()

    def test_bodies_have_a_budget_of_their_own(self):
        with Running() as d:
            value = npy(np.zeros(60 << 20, "uint8"))
            half = value[:len(value) - 1]
            held = []
            for i in range(10):
                s = socket.create_connection(("127.0.0.1", d.port()), 5)
                s.sendall(request("PUT", f"/v1/keys/k{i}", "Content-Type: application/x-npy", f"Content-Length: {len(value)}", "Connection: close"))
                s.sendall(half)
                held.append(s)
            codes = []
            for s in held:
                s.sendall(value[-1:])
                codes += statuses(read_all(s, 10)[0][:100])
                s.close()
            self.assertEqual(set(codes), {201, 429})
            self.assertEqual(d.ask("GET", "/v1/info")[0], 200)


if __name__ == "__main__":
    counted.main()
