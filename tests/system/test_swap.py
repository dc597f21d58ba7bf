"""The updater of a store is swapped 200 times among sgd, adam and lion, with all three ways for the state, while four
workers push at full speed. Every push is written down with the version that it made, every swap with the first version of
each key under it; a second implementation of the three rules, in numpy, then replays each key alone, one push after the
other, and must come to the same bits at the end and wherever somebody looked in between.

PARAMD_BIN (or PARAMD_DAEMON) names the daemon, so the same runs against a sanitized one. Ends with "N passed, N failed"."""
import http.client
import io
import itertools
import json
import multiprocessing
import os
import random
import struct
import sys
import unittest
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "api", "python"), os.path.join(ROOT, "tests", "lib")]

import counted  # noqa: E402
if os.environ.get("PARAMD_BIN"):
    os.environ.setdefault("PARAMD_DAEMON", os.environ["PARAMD_BIN"])

import numpy as np  # noqa: E402

import paramd.daemon  # noqa: E402
from wire import Peer, frame  # noqa: E402

CONTEXT = multiprocessing.get_context("spawn")  # a fresh process for each worker, as trainers are
WORKERS, SWAPS = 4, 200
IN_FLIGHT = 4           # requests on one connection, as HELLO says
PART = 1 << 20
PUSH_DONE, WAIT_RESULT, PULL_RESULT = struct.Struct("<IIQ"), struct.Struct("<IIQ"), struct.Struct("<QQQQQBBHI")
TICKET, VERSION = 1, 2
DTYPES = {"f32": 0, "f64": 1, "f16": 2}
# name: type, elements. The large one travels in parts, and is computed by the device's threads.
KEYS = {"bias": ("f32", 7), "w/1": ("f32", 64), "w/2": ("f32", 1500), "wide": ("f64", 33), "half": ("f16", 50),
        "large": ("f32", 500_000)}
SMALL = [name for name in KEYS if name != "large"]
LARGE_EVERY, LOOK_EVERY = 6, 5


def numpy_type(name):
    return np.dtype({"f32": "<f4", "f64": "<f8", "f16": "<f2"}[KEYS[name][0]])


def first_value(name):
    n = KEYS[name][1]
    return ((np.arange(n) * 37 % 101 - 50) / 64).astype(numpy_type(name))


class Gradients:
    """What worker `rank` pushes to a key in its step: a pattern of the worker's, times a number of the step's."""

    def __init__(self, rank):
        self.rank = rank
        self.patterns = {name: ((np.arange(n) * (13 + 2 * rank) % 61 - 30) / 32).astype(numpy_type(name))
                         for name, (_, n) in KEYS.items()}

    def of(self, name, step):
        factor = (step * 7919 + self.rank * 31) % 41 - 20
        return self.patterns[name] * self.patterns[name].dtype.type(factor / 16)


# ---- a worker ----


