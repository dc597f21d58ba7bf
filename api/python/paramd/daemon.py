"""A daemon of one's own: for demos, tests and notebooks.

    with paramd.daemon.Daemon() as daemon:
        kv = paramd.kv.create('dist_async', url=daemon.url)

starts build/paramd of this checkout (or what PARAMD_DAEMON names, or `paramd` from PATH) on free ports of the loopback
interface, and ends it at the end of the block. When the process that started it dies, it ends too.
"""

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time

from . import _lib

__all__ = ['Daemon', 'end_with_parent', 'find']

_READY_S = 20.0
_END_S = 15.0
_PR_SET_PDEATHSIG = 1


def find():
    """Path of the daemon's program. FileNotFoundError says how to get it."""
    if os.environ.get('PARAMD_DAEMON'):
        return os.environ['PARAMD_DAEMON']
    built = _lib.checkout() / 'build' / 'paramd'
    found = str(built) if built.exists() else shutil.which('paramd')
    if not found:
        raise FileNotFoundError(f'{built} is not there: `make` builds it')
    return found


def end_with_parent(libc=ctypes.CDLL(None), signal_number=signal.SIGKILL):
    """For subprocess's preexec_fn: the child is killed when the thread that started it ends, however that happens."""
    libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


class Daemon:
    """A running daemon. Its doors are attributes: url (front), bulk, admin, probe; None for one that is off.

    bulk: False starts it with `--bulk off`. arguments: more of its command line.
    RuntimeError with what it printed when it does not get ready."""

    def __init__(self, *arguments, bulk=True):
        command = [find(), '--listen', 'tcp://127.0.0.1:0', '--bulk', 'tcp://127.0.0.1:0' if bulk else 'off',
                   '--admin', '127.0.0.1:0', '--probe', '127.0.0.1:0', *arguments]
        self._log = tempfile.TemporaryFile()
        # A session of its own, so that the Ctrl-C meant for the program does not end the daemon under its feet.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
                                        start_new_session=True, preexec_fn=end_with_parent)
        try:
            self._read(self._ready_line())
        except BaseException:
            self.stop()
            raise

    def _ready_line(self):
        end, line = time.monotonic() + _READY_S, b''
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b'\n'):
                left = end - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f'the daemon was not ready after {_READY_S:.0f} s\n{self.log()}')
                if selector.select(left):
                    part = os.read(self.process.stdout.fileno(), 4096)
                    if not part:
                        raise RuntimeError(f'the daemon ended with status {self.process.wait()}\n{self.log()}')
                    line += part
        return line.decode().splitlines()[0]

    def _read(self, line):
        words = dict(word.split('=', 1) for word in line.split() if '=' in word)
        if not line.startswith('paramd ready ') or 'data' not in words:
            raise RuntimeError(f'the daemon said {line!r} in place of its ready line')
        first = {name: value.split(',')[0] for name, value in words.items()}
        self.url = first['data']
        self.bulk, self.admin, self.probe = (None if first.get(door, 'off') == 'off' else first[door]
                                             for door in ('bulk', 'admin', 'probe'))

    def log(self, lines=20):
        """The last lines that it wrote to stderr."""
        self._log.seek(0)
        return '\n'.join(self._log.read().decode('utf-8', 'replace').splitlines()[-lines:])

    def stop(self):
        """Ends it, by force if it does not end in time. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.stdout.close()
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self._log.close()
