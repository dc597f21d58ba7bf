"""What must hold whatever happens, against a real daemon with real processes: exact sums in any order, exactly one
count a push, no torn pull, nothing left of a killed worker. Ends with "N passed, N failed"."""
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np  # noqa: E402

import paramd  # noqa: E402
import paramd.daemon  # noqa: E402

CONTEXT = multiprocessing.get_context("spawn")  # a fresh process for each worker, as trainers are
MIB = 1 << 20


class Daemon(paramd.daemon.Daemon):
    """One that must end well: a sanitizer's finding is its exit status."""

    def __exit__(self, kind, *rest):
        status = self.stop()
        if status != 0 and kind is None:
            raise AssertionError(f"the daemon ended with status {status}\n{self.log(200)}")
        super().__exit__(kind, *rest)


def info(daemon):
    with urllib.request.urlopen(daemon.admin + "/v1/info", timeout=5) as answer:
        return json.load(answer)


class Workers:
    """Processes that run target(queue, *args); results come by name, and none outlives the block."""

    def __init__(self):
        self.queue = CONTEXT.Queue()
        self.started = []

    def start(self, target, *args):
        process = CONTEXT.Process(target=guarded, args=(target, self.queue, *args), daemon=True)
        process.start()
        self.started.append(process)
        return process

    def get(self, seconds=120):
        name, value = self.queue.get(timeout=seconds)
        if name == "error":
            raise AssertionError(value)
        return name, value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            process.kill()
            process.join(10)


def guarded(target, queue, *args):
    try:
        target(queue, *args)
    except BaseException as error:  # whatever it is, the test shall hear of it and not wait
        queue.put(("error", f"{type(error).__name__}: {error}"))


def push_in_any_order(queue, url, rank, rounds, keys):
    order = random.Random(rank)
    with paramd.kv.create("dist_sync", url=url, num_workers=4, worker_name=f"w{rank}") as kv:
        names = list(range(keys))
        kv.init(names, [np.zeros(50, "float32") for _ in names])
        kv.set_updater({"type": "add"})
        ones = np.ones(50, "float32")
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                kv.push(name, ones)
        kv.barrier()
        values = kv.pull(sorted(names))
        queue.put((rank, sorted({float(x) for value in values for x in value})))
        kv.barrier("seen")


def push_ones(queue, url, count):
    with paramd.kv.create("dist_async", url=url, num_workers=2) as kv:
        kv.init("w", np.ones(10, "float32"))
        kv.set_optimizer("sgd", learning_rate=0.125)
        kv.barrier("ready")
        for _ in range(count):
            kv.push("w", np.ones(10, "float32"))
        kv.wait()
        kv.barrier("done")
        queue.put(("w", [float(x) for x in kv.pull("w")]))


def write_versions(queue, url, elements, stop):
    """Until it is told to stop, at least 6 versions."""
    with paramd.kv.create("dist_async", url=url) as kv:
        value = np.full(elements, 1, "float32")
        kv.init("big", value)
        queue.put(("ready", None))
        version = 1
        while version < 6 or not stop.is_set():
            version += 1
            value[:] = version
            kv.push("big", value)
        kv.wait()
        queue.put(("written", version))


def read_versions(queue, url, elements, stop, name):
    """Until it is told to stop, at least two versions."""
    with paramd.kv.create("dist_async", url=url) as kv:
        out = np.empty(elements, "float32")
        seen = set()
        while len(seen) < 2 or not stop.is_set():
            kv.pull("big", out=out)
            low, high = float(out.min()), float(out.max())
            if low != high:
                raise AssertionError(f"{name}: versions {low} and {high} in one pull")
            seen.add(low)
        queue.put((name, len(seen)))


def die_in_the_middle_of_a_push(queue, url, elements):
    kv = paramd.kv.create("dist_sync", url=url, num_workers=2, worker_name="victim")
    kv.init("big", np.zeros(elements, "float32"))
    queue.put(("ready", os.getpid()))
    while True:
        kv.push("big", np.ones(elements, "float32"))
        kv.wait()


def init_three(queue, url, name, first):
    with paramd.kv.create("dist_sync", url=url, num_workers=2, worker_name=name) as kv:
        kv.init([10, 11, 12], [np.full(3, first, "float32")] * 3)
        queue.put((name, [float(v[0]) for v in kv.pull([10, 11, 12])]))
        try:
            kv.init([10], [np.ones(3, "float32")])
            queue.put((name, "no error"))
        except paramd.errors.AlreadyExists as error:
            queue.put((name, str(error)))
        time.sleep(60)