class Worker:
    """Sends without waiting, as many requests as may be in flight; takes the answers as they come."""

    def __init__(self, url, rank, ids, store):
        self.gradients, self.ids, self.store = Gradients(rank), ids, store
        self.names = {key: name for name, key in ids.items()}
        self.steps = dict.fromkeys(ids, 0)
        self.pushes = []        # (key, step, version)
        self.seen = []          # (key, version, checksum)
        self.waiting = {}       # request id: what becomes of the answer
        self.large_is_under_way = False
        self.peer = Peer(url, timeout=60)
        joined = self.peer.member("swapped", "dist_async")
        assert joined == store, (joined, store)

    def ask(self, data, then):
        while len(self.waiting) >= IN_FLIGHT:
            self.take()
        self.waiting[self.peer.next_id] = then
        self.peer.send(data)

    def take(self):
        answer = self.peer.receive()
        assert answer.status == 0, (answer.status, answer.text)
        self.waiting.pop(answer.id)(answer)

    def pushed(self, answer):
        assert PUSH_DONE.unpack_from(answer.fixed)[1] == 0, answer.body

    def wait_for(self, tickets):
        entries = [(TICKET, self.store, self.ids[name], step, b"", 0) for name, step in tickets]
        frame_ = self.peer.wait(entries, want=len(entries))
        self.ask(frame_, lambda answer: self.applied(tickets, answer))

    def applied(self, tickets, answer):
        """A step's version is exact when the Wait comes before the worker's next push of that key is applied: the small
        keys' do, since they are looked at in the order in which they were sent; of the large one only one is under way."""
        for at in range(0, WAIT_RESULT.size * len(tickets), WAIT_RESULT.size):
            if at >= len(answer.desc):
                break
            index, state, version = WAIT_RESULT.unpack_from(answer.desc, at)
            name, step = tickets[index]
            if state == 0 and name == "large":
                self.wait_for([(name, step)])
                return
            assert state == 1, (name, step, state, answer.body)
            self.pushes.append((name, step, version))
            self.large_is_under_way &= name != "large"

    def push_small(self):
        entries, body = [], bytearray()
        for name in SMALL:
            self.steps[name] += 1
            value = self.gradients.of(name, self.steps[name]).tobytes()
            body += bytes(-len(body) % 16)
            entries.append((self.ids[name], self.steps[name], 0, len(value), len(value), DTYPES[KEYS[name][0]], 0, 0, 0))
            body += value
        self.ask(self.peer.push(self.store, entries, bytes(body)), self.pushed)
        self.wait_for([(name, self.steps[name]) for name in SMALL])

    def push_large(self):
        self.steps["large"] += 1
        step, value = self.steps["large"], self.gradients.of("large", self.steps["large"]).tobytes()
        self.large_is_under_way = True
        sequence, self.peer.sequence = self.peer.sequence, self.peer.sequence + 1
        for at in range(0, len(value), PART):
            part = value[at:at + PART]
            entry = (self.ids["large"], step, at, len(part), len(value))
            self.ask(self.peer.push(self.store, [entry], part, sequence=sequence), self.pushed)
        self.wait_for([("large", step)])

    def look(self):
        self.ask(self.peer.pull(self.store, [(self.ids[name], 0, 0, 0, 0) for name in SMALL]), self.looked)

    def looked(self, answer):
        at = 0
        for i in range(len(SMALL)):
            key, version, _, size, _, _, _, _, _ = PULL_RESULT.unpack_from(answer.desc, i * PULL_RESULT.size)
            self.seen.append((self.names[key], version, zlib.crc32(answer.body[at:at + size])))
            at += size + -size % 16

    def run(self, stop):
        for turn in itertools.count():
            if stop.is_set():
                break
            self.push_small()
            if turn % LARGE_EVERY == 0 and not self.large_is_under_way:
                self.push_large()
            if turn % LOOK_EVERY == 0:
                self.look()
        while self.waiting:
            self.take()


def work(queue, stop, *args):
    try:
        worker = Worker(*args)
        queue.put(("ready", None))
        worker.run(stop)
        queue.put(("done", (worker.gradients.rank, worker.pushes, worker.seen)))
    except BaseException as error:  # whatever it is, the test shall hear of it and not wait
        queue.put(("error", f"{type(error).__name__}: {error}"))


# ---- the replay: the three rules a second time, as gpu/updaters.md has them ----


class Swap:
    """An updater from `first` on. resets, conversions: how many were asked for so far."""

    def __init__(self, document, states, first, before):
        self.document, self.first = document, first
        self.resets = (before.resets if before else 0) + (states == "reset")
        self.conversions = (before.conversions if before else 0) + (states == "convert")

    def number(self, name, standard):
        return self.document.get(name, standard)

    @property
    def slots(self):
        kind = self.document["type"]
        return {"adam": ["mean", "var"], "lion": ["mean"]}.get(kind, ["momentum"] if self.number("momentum", 0) else [])

    def rate(self, key):
        rate = self.document["learning_rate"]
        for o in self.document.get("overrides", []):
            if key.startswith(o["match"].rstrip("*")):
                rate = self.document["learning_rate"] * o["lr_mult"]
        return rate


