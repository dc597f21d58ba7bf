#!/usr/bin/python3
"""The daemon as it ships, with a GPU plug-in: the one on the stand-in for CUDA (tests/cusim), and the real one on a machine
without a driver. The tests of the Python client run against a daemon whose values lie on the stand-in's GPU."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "api", "python"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

import counted  # noqa: E402
import numpy as np
import paramd

PARAMD = os.environ.get("PARAMD_BIN", os.path.join(ROOT, "build", "paramd"))
STAND_IN = os.path.join(ROOT, "build", "paramd-cusim.so")
REAL = os.path.join(ROOT, "build", "paramd-cuda.so")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PARAMD_", "CUSIM_"))}
ANY = ("--listen", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--probe", "127.0.0.1:0")
NEEDS_STAND_IN = unittest.skipUnless(os.path.exists(STAND_IN), "it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md")


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def soon(fact, seconds=60):
    """Looks until it is so."""
    end = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > end:
            raise AssertionError("it has not come to that")
        time.sleep(0.01)


class Running:
    """A daemon; what it says on stderr is in log()."""

    def __init__(self, *flags, plugin=STAND_IN, **env):
        self.errors = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([PARAMD, *ANY, *flags], stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                     env={**CLEAN, "PARAMD_CUDA_PLUGIN": plugin, **env})
        line = self.proc.stdout.readline()
        self.fields = dict(word.split("=", 1) for word in line.split()[2:])
        if not self.fields:
            raise AssertionError(f"no daemon: {line!r} {self.log()}")

    def log(self):
        self.errors.seek(0)
        return self.errors.read()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.proc.terminate()
        self.status = self.proc.wait(30)
        self.proc.stdout.close()
        self.errors.close()


def store(daemon, kind="dist_async"):
    return paramd.kv.create(kind, daemon.fields["data"], num_workers=1)


def unready(d):
    """What /readyz says when the daemon has looked at its device, as it does now and then."""
    for _ in range(200):
        status = get(d.fields["probe"] + "/readyz")[0]
        if status != 200:
            break
        time.sleep(0.02)
    return status


@NEEDS_STAND_IN
class OnTheStandIn(unittest.TestCase):
    def test_auto_takes_the_gpu_and_tells_its_name(self):
        for policy in ("lazy", "random", "eager"):
            with Running(CUSIM_POLICY=policy) as d:
                self.assertEqual(d.fields["device"], "cuda:0")
                info = json.loads(get(d.fields["admin"] + "/v1/info")[1])
                self.assertEqual(info["device"], "cuda:0")
                self.assertIn("stand-in", info["card"])
                with store(d, "dist_sync") as kv:
                    kv.init("w", np.arange(5, dtype="float32"))
                    kv.set_optimizer("sgd", learning_rate=0.5)
                    kv.push("w", np.ones(5, "float32"))
                    self.assertEqual(kv.pull("w").tolist(), [-0.5, 0.5, 1.5, 2.5, 3.5])
            self.assertEqual(d.status, 0)

    def test_a_text_is_compiled_beside_the_work_and_info_tells(self):
        for nvrtc in (STAND_IN, "off"):
            with Running(PARAMD_NVRTC=nvrtc) as d, store(d) as kv:
                kv.init("w", np.zeros(5, "float32"))
                kv.set_updater({"type": "program", "text": "param lr = 0.5\nstored -= lr * grad"})
                pushed = 0
                for _ in range(3000):
                    kv.push("w", np.ones(5, "float32"))
                    pushed += 1
                    self.assertEqual(kv.pull("w").tolist(), [-0.5 * pushed] * 5)
                    programs = json.loads(get(d.fields["admin"] + "/v1/info")[1])["programs"]
                    if programs["compiled"] > 0 or programs["why"] is not None:
                        break
                self.assertEqual(programs["compiled"] + programs["interpreted"], pushed)
                if programs["why"] is None:
                    self.assertEqual((programs["ready"], programs["compiled"]), (1, 1))
                elif nvrtc == "off":
                    self.assertEqual((programs["why"], programs["compiled"]), ("PARAMD_NVRTC is off", 0))
                else:
                    self.assertIn("no real NVRTC", programs["why"])
                self.assertIn(b"paramd_program_steps_interpreted_total", get(d.fields["probe"] + "/metrics")[1])

    def test_a_card_is_chosen_by_number_and_the_cpu_by_name(self):
        with Running("--device", "cuda:1", CUSIM_DEVICES="2") as d:
            self.assertEqual(d.fields["device"], "cuda:1")
        with Running("--device", "cpu") as d:
            self.assertEqual(d.fields["device"], "cpu")
        done = subprocess.run([PARAMD, *ANY, "--device", "cuda:1"], capture_output=True, text=True, timeout=20,
                              env={**CLEAN, "PARAMD_CUDA_PLUGIN": STAND_IN, "CUSIM_DEVICES": "1"})
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("no usable GPU: there is no cuda:1; CUDA sees 1", done.stderr)

    def test_several_cards_are_one_device(self):
        with Running("--device", "cuda:0,1", CUSIM_DEVICES="2") as d:
            self.assertEqual(d.fields["device"], "cuda:0,1")
            self.assertEqual(json.loads(get(d.fields["admin"] + "/v1/info")[1])["device"], "cuda:0,1")
            with store(d) as kv:
                kv.set_optimizer("add")
                for i in range(8):
                    kv.init(f"w{i}", np.full(1000, i, "float32"))
                for i in range(8):
                    kv.push(f"w{i}", np.ones(1000, "float32"))
                    self.assertEqual(kv.pull(f"w{i}").tolist(), [i + 1] * 1000)
                kv.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)
                for i in range(8):
                    for _ in range(2):
                        kv.push(f"w{i}", np.ones(1000, "float32"))
                    self.assertEqual(kv.pull(f"w{i}").tolist(), [i + 1 - 0.5 - 0.75] * 1000)
                    said = json.loads(get(d.fields["admin"] + f"/v1/keys/w{i}/stats")[1])["value"]
                    self.assertEqual((said["count"], said["min"], said["max"]), (1000, i - 0.25, i - 0.25))
        self.assertEqual(d.status, 0)

    def test_a_key_of_more_than_16_mi_elements_lies_on_both_cards(self):
        count = (16 << 20) + 1000
        before = (np.arange(count) % 512).astype("float16")
        with Running("--device", "cuda:0,1", CUSIM_DEVICES="2") as d, store(d) as kv:
            kv.set_optimizer("add")
            kv.init("large", before)
            kv.init("small", np.zeros(10, "float32"))
            kv.push("large", np.ones(count, "float16"))
            self.assertTrue(np.array_equal(kv.pull("large"), before + 1))
            with self.assertRaises(paramd.ParamdError) as raised:
                kv.set_optimizer("lars", learning_rate=0.1)
            self.assertEqual(raised.exception.reason, "updater-incompatible")
            kv.set_optimizer("sgd", learning_rate=0.5)
            kv.push("large", np.full(count, 2, "float16"))
            self.assertTrue(np.array_equal(kv.pull("large"), before))
        self.assertEqual(d.status, 0)

    def test_when_one_of_several_cards_is_lost_all_are_and_the_sentence_names_it(self):
        with Running("--device", "cuda:0,1", CUSIM_DEVICES="2", CUSIM_FAULT="5") as d, store(d) as kv:
            with self.assertRaises(paramd.ParamdError) as raised:
                for i in range(20):
                    kv.init(f"w{i}", np.zeros(100, "float32"))
                    kv.push(f"w{i}", np.ones(100, "float32"))
                    kv.pull(f"w{i}")
            self.assertEqual(raised.exception.reason, "device-unavailable")
            with self.assertRaises(paramd.ParamdError) as raised:
                kv.init("more", np.zeros(100, "float32"))
            self.assertRegex(str(raised.exception), "the cuda:0,1 device is lost: cuda:[01]: .*CUDA error 700")
            self.assertEqual(unready(d), 503)
            self.assertEqual(get(d.fields["probe"] + "/livez")[0], 200)
        self.assertEqual(d.status, 0)

    def test_a_key_that_does_not_fit_is_refused_with_figures_and_the_daemon_goes_on(self):
        with Running("--device-memory", "4m") as d, store(d) as kv:
            with self.assertRaises(paramd.ParamdError) as raised:
                kv.init("large", np.zeros(2 << 20, "float32"))
            self.assertIn("of at most 4194304 are taken", str(raised.exception))
            kv.init("small", np.zeros(1000, "float32"))
            kv.push("small", np.ones(1000, "float32"))
            self.assertEqual(get(d.fields["probe"] + "/readyz")[0], 200)

    def test_a_key_that_does_not_fit_lies_on_the_cpu_when_that_is_set(self):
        # A key of 100,000 floats under adam comes to six times its 400,000 bytes: value, spare, two slots, sum, contribution.
        with Running("--device-memory", "6m", "--device-full", "host") as d, store(d) as kv:
            def where(name):
                return json.loads(get(d.fields["admin"] + f"/v1/stores/default/keys/{name}")[1])["device"]
            start = {f"w{i}": np.linspace(-1, i, 100_000, dtype="float32") for i in range(5)}
            kv.set_optimizer("adam", learning_rate=0.1)
            kv.init(list(start), list(start.values()))
            self.assertEqual([where(name) for name in start], ["cuda:0"] * 2 + ["cpu"] * 3)
            for step in range(3):
                kv.push(list(start), [np.cos(w * (step + 1)) for w in start.values()])
            with paramd.kv.create("local") as alone:
                alone.set_optimizer("adam", learning_rate=0.1)
                alone.init(list(start), list(start.values()))
                for step in range(3):
                    alone.push(list(start), [np.cos(w * (step + 1)) for w in start.values()])
                states, same = kv.get_states(), alone.get_states()
                for name in start:
                    self.assertEqual(kv.pull(name).tobytes(), alone.pull(name).tobytes(), name)
                    for slot in same[name]:
                        self.assertEqual(states[name][slot].tobytes(), same[name][slot].tobytes(), (name, slot))
                kv.push(list(start), list(start.values()))
                kv.set_states(states)
                self.assertEqual(kv.get_states("w4")["w4"].updates, 3)
            info = json.loads(get(d.fields["admin"] + "/v1/info")[1])
            self.assertEqual((info["device"], info["keys_on_cpu"]), ("cuda:0", 3))
            self.assertIsNone(info["mailbox"], "a card's copies do not wait for the CPU's work")
            self.assertGreaterEqual(info["memory"]["cpu"], 3 * 4 * 400_000)
            self.assertIn(b"paramd_keys_on_cpu 3", get(d.fields["probe"] + "/metrics")[1])
            self.assertEqual(d.log().count("lies on the CPU"), 3)
            kv.set_optimizer("sgd", learning_rate=0.5)
            kv.push(list(start), [np.ones(100_000, "float32")] * 5)
            for name in start:
                kv.pull(name)
            kv.delete("w0")
            kv.init("again", start["w0"])
            self.assertEqual(where("again"), "cuda:0")

    def test_a_store_in_a_process_has_the_setting_as_a_variable(self):
        program = ("import numpy as np, paramd\n"
                   "kv = paramd.kv.create('local')\n"
                   "for i in range(3):\n"
                   "    kv.init(i, np.full(100_000, i, 'float32')); kv.push(i, np.ones(100_000, 'float32'))\n"
                   "print([kv.pull(i)[0] for i in range(3)] == [1, 1, 1])\n")
        def run(full):
            return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={
                **CLEAN, "PYTHONPATH": os.path.join(ROOT, "api", "python"), "PARAMD_CUDA_PLUGIN": STAND_IN,
                "PARAMD_DEVICE": "cuda:0", "PARAMD_DEVICE_FULL": full, "CUSIM_MEMORY": "2M"})
        self.assertEqual(run("host").stdout, "True\n", run("host").stderr)
        self.assertIn("no memory of the GPU", run("refuse").stderr)
        self.assertIn("PARAMD_DEVICE_FULL=full: one of refuse and host", run("full").stderr)

    def test_a_lost_gpu_is_said_and_the_daemon_stays_alive(self):
        with Running(CUSIM_FAULT="4") as d, store(d) as kv:
            with self.assertRaises(paramd.ParamdError) as raised:
                for i in range(10):
                    kv.init(f"w{i}", np.zeros(100, "float32"))
                    kv.push(f"w{i}", np.ones(100, "float32"))
                    kv.pull(f"w{i}")
            self.assertEqual(raised.exception.reason, "device-unavailable")
            self.assertEqual(unready(d), 503)
            self.assertIn("CUDA error 700 cudaErrorIllegalAddress", d.log())
            self.assertEqual(get(d.fields["probe"] + "/livez")[0], 200)
            self.assertEqual(get(d.fields["admin"] + "/v1/info")[0], 200)
            with self.assertRaises(paramd.ParamdError) as raised:
                kv.init("more", np.zeros(100, "float32"))
            self.assertEqual(raised.exception.reason, "device-unavailable")
            self.assertIn("CUDA error 700", str(raised.exception))
        self.assertEqual(d.status, 0)

    def test_arrays_on_a_gpu_are_pushed_and_pulled_where_they_lie(self):
        code = f'''
import ctypes, sys
sys.path.insert(0, {os.path.join(ROOT, "api", "python")!r})
import numpy as np
import paramd

sim = ctypes.CDLL({STAND_IN!r})

class Gpu:
    def __init__(self, array, **more):
        at = ctypes.c_void_p()
        assert sim.cusim_array_new(ctypes.byref(at), ctypes.c_size_t(array.nbytes)) == 0
        assert sim.cusim_array_copy(at, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)) == 0
        self.__cuda_array_interface__ = {{"shape": array.shape, "typestr": array.dtype.str, "data": (at.value, False),
                                          "version": 3, **more}}
    def host(self):
        said = self.__cuda_array_interface__
        array = np.empty(said["shape"], said["typestr"])
        assert sim.cusim_array_copy(ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(said["data"][0]),
                                    ctypes.c_size_t(array.nbytes)) == 0
        return array.tolist()

w = Gpu(np.arange(6, dtype="float32").reshape(2, 3))
out = Gpu(np.zeros((2, 3), "float32"))
with paramd.kv.create("dist_async", sys.argv[1], num_workers=1, mailbox=1 << 20) as kv:
    kv.init("w", w)
    kv.set_optimizer("add")
    kv.push("w", w)
    kv.push("w", [w, np.ones((2, 3), "float32")])
    kv.pull("w", out=out)
    assert out.host() == [[1, 4, 7], [10, 13, 16]], out.host()
    assert kv.pull("w").tolist() == out.host()
    for wrong, words in ((Gpu(np.zeros((2, 3), "float32"), strides=(4, 8)), "contiguous"),
                         (Gpu(np.zeros((2, 3), "float32"), stream=7), "synchronize"),
                         (Gpu(np.zeros((3, 2), "float32")), "shape")):
        try:
            kv.push("w", wrong)
            raise SystemExit("taken: " + words)
        except paramd.ParamdError as e:
            assert words in str(e), e

def refused(kv, call, *args):
    try:
        call(*args)
    except paramd.ParamdError as e:
        return e.reason, str(e)
    raise SystemExit("taken")

with paramd.kv.create("dist_sync", sys.argv[1], store="plane", num_workers=1, round_timeout=1) as kv:
    kv.init(["a", "b"], [np.zeros((2, 3), "float32")] * 2)
    assert "__cuda_array_interface__" in refused(kv, kv.plane_push, "a", np.ones((2, 3), "float32"))[1]
    assert "each key once" in refused(kv, kv.plane_push, ["a", "a"], [w, w])[1]
    assert "each key once" in refused(kv, kv.plane_push, "a", [w, w])[1]
    assert refused(kv, kv.plane_push, "a", w)[0] == "no-plane"
    assert "'0' is no GPU" in refused(kv, kv.plane_join, 0)[1]
    # The stand-in for NCCL joins what is in one process, and the daemon is another.
    assert refused(kv, kv.plane_join)[0] == "plane-broken"
    # What reaches the library: keys, gradients and outputs, in their order.
    seen = []
    def push(handle, count, keys, gradients, outputs, error):
        seen.append([(keys[i].name, gradients[i].data, gradients[i].dtype, outputs[i].data if outputs else None)
                     for i in range(count)])
        return 0
    kv._lib.paramd_plane_push, real = push, kv._lib.paramd_plane_push
    kv.plane_push(["a", "b"], [w, out], out=[out, w])
    kv.plane_push("b", w)
    kv._lib.paramd_plane_push = real
    at = [a.__cuda_array_interface__["data"][0] for a in (w, out)]
    assert seen == [[(b"a", at[0], 0x100, at[1]), (b"b", at[1], 0x100, at[0])], [(b"b", at[0], 0x100, None)]], seen
    kv.plane_leave()
print("done", kv is not None)
'''
        env = dict(CUSIM_POLICY="random", CUSIM_SHARE="1")
        with Running(**env) as d:
            done = subprocess.run([sys.executable, "-c", code, d.fields["data"]], capture_output=True, text=True,
                                  timeout=60, env={**CLEAN, **env, "PARAMD_CUDA_PLUGIN": STAND_IN})
            self.assertEqual((done.returncode, done.stdout), (0, "done True\n"), done.stderr)

    def test_the_tests_of_the_python_client_pass_on_it(self):
        report = tempfile.NamedTemporaryFile("w+", suffix=".json")
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "system", "test_python.py")], text=True,
                              capture_output=True, timeout=400, env={**CLEAN, "PARAMD_CUDA_PLUGIN": STAND_IN,
                                                                     "CUSIM_POLICY": "random", "CUSIM_REPORT": report.name})
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        seen = json.load(report)
        self.assertGreater(seen["launches"], 0)
        for nothing in ("mistakes", "pageable_copies", "default_stream_uses", "live_bytes", "live_streams", "live_events"):
            self.assertEqual(seen[nothing], 0, nothing)


# A store in the process whose lists are of 2 MiB values, and one of small ones; it prints what became of it. Whole numbers,
# so that the order of a sum does not matter.
LISTS = """
import json, sys, numpy as np, paramd
COUNT = 1 << 19
def gradient(i, n): return (np.arange(n) % 97 + 10 * i).astype("float32")
out = {"right": [], "refused": []}
with paramd.kv.create("nccl") as kv:
    for key, count in (("large", COUNT), ("small", 1000)):
        kv.init(key, np.zeros(count, "float32"))
    kv.set_updater("add")
    for push in range(3):
        for key, count in (("large", COUNT), ("small", 1000)):
            gradients = [gradient(i, count) for i in range(3)]
            before = kv.pull(key)
            try:
                kv.push(key, gradients)
                out["right"].append(bool(np.array_equal(kv.pull(key), before + sum(gradients))))
            except paramd.ParamdError as e:
                out["refused"].append([e.reason, str(e)])
    out["lists"] = kv._call("Stats", {})["lists"]
