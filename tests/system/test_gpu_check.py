#!/usr/bin/python3
"""tests/gpu/check.sh, rehearsed: packed with the stand-in's plug-in in place of the real one, unpacked elsewhere, and run with a
little of each step. nvidia-smi and compute-sanitizer are played."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
STAND_IN = ROOT / "build" / "paramd-cusim.so"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PARAMD_", "CUSIM_"))}

# One tool runs the program, one does not know the card, one finds something, one takes for ever.
SANITIZER = """#!/bin/sh
case "$*" in
*memcheck*) shift 4; exec "$@" ;;
*initcheck*) echo "========= ERROR SUMMARY: 1 error"; exit 9 ;;
*racecheck*stat*) echo begun; exec sleep 100 ;;
*) echo "========= Error: Device not supported"; exit 1 ;;
esac
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def shorten(path):
    """The script with a limit that a rehearsal can wait for."""
    text = path.read_text()
    changed = text.replace("racecheck of statistics|10|", "racecheck of statistics|1|")
    assert changed != text
    path.write_text(changed)


@unittest.skipUnless(STAND_IN.exists(), "it needs CUDA's headers: packages cuda-cudart-dev-13-0 cuda-crt-13-0, see README.md")
class GpuCheck(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        done = subprocess.run(["sh", "tests/gpu/bundle.sh", STAND_IN, cls.folder / "check.tar.gz"], cwd=ROOT, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        cls.packed = done.stdout
        subprocess.run(["tar", "-xzf", "check.tar.gz"], cwd=cls.folder, check=True, timeout=60)
        cls.bundle = cls.folder / "paramd-gpu-check"
        tools = cls.folder / "tools"
        tools.mkdir()
        program(tools / "nvidia-smi", "#!/bin/sh\necho A card, 1.0, 8 MiB\n")
        program(tools / "compute-sanitizer", SANITIZER)
        # The stand-in for NCCL is a part of that for CUDA.
        cls.env = {**CLEAN, "PATH": f"{tools}:{CLEAN['PATH']}", "PYTHON": "/usr/bin/python3", "PARAMD_CHECK_REHEARSAL": "1",
                   "PARAMD_NCCL": str(cls.bundle / "paramd-cuda.so")}

    def check(self, script):
        return subprocess.run(["sh", script, self.folder / "log"], cwd="/", env=self.env, text=True, capture_output=True,
                              timeout=300)

    def test_each_step_counts_and_none_stops_the_next(self):
        shorten(self.bundle / "check.sh")
        done = self.check(self.bundle / "check.sh")
        log = (self.folder / "log").read_text()
        table = dict(re.findall(r"^(\w.*?)  +(passed|FAILED|skipped) ", done.stdout, re.M))
        expected = {"memcheck": "passed", "racecheck": "skipped", "racecheck of statistics": "FAILED", "initcheck": "FAILED"}
        expected.update(dict.fromkeys(["machine", "every device's suite", "rules by their formulas", "texts by the rules",
                                       "compiled texts", "the store's suite", "mailboxes", "sums by NCCL",
                                       "work of 256 Mi elements", "work of 64 Mi elements", "training in a daemon"], "passed"))
        self.assertEqual(table, expected, done.stdout + done.stderr + log)
        self.assertEqual(done.stdout.splitlines()[-1], "12 passed, 2 failed, 1 skipped")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"racecheck of statistics +FAILED +\d+ s  killed; the limit is 1 s")
        self.assertRegex(done.stdout, r"initcheck +FAILED +\d+ s  status 9; .*1 error")
        self.assertRegex(done.stdout, r"racecheck +skipped +\d+ s  compute-sanitizer: Device not supported")
        self.assertEqual(len(re.findall(r"  G1 not judged", done.stdout)), 6)      # add, SGD and Adam, twice
        self.assertEqual(len(re.findall(r"  G2 not judged", done.stdout)), 2)
        for said in ("A card, 1.0, 8 MiB", "ERROR SUMMARY: 1 error", "begun", "3 trainings on stand-in 0",
                     "12 passed, 2 failed, 1 skipped", "skipped where_the_machine_code_is_refused_ptx_is_loaded: ",
                     "skipped a_mailbox_that_cannot_be_opened_here_goes_back: ", "skipped values_may_lie_on_any_card: "):
            self.assertIn(said, log)
        self.assertEqual(len(re.findall(r"^==== .* \(at most \d+ s\)$", log, re.M)), 15)
        self.assertEqual(log.count("every result is the CPU's, bit for bit"), 4)   # said, and in the table

    def test_without_nccl_its_step_is_skipped_and_says_so(self):
        said = self.folder / "said"
        env = {**self.env, "PARAMD_CHECK_STEP": "nccl", "PARAMD_NCCL": "/nowhere/libnccl.so.2", "said": said}
        with open(said, "w") as out:
            done = subprocess.run(["sh", self.bundle / "check.sh"], cwd=self.bundle, env=env, stdout=out, stderr=out,
                                  timeout=60)
        self.assertEqual(done.returncode, 77)
        self.assertRegex(said.read_text().splitlines()[-1], "^NCCL is not here .*/nowhere/libnccl.so.2")

    def test_limits_of_more_than_320_seconds_are_refused(self):
        text = (ROOT / "tests/gpu/check.sh").read_text()
        script = self.bundle / "longer.sh"
        script.write_text(text.replace("machine|5|", "machine|100|"))
        done = self.check(script)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"the limits of the steps come to \d+ s, more than 320")

    def test_the_bundle_says_its_size_and_has_the_libraries_it_needs(self):
        self.assertRegex(self.packed, r"check.tar.gz: \d+ kB; ")
        own = {"LD_LIBRARY_PATH": str(self.bundle / "lib"), "PATH": CLEAN["PATH"]}
        for name in ("paramd", "test_device", "test_cuda_program", "test_sums", "test_store", "test_same_host", "bench_gpu",
                     "libparamd.so", "paramd-cuda.so"):
            said = subprocess.run(["ldd", self.bundle / name], env=own, text=True, capture_output=True, timeout=60).stdout
            for line in said.splitlines():
                found = re.search(r"=> (\S+)", line)
                if found and not re.match(r"\s*lib(c|m|dl|rt|pthread)\.so", line):
                    self.assertTrue(found[1].startswith(str(self.bundle)), line)


if __name__ == "__main__":
    counted.main()