class Replayed:
    def __init__(self, name):
        self.name = name
        self.value = first_value(name)
        self.real = np.float64 if KEYS[name][0] == "f64" else np.float32
        self.master = self.value.astype(self.real)
        self.under, self.slots, self.t = None, {}, 0

    def fit(self, swap):
        """The state under another updater than that of the step before."""
        old, self.under = self.under, swap
        fresh = {name: np.zeros_like(self.master) for name in swap.slots}
        if old is None or old.resets != swap.resets:
            self.slots, self.t = fresh, 0
            return
        found = {}
        for name in swap.slots:
            if name in self.slots:
                found[name] = self.slots[name]
            elif swap.conversions != old.conversions:
                made = self.convert(old, swap, name)
                if made is not None:
                    found[name] = made
        if len(found) < len(swap.slots) and swap.document["type"] == "adam":
            self.slots, self.t = fresh, 0
        else:
            self.slots = {**fresh, **found}

    def convert(self, old, swap, name):
        if "mean" in self.slots:
            source = self.slots["mean"]
            decay = old.number("beta2", 0.99) if old.document["type"] == "lion" else old.number("beta1", 0.9)
            scale = 1 - decay
        elif "momentum" in self.slots:
            source, decay, scale = self.slots["momentum"], old.number("momentum", 0), -old.rate(self.name)
        else:
            return None
        if name == "mean":
            return self.real((1 - decay) / scale) * source
        if name == "momentum":
            return self.real(-swap.rate(self.name) / scale) * source
        if self.t < 1:
            return None
        ratio, bias = (1 - decay) / scale, 1 - decay ** self.t
        by = ratio * ratio * (1 - swap.number("beta2", 0.999) ** self.t) / (bias * bias)
        return self.real(by) * (source * source)

    def step(self, swap, gradient):
        if swap is not self.under:
            self.fit(swap)
        self.t += 1
        getattr(self, swap.document["type"])(swap, gradient.astype(self.real))
        self.value = self.master.astype(self.value.dtype)

    def sgd(self, swap, g):
        w, rate = self.master, self.real(swap.rate(self.name))
        g = g + self.real(swap.number("wd", 0)) * w
        if swap.slots:
            self.slots["momentum"] = self.real(swap.number("momentum", 0)) * self.slots["momentum"] - rate * g
            self.master = w + self.slots["momentum"]
        else:
            self.master = w - rate * g

    def adam(self, swap, g):
        w, b1, b2 = self.master, swap.number("beta1", 0.9), swap.number("beta2", 0.999)
        g = g + self.real(swap.number("wd", 0)) * w
        mean = self.real(b1) * self.slots["mean"] + self.real(1 - b1) * g
        var = self.real(b2) * self.slots["var"] + self.real(1 - b2) * (g * g)
        rate = self.real(swap.rate(self.name) * np.sqrt(1 - b2 ** self.t) / (1 - b1 ** self.t))
        self.master = w - rate * (mean / (np.sqrt(var) + self.real(1e-8)))
        self.slots = {"mean": mean, "var": var}

    def lion(self, swap, g):
        w, b1, b2 = self.master, swap.number("beta1", 0.9), swap.number("beta2", 0.99)
        mean = self.slots["mean"]
        x = self.real(b1) * mean + self.real(1 - b1) * g
        sign = np.where(x > 0, self.real(1), np.where(x < 0, self.real(-1), x))
        self.master = w - self.real(swap.rate(self.name)) * (sign + self.real(swap.number("wd", 0)) * w)
        self.slots["mean"] = self.real(b2) * mean + self.real(1 - b2) * g


def replay(name, pushes, swaps):
    """The value's checksum at every version, and the last value. pushes: {version: gradient, lazily}."""
    key, sums = Replayed(name), {}
    sums[1] = zlib.crc32(key.value.tobytes())
    under = 0
    for version in range(2, len(pushes) + 2):
        while under + 1 < len(swaps) and swaps[under + 1].first[name] <= version:
            under += 1
        key.step(swaps[under], pushes[version]())
        sums[version] = zlib.crc32(key.value.tobytes()) if name != "large" else 0
    return sums, key.value