print(json.dumps(out))
"""


@NEEDS_STAND_IN
class ListsInTheProcess(unittest.TestCase):
    def lists(self, cards, nccl=STAND_IN, **env):
        """What LISTS says on so many cards."""
        done = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, timeout=100, env={
            **CLEAN, "PYTHONPATH": os.path.join(ROOT, "api", "python"), "PARAMD_CUDA_PLUGIN": STAND_IN, "PARAMD_NCCL": nccl,
            "PARAMD_DEVICE": "cuda:" + ",".join(map(str, range(cards))), "CUSIM_DEVICES": str(cards),
            "CUSIM_PATIENCE_MS": "60000", **env})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_large_values_of_one_push_are_summed_by_nccl_and_small_ones_where_they_are(self):
        for cards in (1, 2, 4):
            said = self.lists(cards)
            self.assertEqual(said["right"], [True] * 6, cards)
            self.assertEqual(said["lists"], {"summed": 3, "by": "nccl", "why_not_nccl": None})

    def test_without_nccl_the_sums_are_the_same_and_the_reason_is_said(self):
        said = self.lists(2, nccl="/nowhere/libnccl.so.2")
        self.assertEqual((said["right"], said["lists"]["summed"], said["lists"]["by"]), ([True] * 6, 3, "local"))
        self.assertRegex(said["lists"]["why_not_nccl"], "NCCL is not here .*/nowhere/libnccl.so.2")

    def test_a_card_that_is_lost_while_a_list_is_summed_is_told_by_the_push(self):
        said = self.lists(2, CUSIM_FAIL="cudaMemcpyAsync:7:999")
        self.assertLess(len(said["right"]), 6)
        self.assertEqual({reason for reason, _ in said["refused"]}, {"device-unavailable"})
        self.assertIn("CUDA error 999", said["refused"][0][1])


@unittest.skipUnless(os.path.exists(REAL), "it needs nvcc: package cuda-nvcc-13-0, see README.md")
@unittest.skipIf(os.path.exists("/proc/driver/nvidia"), "this machine has a driver")
class WithoutADriver(unittest.TestCase):
    def test_the_daemon_says_what_cuda_says_and_serves_from_the_cpu(self):
        with Running(plugin=REAL) as d:
            self.assertEqual(d.fields["device"], "cpu")
            soon(lambda: "no usable GPU: looking for cards: CUDA error 35 cudaErrorInsufficientDriver" in d.log())
            with store(d) as kv:
                kv.init("w", np.zeros(3, "float32"))
                self.assertEqual(kv.pull("w").tolist(), [0, 0, 0])
        done = subprocess.run([PARAMD, *ANY, "--device", "cuda:0"], capture_output=True, text=True, timeout=20,
                              env={**CLEAN, "PARAMD_CUDA_PLUGIN": REAL})
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("no usable GPU: looking for cards: CUDA error 35", done.stderr)


if __name__ == "__main__":
    counted.main()
