"""A daemon through which clients come and go, with stores, keys, networks and mistakes: what it holds of the machine's
memory stays the same. A short round checks that all is taken back; LONG=1 (make test-long) goes on for CHURN_SECONDS
(3600) at CHURN_RATE sessions a minute (3000) and measures. Ends with "N passed, N failed"."""
import json
import os
import socket
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np  # noqa: E402

import paramd  # noqa: E402
import paramd.daemon  # noqa: E402

LONG = os.environ.get("LONG") == "1"
SECONDS = int(os.environ.get("CHURN_SECONDS", "3600"))
RATE = int(os.environ.get("CHURN_RATE", "3000"))
WARM_UP = 240      # seconds; clients are remembered for 120, and of a store's workers the last 4,096
THREADS = 4
KIB = 1 << 10
NETWORK = json.dumps({"nodes": [{"op": "null", "name": "data", "inputs": []},
                                {"op": "Activation", "name": "act", "attrs": {"act_type": "relu"}, "inputs": [[0, 0, 0]]}],
                      "arg_nodes": [0], "heads": [[1, 0, 0]]}).encode()


def ask(daemon, method, path, body=None):
    request = urllib.request.Request(daemon.admin + path, data=body, method=method,
                                     headers={"Content-Type": "application/json"} if body else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def memory(daemon):
    return json.loads(ask(daemon, "GET", "/v1/info")[1])["memory"]


def resident(daemon):
    with open(f"/proc/{daemon.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def join(daemon, number):
    paramd.kv.create("dist_async", url=daemon.url, store="shared", worker_name=f"w{number}").close()


def store(daemon, number):
    with paramd.kv.create("dist_async", url=daemon.url, store=f"own{number}") as kv:
        kv.init("w", np.zeros(100, "float32"))
        kv.set_optimizer("adam", learning_rate=0.001 * (1 + number % 50))
        kv.push("w", np.ones(100, "float32"))
        kv.pull("w")
    ask(daemon, "DELETE", f"/v1/stores/own{number}")


def keys(daemon, number):
    mine = threading.current_thread().name  # in a store with others it would wait for their values
    with paramd.kv.create("dist_async", url=daemon.url, store=mine) as kv:
        names = [f"k{number}/{i}" for i in range(3)]
        sizes = (10, 1000, 30000 if number % 16 else 400000)
        kv.init(names, [np.zeros(n, "float32") for n in sizes])
        kv.push(names, [np.ones(n, "float32") for n in sizes])
        kv.pull(names)
        kv.delete(names)


def network(daemon, number):
    ask(daemon, "PUT", f"/v1/networks/n{number}", NETWORK)
    ask(daemon, "GET", f"/v1/networks/n{number}/graph?format=svg")
    ask(daemon, "DELETE", f"/v1/networks/n{number}")


def mistakes(daemon, number):
    with paramd.kv.create("dist_async", url=daemon.url, store="shared") as kv:
        for wrong in (lambda: kv.pull(f"nothing{number}"), lambda: kv.set_updater({"type": f"x{number}"}),
                      lambda: kv.push(f"nothing{number}", np.zeros(3, "float32"))):
            try:
                wrong()
                raise AssertionError("a mistake was taken")
            except paramd.ParamdError:
                pass
    ask(daemon, "GET", f"/v1/keys/nothing{number}/value")
    ask(daemon, "PUT", f"/v1/stores/none{number}/updater", b"{")


def garbage(daemon, number):
    host, port = daemon.url.rsplit("/", 1)[1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as s:
        s.sendall(b"GET / HTTP/1.0\r\n\r\n" if number % 2 else b"\0SP\0\0\x30\0\0" + bytes(12) + b"x")


def look(daemon, number):
    for path in ("/v1/info", "/v1/stores", "/v1/stores/shared/workers", "/v1/stores/shared/keys"):
        ask(daemon, "GET", path)


KINDS = (join, store, join, keys, join, mistakes, network, join, garbage, look)


class Churn(unittest.TestCase):
    def setUp(self):
        self.failed = []
        self.count = 0
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.turns = [threading.Lock() for _ in range(THREADS)]

    def work(self, daemon, turn, sessions, rate):
        begin = time.monotonic()
        while not self.stop.is_set() and not self.failed:
            with self.lock:
                number = self.count
                self.count += 1
            if sessions and number >= sessions:
                return
            try:
                with turn:
                    KINDS[number % len(KINDS)](daemon, number)
            except Exception as error:  # whatever it is, it is this test's result
                self.failed.append(f"{KINDS[number % len(KINDS)].__name__} {number}: {type(error).__name__}: {error}")
            if rate:
                time.sleep(max(0, begin + number * 60 / rate - time.monotonic()))

    def start(self, daemon, sessions=None, rate=None):
        threads = [threading.Thread(target=self.work, args=(daemon, turn, sessions, rate)) for turn in self.turns]
        for thread in threads:
            thread.start()
        return threads

    def sample(self, daemon, seconds):
        """While no session is under way, whose answers and documents are held for moments."""
        for turn in self.turns:
            turn.acquire()
        said = memory(daemon)
        now = (seconds, resident(daemon), said["heap"], said["blocks"], self.count)
        for turn in self.turns:
            turn.release()
        return now

    @unittest.skipIf(LONG, "the long one does more")
    def test_what_400_clients_made_is_taken_back(self):
        with paramd.daemon.Daemon() as daemon, paramd.kv.create("dist_async", url=daemon.url, store="shared"):
            ask(daemon, "GET", "/v1/info")
            before = memory(daemon)
            for thread in self.start(daemon, sessions=400):
                thread.join()
            self.assertEqual(self.failed, [])
            after = memory(daemon)
            for name in ("used", "staging"):
                self.assertEqual(after[name], before[name], name)

    @unittest.skipUnless(LONG, "LONG=1 runs it, for an hour (CHURN_SECONDS)")
    def test_resident_memory_is_flat_after_the_warm_up(self):
        samples = []
        with paramd.daemon.Daemon() as daemon, paramd.kv.create("dist_async", url=daemon.url, store="shared"):
            threads, begin = self.start(daemon, rate=RATE), time.monotonic()
            while time.monotonic() - begin < SECONDS and not self.failed:
                time.sleep(5)
                samples.append(self.sample(daemon, time.monotonic() - begin))
                if len(samples) % 12 == 0:
                    print("%4.0f s: %d KiB resident, %d KiB of the heap in use, %d blocks, %d sessions" %
                          (samples[-1][0], samples[-1][1] // KIB, samples[-1][2] // KIB, *samples[-1][3:]), flush=True)
            self.stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(self.failed, [])
        # What comes and goes within a minute is on top; the least of each third of the time is what stays.
        steady = [s for s in samples if s[0] > WARM_UP]
        third = len(steady) // 3
        early, late = steady[:third], steady[-third:]
        minutes = (late[len(late) // 2][0] - early[len(early) // 2][0]) / 60
        growths = {name: (min(s[at] for s in late) - min(s[at] for s in early)) / KIB / minutes
                   for at, name in ((1, "resident"), (2, "heap"))}
        print(*(f"{name}: {growth:+.2f} KiB/min over {minutes:.0f} minutes" for name, growth in growths.items()), sep="\n")
        for name, growth in growths.items():
            self.assertLess(growth, max(1, 64 / minutes), name)  # a few pages more or less are no growth


if __name__ == "__main__":
    counted.main()