# ---- the one who swaps ----


def documents():
    """Without end; every type follows every other, and itself with other numbers."""
    choose = random.Random(7)
    while True:
        kind = choose.choice(["sgd", "adam", "lion"])
        if kind == "sgd":
            d = {"type": "sgd", "learning_rate": choose.choice([0.01, 0.003]), "momentum": choose.choice([0.9, 0.5, 0])}
        elif kind == "adam":
            d = {"type": "adam", "learning_rate": choose.choice([0.01, 0.002]), "beta1": choose.choice([0.9, 0.8])}
        else:
            d = {"type": "lion", "learning_rate": choose.choice([0.001, 0.0005]), "wd": choose.choice([0, 0.01])}
        if choose.random() < 0.3:
            d["overrides"] = [{"match": "w/*", "lr_mult": choose.choice([0.5, 2])}]
        yield d, choose.choice(["keep", "reset", "convert"])


class Swapper:
    """Half of the swaps go through REST, half through the binary protocol."""

    def __init__(self, daemon, test):
        self.daemon, self.test = daemon, test
        self.http = http.client.HTTPConnection(daemon.admin.split("//", 1)[1], timeout=60)
        self.peer = Peer(daemon.url, timeout=60)
        hello = self.peer.hello()
        assert hello.status == 0, hello.text
        self.swaps, self.ids, self.store = [], {}, 0

    def close(self):
        self.http.close()
        self.peer.close()

    def rest(self, method, path, body=None, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.http.request(method, path, body, named)
        answer = self.http.getresponse()
        data = answer.read()
        assert answer.status in (200, 201), (answer.status, data)
        return answer.headers, json.loads(data) if "json" in answer.headers["Content-Type"] else data

    def begin(self):
        self.rest("POST", "/v1/stores", json.dumps({"store": "swapped", "type": "dist_async"}),
                  Content_Type="application/json")
        self.store = self.rest("GET", "/v1/stores/swapped")[1]["id"]
        for name in KEYS:
            path = "/v1/stores/swapped/keys/" + name.replace("/", "%2F")
            file = io.BytesIO()
            np.save(file, first_value(name))
            self.rest("PUT", path, file.getvalue(), Content_Type="application/x-npy")
            self.ids[name] = self.rest("GET", path)[1]["id"]

    def put(self, document, states, by_rest, dry_run=False):
        if by_rest:
            query = f"?states={states}" + ("&dry_run=true" if dry_run else "")
            return self.rest("PUT", "/v1/stores/swapped/updater" + query, json.dumps(document), If_Match="*",
                             Content_Type="application/json")[1]
        sequence, self.peer.sequence = self.peer.sequence, self.peer.sequence + 1
        answer = self.peer.call("SetUpdater", {"store": self.store, "updater": document, "states": states,
                                               "dry_run": dry_run}, sequence=sequence)
        assert answer.status == 0, answer.text
        return answer.json()

    def swap(self, document, states, by_rest):
        said = self.put(document, states, by_rest)
        self.test.assertTrue(said["changed"], said)
        first = {item["key"]: item["version"] for item in said["first_versions"]}
        self.test.assertEqual(set(first), set(KEYS))
        self.test.assertEqual(said["effective_from_version"], max(first.values()))
        self.swaps.append(Swap(document, states, first, self.swaps[-1] if self.swaps else None))

    def same_again(self, by_rest):
        """What is set already: no swap, so no boundary for the replay; nor has a dry run one."""
        present = self.swaps[-1].document
        self.test.assertFalse(self.put(dict(reversed(present.items())), "keep", by_rest)["changed"])
        self.put({"type": "adam", "learning_rate": 1}, "reset", by_rest, dry_run=True)

    def wait_for_version(self, name, version):
        while True:
            answer = self.peer.ask(self.peer.wait([(VERSION, self.store, self.ids[name], version, b"", 0)]))
            assert answer.status == 0, answer.text
            if WAIT_RESULT.unpack_from(answer.desc)[1] == 1:
                return

    def run(self):
        """Paced by what the workers have done, so that swaps fall among pushes whatever the machine does: some follow
        one another without a push between, and the large key passes some over."""
        pace = random.Random(11)
        plan = documents()
        while len(self.swaps) < SWAPS + 1:
            n = len(self.swaps)
            document, states = next(plan)
            if document == self.swaps[-1].document and states != "reset":
                self.same_again(n % 2 == 0)
                continue
            name = "large" if n % 4 == 0 else pace.choice(SMALL)
            self.wait_for_version(name, self.swaps[-1].first[name] + (pace.randrange(3) if name == "large" else
                                                                      pace.randrange(15)) - 1)
            self.swap(document, states, n % 2 == 0)
            if n % 20 == 0:
                self.same_again(n % 40 == 0)


class Swaps(unittest.TestCase):
    def run_workers(self, daemon, swapper):
        """What everybody pushed, {key: {version: (rank, step)}}, and what was seen."""
        queue, stop = CONTEXT.Queue(), CONTEXT.Event()
        started = [CONTEXT.Process(target=work, args=(queue, stop, daemon.bulk, rank, swapper.ids, swapper.store),
                                   daemon=True) for rank in range(WORKERS)]
        try:
            for process in started:
                process.start()
            for _ in started:
                self.heard(queue)
            swapper.run()
            stop.set()
            pushes, seen = {name: {} for name in KEYS}, []
            for _ in started:
                rank, by_worker, looked = self.heard(queue)
                for name, step, version in by_worker:
                    self.assertNotIn(version, pushes[name], "two pushes made one version")
                    pushes[name][version] = (rank, step)
                seen += looked
            return pushes, seen
        finally:
            for process in started:
                process.kill()
                process.join(10)

    def heard(self, queue):
        name, value = queue.get(timeout=120)
        self.assertNotEqual(name, "error", value)
        return value

    def final(self, swapper, name):
        headers, data = swapper.rest("GET", f"/v1/stores/swapped/keys/{name.replace('/', '%2F')}/value?format=raw")
        return int(headers["Paramd-Version"]), np.frombuffer(data, numpy_type(name))

    def test_200_swaps_under_load_come_to_the_bits_of_a_serial_replay(self):
        with paramd.daemon.Daemon("--log", "error") as daemon:
            swapper = Swapper(daemon, self)
            swapper.begin()
            swapper.swap({"type": "sgd", "learning_rate": 0.01, "momentum": 0.9}, "keep", True)
            pushes, seen = self.run_workers(daemon, swapper)
            finals = {name: self.final(swapper, name) for name in KEYS}
            swapper.close()
            self.assertEqual(daemon.stop(), 0, daemon.log(100))
        self.assertEqual(len(swapper.swaps), SWAPS + 1)
        gradients = [Gradients(rank) for rank in range(WORKERS)]
        sums = {}
        for name in KEYS:
            order = pushes[name]
            self.assertEqual(sorted(order), list(range(2, len(order) + 2)), f"{name}: a version that no push made")
            lazily = {version: lambda rank=rank, step=step, name=name: gradients[rank].of(name, step)
                      for version, (rank, step) in order.items()}
            sums[name], value = replay(name, lazily, swapper.swaps)
            version, got = finals[name]
            self.assertEqual(version, len(order) + 1)
            self.assertTrue(np.isfinite(value).all(), name)
            self.assertTrue(got.tobytes() == value.tobytes(), f"{name}: other bits after {len(order)} pushes")
        for name, version, checksum in seen:
            self.assertEqual(checksum, sums[name][version], f"{name} at version {version}")
        # The test is worth something only if swaps fell among pushes of every key.
        for name in KEYS:
            self.assertGreater(len({swap.first[name] for swap in swapper.swaps}), SWAPS // 8, name)
        self.assertGreater(len(seen), 100)
        if os.environ.get("VERBOSE"):
            print({name: len(order) for name, order in pushes.items()}, len(seen),
                  {name: len({swap.first[name] for swap in swapper.swaps}) for name in KEYS})


if __name__ == "__main__":
    counted.main()
