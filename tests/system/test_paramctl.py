"""paramctl, every command against a real daemon: what people read, what programs read, exit statuses, errors. Ends with
"N passed, N failed"."""
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np  # noqa: E402

import paramd  # noqa: E402
import paramd.daemon  # noqa: E402

PARAMCTL = os.environ.get("PARAMCTL_BIN", os.path.join(ROOT, "build", "paramctl"))
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PARAMD_")}
OK, ERROR, USAGE, NOT_FOUND, CONFLICT, AUTH, UNAVAILABLE = range(7)
COMMANDS = ("info", "health", "stores", "store", "keys", "get", "put", "delete", "push", "pull", "updater", "workers", "rounds", "top", "bench",
            "describe", "call")


class Base(unittest.TestCase):
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.daemon = paramd.daemon.Daemon(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        if cls.daemon.stop() != 0:
            raise AssertionError(f"the daemon ended badly\n{cls.daemon.log(100)}")
        cls.daemon.__exit__()
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def ctl(self, *arguments, status=OK, says=None, env=None, stdin=None):
        """stdout, after the exit status and what stderr says have been checked."""
        done = subprocess.run([PARAMCTL, *arguments], capture_output=True, text=True, timeout=60, input=stdin,
                              env={**CLEAN, "PARAMD_URL": self.daemon.url, **(env or {})})
        self.assertEqual(done.returncode, status, f"{arguments}: {done.stdout}{done.stderr}")
        if says is not None:
            self.assertIn(says, done.stderr)
        if status == OK:
            self.assertEqual(done.stderr, "")
        return done.stdout

    def json(self, *arguments, **more):
        return json.loads(self.ctl(*arguments, "--json", **more))

    def table(self, *arguments):
        """Rows as lists, the head first."""
        return [re.split(r" {2,}", line.strip()) for line in self.ctl(*arguments).splitlines()]


HOSTILE = "\x1b[2J\x07\x7f\x9b\u202eevil\u2066"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class NamesThatATerminalWouldObey(Base):
    def test_no_command_prints_them(self):
        key, store, network = f"k{HOSTILE}", f"s{HOSTILE}", self.path(f"net{HOSTILE}.json")
        nodes = [{"op": "null", "name": f"data{HOSTILE}", "inputs": []},
                 {"op": "Activation", "name": f"act{HOSTILE}", "attrs": {"act_type": "relu"}, "inputs": [[0, 0, 0]]}]
        with open(network, "w", encoding="utf-8") as f:
            json.dump({"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]]}, f)
        with paramd.create("dist_async", url=self.daemon.url, worker_name=f"w{HOSTILE}") as kv:
            kv.init(key, np.ones(3, np.float32))
            for arguments in (
                    ["info"], ["health"], ["stores"], ["store", "create", store, "dist_async"],
                    ["store", "reset", store], ["store", "delete", store], ["store", "delete", store],
                    ["stores", "--url", f"tcp://{HOSTILE}:1"], ["keys"], ["keys", key], ["get", key], ["get", HOSTILE],
                    ["put", key, "[1, 2, 3]"], ["put", key, HOSTILE], ["put", key, "[1]"], ["push", key, "[1, 2, 3]"],
                    ["push", HOSTILE, "[1]"], ["pull", key], ["pull", key, HOSTILE], ["stats", key],
                    ["stats", HOSTILE], ["updater"], ["updater", "set", HOSTILE], ["updater", "check", HOSTILE],
                    ["updater", "set", json.dumps({"type": HOSTILE})],
                    ["updater", "set", json.dumps({"type": "sgd", HOSTILE: 1})],
                    ["updater", "set", json.dumps({"type": "sgd", "overrides": {key: {"learning_rate": 1}}})],
                    ["updater"], ["workers"], ["workers", "dismiss", HOSTILE], ["rounds"], ["top", "--once"],
                    ["viz", network, "--text"], ["viz", "--text"], ["viz", network, "--format", HOSTILE],
                    ["viz", HOSTILE], ["summary", network], ["summary", "--view", "mxnet", network], ["summary"],
                    ["describe", HOSTILE], ["call", HOSTILE], ["call", "List", '{"store": 0}'],
                    ["call", "GetStore", json.dumps({"store": HOSTILE})], [HOSTILE], [f"--{HOSTILE}"],
                    ["keys", "--store", HOSTILE], ["delete", HOSTILE], ["delete", key]):
                for more in ([], ["--json"]):
                    with self.subTest(arguments=arguments + more):
                        done = subprocess.run([PARAMCTL, *arguments, *more], capture_output=True, timeout=60,
                                              env={**CLEAN, "PARAMD_URL": self.daemon.url})
                        said = (done.stdout + done.stderr).decode()
                        self.assertNotEqual(said, "")
                        self.assertIsNone(OBEYED.search(said), ascii(said))


class Usage(Base):
    def test_help_lists_all_commands_and_each_has_its_own(self):
        text = self.ctl("--help")
        self.assertLessEqual(max(map(len, text.splitlines())), 120)
        for command in COMMANDS:
            self.assertRegex(text, rf"(?m)^  {command} ")
            self.assertTrue(self.ctl(command, "--help").startswith(f"usage: paramctl {command}"))
        self.assertIn("6 unavailable", text)
        self.assertRegex(self.ctl("--version"), r"^paramd \d+\.\d+\.\d+\n$")

    def test_what_is_written_wrongly_is_told_with_the_nearest(self):
        for arguments, words in (((), "usage: paramctl"), (("gte", "w"), "did you mean get?"), (("xyzzy",), "see --help"),
                                 (("get",), "usage: paramctl get KEY"), (("get", "a", "b"), "usage: paramctl get KEY"),
                                 (("info", "--jsno"), "did you mean --json?"), (("info", "-j"), "two dashes"),
                                 (("info", "--url"), "--url needs URL"), (("get", "w", "--limit", "3"), "no flag --limit"),
                                 (("--limit", "3", "get", "w"), "no flag --limit"), (("keys", "--limit", "x"), "no number"),
                                 (("info", "--timeout", "0"), "no number of seconds"), (("info", "--json=1"), "takes no value"),
                                 (("workers", "sack", "w0"), "dismiss"), (("store", "drop", "s"), "store delete NAME"),
                                 (("store", "create"), "store create NAME"), (("store", "delete", "a", "b"), "store delete NAME"),
                                 (("store", "create", "s", "{"), "JSON object"), (("updater", "put"), "usage: paramctl updater"),
                                 (("get", "w", "--key-type", "x"), "int or str"), (("bench", "--size", "1"), "--size"),
                                 (("call", "List", "{"), "no JSON object"), (("call", "List", "[]"), "no JSON object"),
                                 (("call", "Push"), "carries values")):
            self.ctl(*arguments, status=USAGE, says=words)

    def test_nobody_there_is_unavailable_and_says_how_to_start_one(self):
        for command in ("info", "health", "stores", "top"):
            self.ctl(command, "--url", "tcp://127.0.0.1:1", "--timeout", "0.5", status=UNAVAILABLE,
                     says="paramctl: no connection to tcp://127.0.0.1:1 for 0.5 s")
            self.ctl(command, "--url", "tcp://127.0.0.1:1", "--timeout", "0.1", status=UNAVAILABLE, says="paramd --listen")

    def test_a_url_that_is_none_is_an_error(self):
        self.ctl("info", "--url", "http://127.0.0.1:1", status=ERROR, says="http://127.0.0.1:1")


class Looking(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.kv = paramd.kv.create("dist_async", url=cls.daemon.url, worker_name="trainer")
        cls.kv.init("w", np.arange(6, dtype="float32").reshape(2, 3) / 8)
        for i in range(25):
            cls.kv.init(f"layer{i:02}", np.zeros(3, "float32"))
        cls.sync = paramd.kv.create("dist_sync", url=cls.daemon.url, store="sync", num_workers=2, start_timeout=600,
                                    round_timeout=600, worker_name="one")
        cls.other = paramd.kv.create("dist_sync", url=cls.daemon.url, store="sync", worker_name="two")
        cls.sync.init(3, np.zeros(2, "float32"))
        cls.sync.push(3, np.ones(2, "float32"))

    @classmethod
    def tearDownClass(cls):
        for kv in (cls.kv, cls.other, cls.sync):
            kv.close()
        super().tearDownClass()

    def test_info(self):
        text = self.ctl("info")
        self.assertRegex(text, r"(?m)^device +cpu$")
        self.assertRegex(text, r"(?m)^pushes +\d+ \(\d+ repeats\)")
        self.assertEqual(self.json("info")["daemon"]["device"], "cpu")

    def test_health(self):
        self.assertEqual(self.ctl("health"), "serving\n")
        self.assertEqual(self.json("health")["status"], "serving")

    def test_stores(self):
        head, *rows = self.table("stores")
        self.assertEqual(head, ["STORE", "TYPE", "KEY TYPE", "KEYS", "WORKERS", "DEAD"])
        self.assertIn(["default", "dist_async", "str", "26", "1", "0"], rows)
        self.assertIn(["sync", "dist_sync", "int", "1", "2", "0"], rows)
        self.assertEqual({row["store"] for row in self.json("stores")["items"]}, {"default", "sync"})

    def test_looking_joins_no_store_and_creates_none(self):
        for command in (("keys",), ("get", "w"), ("workers",), ("rounds",), ("updater",), ("top", "--once")):
            self.ctl(*command)
            self.ctl(*command, "--store", "nowhere", status=OK if command[0] == "top" else NOT_FOUND)
        names = [row["name"] for row in self.json("workers")["items"]]
        self.assertEqual(names, ["trainer"])
        self.assertEqual({row["store"] for row in self.json("stores")["items"]}, {"default", "sync"})

    def test_keys_by_prefix_in_pages_and_as_json(self):
        head, *rows = self.table("keys")
        self.assertEqual(head, ["KEY", "DTYPE", "SHAPE", "VERSION", "UPDATES", "ID", "DEVICE"])
        self.assertEqual(rows[-1][:5], ["w", "float32", "(2, 3)", "1", "0"])
        self.assertEqual(len(self.table("keys", "layer1")), 11)
        text = self.ctl("keys", "--limit", "5")
        self.assertEqual(len(text.splitlines()), 7)
        self.assertIn("... 21 more; --limit 0 lists all", text)
        listed = self.json("keys", "--limit", "0")
        self.assertEqual((len(listed["items"]), listed["total"]), (26, 26))
        self.assertEqual(self.json("keys", "--store", "sync")["items"][0]["key"], 3)
        self.assertEqual(self.json("keys", env={"PARAMD_STORE": "sync"})["items"][0]["key"], 3)
        self.ctl("keys", "--store", "nowhere", status=NOT_FOUND, says="no store 'nowhere'")

    def test_workers(self):
        head, *rows = self.table("workers", "--store", "sync")
        self.assertEqual(head, ["RANK", "NAME", "STATE", "EPOCH", "SEEN"])
        self.assertEqual([row[:3] for row in rows], [["0", "one", "member"], ["1", "two", "member"]])

    def test_only_a_dead_worker_can_be_dismissed(self):
        self.ctl("workers", "dismiss", "two", "--store", "sync", status=ERROR, says="alive")
        self.ctl("workers", "dismiss", "nobody", "--store", "sync", status=NOT_FOUND)
        self.ctl("workers", "dismiss", "7", "--store", "sync", status=NOT_FOUND)

    def test_rounds_name_the_missing(self):
        head, row = self.table("rounds", "--store", "sync")
        self.assertEqual(head, ["KEY", "STEP", "OPEN FOR", "HAS", "WAITS FOR"])
        self.assertEqual((row[0], row[1], row[3]), ("3", "1", "1"))
        self.assertIn("two", row[4])
        self.assertEqual(self.json("rounds", "--store", "sync")["items"][0]["missing"][0]["name"], "two")
        self.assertIn("nothing is open", self.ctl("rounds"))

    def test_top_prints_one_screen_where_there_is_no_terminal(self):
        text = self.ctl("top", "--interval", "0.1")
        self.assertRegex(text, r"(?m)^pushes +\d+/s")
        self.assertRegex(text, r"(?m)^sync +dist_sync +1 +2 +0$")
        self.assertRegex(text, r"(?m)^sync +3 +1 .* s +.*two")
        self.assertNotIn("\033", text)
        self.assertEqual(len(self.json("top", "--interval", "0.1")["rounds"]), 1)

    def on_terminal(self, *arguments, end):
        """Runs it on a terminal; `end` is done once it has drawn. Its status, and all it wrote."""
        child, terminal = pty.fork()
        if child == 0:
            os.execve(PARAMCTL, [PARAMCTL, *arguments], {**CLEAN, "PARAMD_URL": self.daemon.url, "TERM": "xterm"})
        seen, until = b"", time.monotonic() + 20
        try:
            while time.monotonic() < until:
                if select.select([terminal], [], [], 0.2)[0]:
                    seen += os.read(terminal, 65536)
                if end is not None and b"q ends" in seen:
                    end(child, terminal)
                    end = None
        except OSError:  # it has closed its side
            pass
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode()

    def test_top_on_a_terminal_ends_with_q_and_with_ctrl_c_and_gives_the_screen_back(self):
        for end in (lambda child, terminal: os.write(terminal, b"q"), lambda child, terminal: os.write(terminal, b"\x03"),
                    lambda child, terminal: os.kill(child, signal.SIGTERM)):
            status, seen = self.on_terminal("top", end=end)
            self.assertEqual(status, OK, seen)
            self.assertIn("\033[1mSTORE", seen)
            self.assertTrue(seen.endswith("\033[?25h\033[?1049l"), seen[-40:])

    def test_no_color(self):
        os.environ["NO_COLOR"] = "1"
        self.addCleanup(os.environ.pop, "NO_COLOR")
        CLEAN["NO_COLOR"] = "1"
        self.addCleanup(CLEAN.pop, "NO_COLOR")
        _, seen = self.on_terminal("stores", end=None)
        self.assertNotIn("\033", seen)

    def test_describe(self):
        self.assertIn("paramd.v1.Push\n", self.ctl("describe"))
        self.assertIn("u64   key", self.ctl("describe", "Push"))
        self.assertIn("one JSON document each way", self.ctl("describe", "paramd.v1.List"))
        self.ctl("describe", "Nope", status=NOT_FOUND)

    def test_call(self):
        self.assertEqual(json.loads(self.ctl("call", "List", '{"store": "default", "limit": 2}'))["total"], 26)
        self.assertEqual(json.loads(self.ctl("call", "Health"))["status"], "serving")
        self.ctl("call", "Nope", status=NOT_FOUND, says="paramctl describe")
        self.ctl("call", "List", '{"stor": "default"}', status=ERROR, says="store")
        self.ctl("call", "Stats", '{"store": "nowhere"}', status=NOT_FOUND)

    def test_an_error_as_json(self):
        done = subprocess.run([PARAMCTL, "get", "nope", "--json"], capture_output=True, text=True, timeout=60,
                              env={**CLEAN, "PARAMD_URL": self.daemon.url})
        self.assertEqual(done.returncode, NOT_FOUND)
        self.assertEqual(json.loads(done.stderr)["reason"], "no-such-key")
        self.assertEqual(done.stdout, "")


class Values(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.kv = paramd.kv.create("dist_async", url=cls.daemon.url)
        cls.values = {
            "f32": np.array([[0.1, -2.5, 1e-30], [3, 4, 5]], "float32"), "f64": np.array([0.1, 1 / 3], "float64"),
            "i8": np.array([-128, 127], "int8"), "u8": np.array([0, 255], "uint8"), "i32": np.array([-2**31, 2**31 - 1], "int32"),
            "i64": np.array([[[2**53 + 1]]], "int64"), "scalar": np.array(1.5, "float32"), "none": np.zeros((0, 3), "float32"),
            "odd": np.array([np.nan, np.inf, -np.inf, 1], "float32"),
            "tens": np.array([10, 100, 0.5], "float32"), "8": np.array([8], "float32"), "changes": np.array([1, 2], "float32"), "slow": np.array([1], "float32"),
            "large": np.arange(3 << 20, dtype="float32").reshape(3, 1024, 1024),
        }
        for name, value in cls.values.items():
            cls.kv.init(name, value)
        cls.kv.init("ra/b c\n%", np.zeros(1, "float32"))

    @classmethod
    def tearDownClass(cls):
        cls.kv.close()
        super().tearDownClass()

    def test_get_prints_small_ones_whole_and_large_ones_abbreviated(self):
        self.assertEqual(self.ctl("get", "f32"), "f32  float32 (2, 3)  version 1\n[[  0.1  -2.5 1e-30]\n [    3     4     5]]\n")
        self.assertEqual(self.ctl("get", "scalar"), "scalar  float32 ()  version 1\n1.5\n")
        self.assertEqual(self.ctl("get", "none"), "none  float32 (0, 3)  version 1\n[]\n")
        self.assertIn("[ nan  inf -inf    1]", self.ctl("get", "odd"))
        self.assertIn("[ 10 100 0.5]", self.ctl("get", "tens"))
        text = self.ctl("get", "large")
        self.assertLess(len(text), 3000)
        self.assertRegex(text, r"\[\[\[ +0 +1 +2 \.\.\. +1021 +1022 +1023\]")

    def test_get_as_json_reads_back_exactly(self):
        for name, value in self.values.items():
            if name in ("large", "odd", "changes", "slow"):
                continue
            j = self.json("get", name)
            self.assertEqual((j["key"], j["shape"], j["dtype"], j["version"]), (name, list(value.shape), str(value.dtype), 1))
            np.testing.assert_array_equal(np.array(j["data"], value.dtype).reshape(value.shape), value)
        self.assertEqual(self.json("get", "odd")["data"], ["NaN", "Infinity", "-Infinity", 1])

    def test_get_as_npy_reads_back_exactly_in_numpy(self):
        for name, value in self.values.items():
            if name in ("changes", "slow"):
                continue
            self.ctl("get", name, "--npy", self.path("x.npy"))
            read = np.load(self.path("x.npy"))
            self.assertEqual((read.dtype, read.shape), (value.dtype, value.shape))
            np.testing.assert_array_equal(read, value)

    def test_get_of_what_is_not_there(self):
        self.ctl("get", "nope", status=NOT_FOUND, says="store 'default' has no key 'nope'")
        self.ctl("get", "f32", "--store", "nowhere", status=NOT_FOUND, says="nowhere")
        self.ctl("get", "f32", "--npy", "/nonexistent/x.npy", status=ERROR, says="No such file")

    def test_stats_of_a_key(self):
        rows = self.table("stats", "odd")
        value = next(r for r in rows if r[0] == "value")
        self.assertEqual((value[1], float(value[2]), value[6:8]), ("1", 1.0, ["1", "2"]))
        self.assertIn("1 of float32", rows[0])
        j = self.json("stats", "f64")
        self.assertAlmostEqual(j["value"]["norm"], np.linalg.norm(self.values["f64"].astype("float64")), places=6)
        self.assertEqual((j["gradient"], j["update_ratio"]), (None, None))
        self.ctl("stats", "nope", status=NOT_FOUND, says="'nope'")
        self.ctl("stats", "f32", "--store", "nowhere", status=NOT_FOUND, says="nowhere")

    def test_pull_summarises_several_and_writes_files(self):
        head, *rows = self.table("pull", "f64", "odd", "none", "large")
        self.assertEqual(head[0::2], ["KEY", "VERSION", "MEAN", "NAN/INF"])
        self.assertEqual(rows[1], ["odd", "float32 (4,)", "1", "1", "1", "1", "3"])
        self.assertEqual(rows[2][3:], ["-", "-", "-", "0"])
        self.ctl("pull", "i64", "ra/b c\n%", "--into", self.path("model"))
        self.assertEqual(sorted(os.listdir(self.path("model"))), ["i64.npy", "ra%2Fb%20c%0A%25.npy"])
        self.assertEqual(self.json("pull", "f64")["items"][0]["version"], 1)
        self.ctl("pull", "f64", "nope", status=NOT_FOUND, says="nope")

    def test_a_name_cannot_write_on_the_terminal(self):
        self.assertIn("ra/b c?%", self.ctl("keys", "ra"))

    def test_put_replaces_and_creates(self):
        self.ctl("call", "Create", '{"store": "plain", "type": "dist_sync", "num_workers": 2}')
        plain = ("--store", "plain")
        self.assertIn("created; version 1", self.ctl("put", "new", "[[1, 2], [3, 4.5]]", *plain))
        self.assertEqual(self.json("get", "new", *plain)["data"], [[1, 2], [3, 4.5]])
        self.assertIn("replaced; version 2", self.ctl("put", "new", '[["NaN", 2], [3, -1]]', *plain))
        self.assertEqual(self.json("get", "new", *plain)["data"], [["NaN", 2], [3, -1]])
        self.assertIn("int32 (2,)  created", self.ctl("put", "typed", "-", "--dtype", "int32", *plain, stdin="[1, 2]"))
        value = np.random.default_rng(1).random((3, 1024, 1024)).astype("float32")
        for sign in (1, -1):
            np.save(self.path("v.npy"), sign * value)
            self.ctl("put", "large", self.path("v.npy"), *plain)
            self.ctl("get", "large", "--npy", self.path("w.npy"), *plain)
            np.testing.assert_array_equal(np.load(self.path("w.npy")), sign * value)
        self.assertEqual({row["state"] for row in self.json("workers", *plain)["items"]} - {"left"}, set())

    def test_put_replaces_among_workers_and_leaves_creating_to_them(self):
        self.ctl("put", "changes", "[3, 4]")
        np.testing.assert_array_equal(self.kv.pull("changes"), np.array([3, 4], "float32"))
        self.ctl("put", "surely not there", "[1]", status=CONFLICT, says="it has workers")

    def test_put_of_what_does_not_fit_changes_nothing(self):
        with open(self.path("bad.npy"), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}")
        np.save(self.path("f.npy"), np.asfortranarray(np.ones((2, 3), "float32")))
        np.save(self.path("c.npy"), np.ones(2, "complex64"))
        np.save(self.path("cut.npy"), np.ones((2, 3), "float32"))
        os.truncate(self.path("cut.npy"), 140)
        for value, status, words in (("[1, 2]", ERROR, "shape"), ("[[1, 2, 3], [4, 5]]", USAGE, "do not have one length"),
                                     ("[[1, 2, 3], [4, 5, true]]", USAGE, "element 5"), ("[1, 2", USAGE, "no JSON"),
                                     (self.path("nope"), USAGE, "No such file"), (self.path("bad.npy"), USAGE, "bad.npy: "),
                                     (self.path("f.npy"), USAGE, "Fortran"), (self.path("c.npy"), USAGE, "elements of type '<c8'"),
                                     (self.path("cut.npy"), USAGE, "ends before")):
            self.ctl("put", "f32", value, status=status, says=words)
        self.ctl("put", "i8", "[1, 128]", status=USAGE, says="element 1")
        self.ctl("put", "f32", "[[1, 2, 3], [4, 5, 1e39]]", status=USAGE, says="element 5 of the JSON value, 1e+39, is too large")
        self.ctl("put", "f32", "[1]", "--dtype", "complex", status=USAGE, says="float32")
        self.assertEqual(self.json("get", "f32")["version"], 1)

    def test_finite_numbers_never_become_infinite(self):
        for dtype, most, beyond in (("float16", "65519", "65520"), ("bfloat16", "3.3895e38", "3.4e38"),
                                    ("float32", "3.4028235e38", "3.5e38"), ("float64", "1.7e308", None)):
            key = "most_" + dtype
            self.kv.init(key, np.zeros(3, paramd.bfloat16 if dtype == "bfloat16" else dtype))
            self.ctl("put", key, f"[{most}, -{most}, \"Infinity\"]")
            value = self.json("get", key)["data"]
            self.assertTrue(np.isfinite(value[:2]).all())
            self.assertEqual(value[2], "Infinity")
            for number in (beyond, "-" + beyond) if beyond else ():
                self.ctl("put", key, f"[1, {number}, 1]", status=USAGE, says='element 1 of the JSON value')

    def test_numbers_and_names_as_keys(self):
        self.ctl("call", "Create", '{"store": "numbers", "type": "dist_async"}')
        self.ctl("put", "7", "[1]", "--store", "numbers")
        self.assertEqual(self.json("keys", "--store", "numbers")["items"][0]["key"], 7)
        self.ctl("get", "-3", "--store", "numbers", status=NOT_FOUND)
        self.ctl("get", "w", "--store", "numbers", status=USAGE, says="numbers")
        self.assertEqual(self.json("get", "8")["key"], "8")  # among names it is one

    def test_updater_check_tells_what_a_text_needs_or_where_it_is_wrong(self):
        with open(self.path("rule.txt"), "w") as file:
            file.write("param lr = 0.1\nslot m = 0\nm = 0.9 * m + grad\nstored -= lr * m\n")
        report = json.loads(self.ctl("updater", "check", self.path("rule.txt"), "--json"))
        self.assertEqual([slot["name"] for slot in report["slots"]], ["m"])
        self.assertGreater(report["instructions"], 0)
        shown = self.ctl("updater", "check", self.path("rule.txt"))
        for line in ("20 bytes read and written for each element of float32, 4 kept", "lr          0.1",
                     "step 2   0.855, -0.21, -0.0725, 2  0.5, -1, 0.25, 0  0.95, -1.9, 0.475, 0"):
            self.assertIn(line, shown)
        with open(self.path("rule.txt"), "w") as file:
            file.write("stored += graad * 2\n")
        self.ctl("updater", "check", self.path("rule.txt"), status=ERROR, says="grad")

    def test_updater_check_alone_asks_no_daemon_and_refuses_what_a_daemon_refuses(self):
        nobody = {"PARAMD_URL": "tcp://127.0.0.1:1"}
        self.assertEqual(self.json("updater", "check", "Adam", env=nobody)["updater"]["type"], "adam")
        self.assertIn('"momentum": 0.9', self.ctl("updater", "check", '{"type": "sgd", "momentum": 0.9}', env=nobody))
        said = self.json("updater", "check", '{"type": "program", "text": "param a = 1\\nstored -= a * grad", "params": {"a": 2}}',
                         env=nobody)
        self.assertEqual(said["program"]["example"]["steps"][0]["stored"], [0, 1.5, -0.5, 2])
        rule = self.path("master.txt")
        with open(rule, "w") as file:
            file.write("slot master = 0\nmaster = grad\nstored = master")
        for wrong in ('{"type": "sgd", "lr": 1}', '{"type": "adam", "beta1": 2}', rule):
            alone = subprocess.run([PARAMCTL, "updater", "check", wrong], capture_output=True, text=True, timeout=60,
                                   env={**CLEAN, **nobody})
            asked = subprocess.run([PARAMCTL, "updater", "check", wrong, "--url", self.daemon.url], capture_output=True,
                                   text=True, timeout=60, env=CLEAN)
            self.assertEqual((alone.returncode, asked.returncode), (ERROR, ERROR), alone.stderr + asked.stderr)
            cause = alone.stderr.splitlines()[0].removeprefix(f"paramctl: {wrong}: ")
            self.assertIn(cause, asked.stderr)

    def test_updater_set_takes_the_name_of_an_updater(self):
        self.ctl("store", "create", "byname", "dist_async")
        self.ctl("updater", "set", "SGD", "--store", "byname")
        self.assertEqual(self.json("updater", "get", "--store", "byname")["updater"]["type"], "sgd")
        self.ctl("updater", "set", "sgdd", "--store", "byname", status=USAGE, says="sgdd: No such file")

    def test_updater_set_says_what_is_dropped_and_what_becomes_of_the_states(self):
        self.ctl("store", "create", "swapped", "dist_async")
        self.ctl("updater", "set", '{"type": "sgd", "momentum": 0.9}', "--store", "swapped")
        dry = self.ctl("updater", "set", "sgd", "--dry-run", "--store", "swapped")
        self.assertIn("warning: /momentum: goes from 0.9 back to its default, 0,", dry)
        self.assertEqual(self.json("updater", "get", "--store", "swapped")["updater"]["momentum"], 0.9)
        self.assertTrue(self.ctl("updater", "set", "sgd", "--store", "swapped").startswith(
            "warning: momentum 0.9 -> 0: the document does not say it, so it goes back to its default\nset; "))
        again = ("updater", "set", "sgd", "--store", "swapped")
        self.assertEqual(self.ctl(*again), "it was set already\n")
        self.assertTrue(self.ctl(*again, "--states", "reset").startswith("set; new from version"))
        self.ctl(*again, "--states", "drop", status=ERROR, says="keep, reset or convert")

    def test_updater_check_shows_what_is_not_finite(self):
        rule = self.path("wild.txt")
        with open(rule, "w") as file:
            file.write("stored -= 1e39 * grad")
        self.assertRegex(self.ctl("updater", "check", rule), r"(?m)^step 1 +-Infinity, Infinity, -Infinity, NaN ")
        self.assertEqual(self.json("updater", "check", rule)["example"]["steps"][0]["stored"],
                         ["-Infinity", "Infinity", "-Infinity", "NaN"])

    def test_updater_check_asks_the_daemon_what_a_document_or_a_text_would_do_to_a_store(self):
        self.ctl("call", "Create", '{"store": "checked", "type": "dist_async"}')
        self.ctl("put", "w_bias", "[1, 1]", "--store", "checked")
        document = '{"type": "adam", "overrides": [{"match": "*_bias", "wd_mult": 0}]}'
        said = json.loads(self.ctl("updater", "check", document, "--store", "checked", "--json"))
        self.assertEqual((said["changed"], said["updater"]["beta1"], said["report"]["overrides"][0]["keys"]), (True, 0.9, 1))
        with open(self.path("d.json"), "w") as file:
            file.write("\n" + document)
        self.assertEqual(json.loads(self.ctl("updater", "check", self.path("d.json"), "--store", "checked", "--json")), said)
        with open(self.path("text.txt"), "w") as file:
            file.write("slot m = 0\nm = 0.5 * m + grad\nstored -= m\n")
        said = json.loads(self.ctl("updater", "check", self.path("text.txt"), "--store", "checked", "--json"))
        self.assertEqual((said["report"]["state_bytes"]["then"], said["program"]["slots"][0]["name"]), (8, "m"))
        shown = self.ctl("updater", "check", document.replace("*_bias", "*_weight"), "--store", "checked")
        for line in ("updater     adam\n", "1, new from version", "0 B now, 16 B then", "*_weight     0",
                     "mean     0          0     1        0", "warning: /overrides/0/match: no key has such a name"):
            self.assertIn(line, shown)
        self.assertEqual(json.loads(self.ctl("updater", "--store", "checked")), {"type": "assign"})
        self.ctl("updater", "check", '{"type": "adma"}', "--store", "checked", status=ERROR, says="adam")

    def test_stores_are_created_reset_and_deleted(self):
        self.assertEqual(self.ctl("store", "create", "mine", "dist_async"), "store mine, dist_async, is created\n")
        self.assertEqual(self.ctl("store", "create", "mine", "dist_async"), "store mine, dist_async, was there already\n")
        self.ctl("store", "create", "mine", status=CONFLICT, says="paramctl store delete mine")
        self.ctl("put", "w", "[1, 2]", "--store", "mine")
        self.assertEqual(self.ctl("store", "reset", "mine"), "store mine is reset: 1 keys are deleted\n")
        self.ctl("get", "w", "--store", "mine", status=NOT_FOUND)
        self.assertEqual(self.ctl("store", "delete", "mine"), "store mine is deleted\n")
        self.ctl("store", "delete", "mine", status=NOT_FOUND, says="mine")
        self.assertTrue(self.json("store", "create", "mine", '{"num_workers": 3}')["created"])
        self.assertEqual(self.json("call", "GetStore", '{"store": "mine"}')["num_workers"], 3)
        self.ctl("store", "create", "mine", '{"num_workers": 2}', status=CONFLICT, says="paramctl store delete mine")
        self.assertEqual(self.json("store", "delete", "mine"), {})

    def test_the_command_in_a_refusal_cures_it(self):
        """A second job of another type or size is told the command that makes room for it."""
        for second in ({"num_workers": 2}, {"type": "dist_async"}):
            paramd.kv.create("dist_sync", url=self.daemon.url, store="again", num_workers=1).close()
            options = {"num_workers": 1, **second}
            kind = options.pop("type", "dist_sync")
            with self.assertRaisesRegex(paramd.errors.FailedPrecondition, "paramctl store delete again") as refused:
                paramd.kv.create(kind, url=self.daemon.url, store="again", **options)
            self.ctl(*re.search(r"paramctl (store delete \S+)", str(refused.exception))[1].split())
            paramd.kv.create(kind, url=self.daemon.url, store="again", num_workers=1).close()
            self.ctl("store", "delete", "again")

    def test_keys_are_deleted_all_or_none(self):
        for store in ("names", "numbers"):
            self.ctl("store", "create", store, "dist_async")
        for key in ("a1", "a2", "a3"):
            self.ctl("put", key, "[1]", "--store", "names")
        self.ctl("delete", "a1", "nothere", "--store", "names", status=NOT_FOUND, says="nothere")
        self.assertEqual(self.ctl("delete", "a1", "a2", "--store", "names"), "2 of store names deleted\n")
        self.assertEqual([row["key"] for row in self.json("keys", "--store", "names")["items"]], ["a3"])
        self.ctl("put", "7", "[1]", "--store", "numbers")
        self.ctl("delete", "7", "--store", "numbers")
        self.ctl("get", "7", "--store", "numbers", status=NOT_FOUND)

    def test_push_is_a_workers_and_the_updater_runs(self):
        self.ctl("call", "Create", '{"store": "trained", "type": "dist_async"}')
        self.ctl("put", "w", "[1, 1]", "--store", "trained")
        self.assertIn("new from version 2 on", self.ctl("updater", "set", '{"type": "sgd", "learning_rate": 0.5}', "--store", "trained"))
        self.assertIn("set already", self.ctl("updater", "set", '{"type": "sgd", "learning_rate": 0.5}', "--store", "trained"))
        document = json.loads(self.ctl("updater", "--store", "trained"))
        self.assertEqual((document["type"], document["learning_rate"]), ("sgd", 0.5))
        with open(self.path("u.json"), "w") as file:
            json.dump({"type": "sgd", "learning_rate": 0.25}, file)
        self.ctl("updater", "set", self.path("u.json"), "--store", "trained")
        self.assertIn("applied", self.ctl("push", "w", "[4, 8]", "--wait", "--store", "trained"))
        self.assertEqual(self.json("get", "w", "--store", "trained")["data"], [0, -1])
        self.ctl("push", "w", "[4]", "--store", "trained", status=ERROR, says="shape")
        self.ctl("push", "nope", "[4]", "--store", "trained", status=NOT_FOUND, says="nope")
        self.ctl("updater", "set", '{"type": "sgd", "learnin_rate": 1}', "--store", "trained", status=ERROR, says="learning_rate")
        self.ctl("updater", "set", "{", "--store", "trained", status=USAGE, says="line 1")
        self.ctl("updater", "set", self.path("nope"), "--store", "trained", status=USAGE, says="nope")
        self.ctl("updater", "check", self.path("nope"), status=USAGE, says="nope")
        self.assertEqual(self.json("updater", "get", "--store", "trained")["updater"]["learning_rate"], 0.25)

    def test_updater_set_takes_a_text_as_check_does(self):
        self.ctl("call", "Create", '{"store": "told", "type": "dist_async"}')
        with open(self.path("rule.txt"), "w") as file:
            file.write("param lr = 0.1\nstored -= lr * grad\n")
        self.assertIn("set;", self.ctl("updater", "set", self.path("rule.txt"), "--store", "told"))
        self.assertEqual(json.loads(self.ctl("updater", "--store", "told"))["params"], {"lr": 0.1})
        self.assertIn('"lr": 0.1', self.ctl("updater", "--store", "told"))  # as it was written
        self.ctl("updater", "set", "-", "--store", "told", stdin="stored += gard\n", status=ERROR, says="did you mean 'grad'?")
        self.assertIn("set;", self.ctl("updater", "set", "-", "--store", "told", stdin=" null\n"))
        self.assertEqual(json.loads(self.ctl("updater", "--store", "told")), {"type": "assign"})

    def test_an_updater_that_does_not_fit_a_key_is_a_conflict(self):
        self.ctl("updater", "set", '{"type": "sgd", "learning_rate": 0.5}', status=CONFLICT, says="i")

    def test_get_waits_for_a_newer_version(self):
        waiting = subprocess.Popen([PARAMCTL, "get", "slow", "--wait", "--json"], stdout=subprocess.PIPE, text=True,
                                   env={**CLEAN, "PARAMD_URL": self.daemon.url})
        with self.assertRaises(subprocess.TimeoutExpired):
            waiting.wait(1)
        self.ctl("put", "slow", "[2]")
        self.assertEqual(json.loads(waiting.communicate(timeout=20)[0])["data"], [2])
        self.ctl("get", "slow", "--wait", "--timeout", "0.3", status=UNAVAILABLE, says="is at version 2, not yet at 3")

    def test_put_into_an_open_round_is_a_conflict_unless_forced(self):
        one = paramd.kv.create("dist_sync", url=self.daemon.url, store="open", num_workers=2, round_timeout=600)
        two = paramd.kv.create("dist_sync", url=self.daemon.url, store="open")
        one.init("w", np.zeros(1, "float32"))
        one.push("w", np.ones(1, "float32"))
        self.ctl("put", "w", "[5]", "--store", "open", status=CONFLICT, says="round")
        self.ctl("put", "w", "[5]", "--store", "open", "--force")
        self.assertEqual(self.json("get", "w", "--store", "open")["data"], [5])
        with self.assertRaisesRegex(paramd.ParamdError, "key 'w' in store 'open' was set by force while round 1 was open"):
            one.wait("w")
        two.close()
        one.close()

    def test_bench_leaves_nothing_behind(self):
        before = self.json("stores")
        head, *rows = self.table("bench", "--seconds", "0.2", "--size", "64k")
        self.assertEqual(head, ["WHAT", "VALUE", "CALLS/S", "RATE", "P50", "P99"])
        self.assertEqual([row[:2] for row in rows], [["push", "4 B"], ["pull", "4 B"], ["push", "64.0 KiB"], ["pull", "64.0 KiB"]])
        self.assertTrue(all(row["calls"] > 0 for row in self.json("bench", "--seconds", "0.2")["items"]))
        self.assertEqual(len(self.json("stores")["items"]), len(before["items"]))

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PARAMCTL, "keys"], stdout=full, env={**CLEAN, "PARAMD_URL": self.daemon.url}, timeout=60)
        self.assertEqual(done.returncode, ERROR)


class Token(Base):
    @classmethod
    def setUpClass(cls):
        cls.secret = tempfile.NamedTemporaryFile("w", suffix=".token")
        cls.secret.write("s3cret-token-of-it\n")
        cls.secret.flush()
        cls.arguments = ("--token-file", cls.secret.name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.secret.close()

    def test_without_the_token_or_with_another_it_is_not_authorised(self):
        self.ctl("info", status=AUTH, says="token")
        self.ctl("info", status=AUTH, says="token", env={"PARAMD_TOKEN": "other"})
        self.ctl("info", "--token-file", "/nonexistent", status=USAGE, says="/nonexistent")

    def test_a_token_file_that_cannot_be_read_is_told(self):
        for path in ("/nonexistent", "/dev/null", "/dev/zero", "/tmp"):
            self.ctl("info", status=ERROR, says=f"PARAMD_TOKEN_FILE {path}: ", env={"PARAMD_TOKEN_FILE": path})
            self.ctl("info", "--token-file", path, status=USAGE, says=path)

    def test_the_token_comes_from_a_file_or_the_environment(self):
        self.ctl("info", "--token-file", self.secret.name)
        self.ctl("health", env={"PARAMD_TOKEN_FILE": self.secret.name})
        self.ctl("health", env={"PARAMD_TOKEN": "s3cret-token-of-it"})
        self.ctl("health", env={"PARAMD_TOKEN": "s3cret-token-of-it", "PARAMD_TOKEN_FILE": "/nonexistent"})


class Caps(Base):
    arguments = ("--memory-max", "1m", "--round-timeout", "12", "--worker-timeout", "34", "--start-timeout", "56")

    def test_a_key_beyond_memory_max_is_refused_and_smaller_ones_are_taken(self):
        self.ctl("call", "Create", '{"store": "default", "type": "dist_async"}')
        np.save(self.path("big.npy"), np.zeros(1 << 18, "float32"))
        np.save(self.path("fits.npy"), np.zeros(1 << 15, "float32"))
        self.ctl("put", "fits", self.path("fits.npy"))
        for _ in range(3):
            self.ctl("put", "big", self.path("big.npy"), status=ERROR, says="--memory-max")
        self.ctl("put", "fits too", self.path("fits.npy"))
        self.assertEqual(self.json("keys")["total"], 2)

    def test_new_stores_have_the_daemons_time_outs_unless_they_state_their_own(self):
        created = json.loads(self.ctl("call", "Create", '{"store": "t", "type": "dist_async", "round_timeout": 3}'))
        self.assertEqual([created[name] for name in ("round_timeout", "worker_timeout", "start_timeout")], [3, 34, 56])


class Scarce(unittest.TestCase):
    def test_a_daemon_without_memory_refuses_and_lives(self):
        if "asan" in paramd.daemon.find() or "tsan" in paramd.daemon.find():
            self.skipTest("a sanitizer needs more address space than the limit leaves")
        most = 3 << 30
        with paramd.daemon.Daemon() as daemon:
            resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (most, most))
            kv = paramd.kv.create("dist_async", url=daemon.url)
            refused = 0
            for i in range(40):
                try:
                    kv.init(i, np.zeros(16 << 20, "float32"))
                except paramd.ParamdError as e:
                    self.assertEqual(e.reason, "out-of-memory")
                    refused += 1
                    break
            self.assertEqual(refused, 1)
            kv.init(1000, np.ones(4, "float32"))
            np.testing.assert_array_equal(kv.pull(1000), np.ones(4, "float32"))
            kv.close()
            self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    counted.main()