class MustHold(unittest.TestCase):
    def test_4_workers_1000_rounds_20_keys_in_any_order_are_exact(self):
        with Daemon() as daemon, Workers() as workers:
            for rank in range(4):
                workers.start(push_in_any_order, daemon.url, rank, 1000, 20)
            for _ in range(4):
                self.assertEqual(workers.get(240)[1], [4000.0])

    def test_two_async_workers_with_sgd_give_exactly_minus_24(self):
        with Daemon() as daemon, Workers() as workers:
            for _ in range(2):
                workers.start(push_ones, daemon.url, 100)
            for _ in range(2):
                self.assertEqual(workers.get()[1], [-24.0] * 10)

    def test_no_pull_of_a_256_mib_key_mixes_versions_and_memory_stays_within_versions_max(self):
        size, stop, readers_stop = 256 * MIB, CONTEXT.Event(), CONTEXT.Event()
        with Daemon() as daemon, Workers() as workers:
            workers.start(write_versions, daemon.url, size // 4, stop)
            self.assertEqual(workers.get()[0], "ready")
            readers = [workers.start(read_versions, daemon.url, size // 4, readers_stop, f"reader {i}") for i in range(4)]
            slow, highest = readers[0], 0
            for _ in range(12):  # the slow one sleeps nine tenths of the time
                os.kill(slow.pid, signal.SIGSTOP)
                time.sleep(0.45)
                os.kill(slow.pid, signal.SIGCONT)
                time.sleep(0.05)
                highest = max(highest, info(daemon)["memory"]["device"])
            # The readers first: each needs a second version, which the writer goes on to write.
            readers_stop.set()
            results = dict(workers.get() for _ in range(4))
            stop.set()
            results.update([workers.get()])
            self.assertGreater(results["written"], 5)
            # How many versions each saw is a matter of the machine; that several were read is what the test needs.
            self.assertGreater(sum(results[f"reader {i}"] for i in range(4)), 4)
            # Four versions, and two pushes on their way (one being received, one waiting for its step); a cache of
            # freed buffers may hold two more.
            self.assertLessEqual(highest, (4 + 2 + 2) * size)

    def test_a_worker_killed_in_the_middle_of_a_push_leaves_nothing_and_is_named(self):
        elements = 32 * MIB // 4
        with Daemon() as daemon, Workers() as workers:
            kv = paramd.kv.create("dist_sync", url=daemon.url, num_workers=2, worker_name="survivor", worker_timeout=2)
            victim = workers.start(die_in_the_middle_of_a_push, daemon.url, elements)
            kv.init("big", np.zeros(elements, "float32"))
            workers.get()
            kv.push("big", np.ones(elements, "float32"))
            kv.wait()
            before = kv.pull("big")
            self.assertEqual((before.min(), before.max()), (2, 2))
            kv.push("big", np.ones(elements, "float32"))
            time.sleep(random.random() / 50)
            os.kill(victim.pid, signal.SIGKILL)
            # What the victim had recorded counts: the round under way, and at most one step ahead of it. Then its name
            # is told.
            for _ in range(3):
                try:
                    kv.wait()
                    after = kv.pull("big")
                    self.assertEqual((after.min(), after.max()), (2, 2))
                    kv.push("big", np.ones(elements, "float32"))
                except paramd.ParamdError as error:
                    self.assertIn("victim", str(error))
                    self.assertIn("dead", str(error))
                    break
            else:
                self.fail("rounds without the victim closed")
            after = kv.pull("big") if kv.version("big") else None
            self.assertEqual((after.min(), after.max()), (2, 2))
            deadline = time.monotonic() + 10
            while info(daemon)["memory"]["staging"] > 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(info(daemon)["memory"]["staging"], 0)
            kv.close()

    def test_two_workers_init_the_same_keys_a_third_joins_later(self):
        with Daemon() as daemon, Workers() as workers:
            workers.start(init_three, daemon.url, "a", 7)
            time.sleep(0.3)  # so that a is rank 0; the result below holds for either order of the rest
            workers.start(init_three, daemon.url, "b", 8)
            seen = [workers.get() for _ in range(4)]
            workers.start(init_three, daemon.url, "c", 9)
            seen += [workers.get() for _ in range(2)]
            for name in "abc":
                values, again = [value for who, value in seen if who == name]
                self.assertEqual(values, [7.0, 7.0, 7.0])
                self.assertIn("duplicate init of key 10", again)


if __name__ == "__main__":
    counted.main()
