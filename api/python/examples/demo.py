#!/usr/bin/python3
"""The main job: a daemon and four trainers that learn handwritten digits, first synchronously, then asynchronously. Then
one trainer is killed in the middle of a training, and the daemon and the other trainers name it.

    make demo
    demo.py --stay                   leaves the daemon up, for the page and for curl, until Ctrl-C

Starts build/paramd on free ports of the loopback interface and four processes of digits.py, shows their progress in one
line, and says at the end how well both ways have learnt. It leaves no process behind, however it ends. Exit status: 0
when both accuracies are at least 0.95 and the killed trainer was named, else 1; 130 after Ctrl-C.
"""

import argparse
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from paramd import daemon

WORKERS = 4
WANTED = 0.95
TYPES = ('dist_sync', 'dist_async')
WORKER_TIMEOUT_S = 5
END_S = 3.0
# After one trainer has died: how long the others may take to tell whom they miss.
LAST_WORDS_S = WORKER_TIMEOUT_S + 4.0
# For the daemon and the others to name the trainer that was killed; reached only where something is wrong.
NAMED_S = 120.0


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Screen:
    """One line that is written over again on a terminal; elsewhere a plain line now and then."""

    PLAIN_EVERY_S = 1.0

    def __init__(self):
        self._terminal = sys.stdout.isatty() and os.environ.get('TERM', 'dumb') != 'dumb'
        self._colour = self._terminal and not os.environ.get('NO_COLOR')
        self._open = False
        self._last_s = 0.0
        self._last_text = ''

    def paint(self, text, code):
        return f'\033[{code}m{text}\033[0m' if self._colour else text

    def live(self, text, last=False):
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print('\r' + text[:width].ljust(width), end='\n' if last else '', flush=True)
            self._open = not last
        elif text != self._last_text and (last or time.monotonic() - self._last_s >= self.PLAIN_EVERY_S):
            self._last_s, self._last_text = time.monotonic(), text
            print(text, flush=True)

    def line(self, text=''):
        if self._open:
            print()
            self._open = False
        print(text, flush=True)


class Trainer:
    """One process of digits.py."""

    def __init__(self, kind, store, url, index, args):
        self.name = f'w{index}'
        self.kind = kind
        self.facts = {}
        self.accuracy = None
        self._rest = b''
        self._stderr = tempfile.TemporaryFile()
        command = [sys.executable, str(HERE / 'digits.py'), '--json', '--url', url, '--type', kind, '--store', store,
                   '--workers', str(WORKERS), '--name', self.name, '--epochs', str(args.epochs), '--seed',
                   str(args.seed), '--worker-timeout', str(WORKER_TIMEOUT_S)]
        # Its own session: Ctrl-C comes to the demo alone, which ends its trainers in order.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self._stderr, start_new_session=True,
                                        preexec_fn=daemon.end_with_parent)

    def read(self):
        """Takes in what it has reported. False: it has ended its output."""
        part = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + part).split(b'\n')
        for line in lines:
            facts = json.loads(line)
            if 'done' in facts:
                self.accuracy = facts['accuracy']
            else:
                self.facts = facts
        return bool(part)

    def rate(self):
        """Bytes per second that it pushed and pulled in the last epoch, computing included."""
        return self.facts['bytes'] / max(self.facts['seconds'], 1e-9) if self.facts else 0.0

    def last_words(self):
        self._stderr.seek(0)
        return self._stderr.read().decode('utf-8', 'replace').strip()

    def death(self):
        """None, or how it ended, if not well."""
        status = self.process.poll()
        if not status:
            return None
        if status < 0:
            return f'trainer {self.name} was ended by {signal.Signals(-status).name}'
        return f'trainer {self.name} ended with status {status}'

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()

    def close(self):
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._stderr.close()


class Training:
    """The trainers of one type, from their start to their end."""

    def __init__(self, kind, store, url, args, screen):
        self._kind, self._screen = kind, screen
        self._trainers = []
        try:
            for index in range(WORKERS):
                self._trainers.append(Trainer(kind, store, url, index, args))
        except BaseException:
            self.close()
            raise

    def run(self):
        """Shows the progress until all have ended; the worst of their accuracies. Failed when one dies."""
        with selectors.DefaultSelector() as selector:
            for trainer in self._trainers:
                selector.register(trainer.process.stdout, selectors.EVENT_READ, trainer)
            while selector.get_map():
                for key, _ in selector.select(0.5):
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                        key.data.process.wait()
                self._show()
                if any(t.death() for t in self._trainers):
                    self._fail(selector)
        self._show(last=True)
        if any(t.accuracy is None for t in self._trainers):
            raise Failed('a trainer ended without a result')
        return min(t.accuracy for t in self._trainers)

    def lose_one(self, missing):
        """Kills the last trainer once all have begun. (its name, what another trainer said of it). `missing` asks the
        daemon whom it waits for. Failed when nobody names it."""
        *others, victim = self._trainers
        end = time.monotonic() + NAMED_S
        with selectors.DefaultSelector() as selector:
            for trainer in self._trainers:
                selector.register(trainer.process.stdout, selectors.EVENT_READ, trainer)
            while selector.get_map() and time.monotonic() < end:
                for key, _ in selector.select(0.2):
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                        key.data.process.wait()
                if victim.process.poll() is None and all(t.facts for t in self._trainers):
                    victim.process.kill()
                    victim.process.wait()
                    self._screen.line(f'  {victim.name} is killed in epoch {victim.facts["epoch"]}')
                    self._until(lambda: victim.name in missing(), end, 'the daemon has not named ' + victim.name)
        said = [words for t in others if victim.name in (words := t.last_words())]
        if not said:
            raise Failed(f'no trainer has named {victim.name}:\n  ' + '\n  '.join(t.last_words() for t in others))
        return victim.name, said[0]

    @staticmethod
    def _until(fact, end, otherwise):
        while not fact():
            if time.monotonic() > end:
                raise Failed(otherwise)
            time.sleep(0.05)

    def _show(self, last=False):
        begun = [t.facts for t in self._trainers if t.facts]
        if not begun:
            return
        slowest = min(begun, key=lambda facts: facts['epoch'])
        loss = sum(facts['loss'] for facts in begun) / len(begun)
        rate = sum(t.rate() for t in self._trainers) / 1e6
        self._screen.live(f"  {self._kind:<10}  epoch {slowest['epoch']:3d}/{slowest['epochs']}  loss {loss:6.3f}  "
                          f"accuracy {slowest['accuracy']:.3f}  push/pull {rate:6.1f} MB/s", last)

    def _fail(self, selector):
        """One has died: waits a little for what the others say about it."""
        first = next(t for t in self._trainers if t.death())
        self._screen.line(f'  {first.death()}; waiting for what the others say')
        end = time.monotonic() + LAST_WORDS_S
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(0.2):
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.process.wait()
        said = [words for t in self._trainers if (words := t.last_words())]
        raise Failed('\n  '.join([first.death(), *said]))

    def close(self):
        for trainer in self._trainers:
            trainer.stop()
        for trainer in self._trainers:
            trainer.close()


def train(kind, url, args, screen):
    training = Training(kind, kind, url, args, screen)
    try:
        return training.run()
    finally:
        training.close()


def ask(server, path):
    """A document of the admin port, as curl gets it."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(server.admin + path, timeout=END_S) as answer:
        return json.load(answer)


def look(server, kind):
    """What a store then has."""
    keys = ask(server, f'/v1/stores/{kind}/keys')['items']
    largest = max(keys, key=lambda key: key['bytes'])
    return (f"{len(keys)} keys; {largest['key']}, {largest['dtype']} {tuple(largest['shape'])}, is at version "
            f"{largest['version']} after {largest['updates']} updates")


def lose_one(server, args, screen):
    """A trainer dies in the middle of a synchronous training: who is told what."""
    store = 'one_is_killed'
    path = f'/v1/stores/{store}/rounds'
    training = Training('dist_sync', store, server.url, argparse.Namespace(**{**vars(args), 'epochs': 10000}), screen)
    try:
        screen.line('\nA trainer that dies in the middle of a training is named:')
        name, said = training.lose_one(
            lambda: {who['name'] for item in ask(server, path)['items'] for who in item['missing']})
        screen.line(f'  {"the daemon":<10}  GET {path} lists {name} as missing')
        screen.line(f'  {"a trainer":<10}  {said}')
    finally:
        training.close()


def stay(server, screen):
    """Waits for Ctrl-C."""
    screen.line(f'\nThe daemon stays up for its page, {server.admin}/, until Ctrl-C. Look in with:\n'
                f'       curl {server.admin}/v1/stores\n'
                f'       build/paramctl keys --store dist_sync --url {server.url}')
    try:
        server.process.wait()
    except KeyboardInterrupt:
        screen.line()


def demo(args, screen):
    results, start = {}, time.monotonic()
    with daemon.Daemon() as server:
        screen.line(f'{screen.paint("paramd", 1)} at {server.url}, {WORKERS} trainers, a network of 64-64-10 units')
        screen.line(f'its page, while this runs: {server.admin}/')
        for kind in TYPES:
            results[kind] = train(kind, server.url, args, screen)
            screen.line(f'  {"":<10}  the daemon has {look(server, kind)}')
        lose_one(server, args, screen)
        status = conclude(results, time.monotonic() - start, screen)
        if args.stay:
            stay(server, screen)
        ended = server.stop()
        if ended != 0:
            raise Failed(f'the daemon ended with status {ended}\n{server.log()}')
    screen.line('No process is left.')
    return status


def conclude(results, seconds, screen):
    """Says how it went; the exit status."""
    screen.line()
    for kind, accuracy in results.items():
        good = accuracy >= WANTED
        verdict = screen.paint('good', 32) if good else screen.paint(f'less than {WANTED}', 31)
        screen.line(f'  {kind:<10}  test accuracy {accuracy:.3f}   {verdict}')
    screen.line(f'  {seconds:.1f} s')
    if min(results.values()) < WANTED:
        return 1
    screen.line('\nNext:  make demo ARGS=--stay                      the same, and the daemon stays up for a look at its page\n'
                '       make run                                   a daemon for your own trainers\n'
                '       curl http://127.0.0.1:7780/v1/info         what it is\n'
                '       /usr/bin/python3 api/python/examples/kvstore_tutorial.py --url tcp://127.0.0.1:7700')
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0, help='of the first weights and the order of the pictures')
    parser.add_argument('--stay', action='store_true', help='leave the daemon up until Ctrl-C')
    return parser.parse_args(arguments)


def interrupt(*_):
    raise KeyboardInterrupt


def main(arguments=None):
    args, screen = parse(arguments), Screen()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        return demo(args, screen)
    except KeyboardInterrupt:
        screen.line('interrupted; trainers and daemon have been ended')
        return 130
    except (Failed, RuntimeError, OSError) as error:
        screen.line(f'the demo failed: {error}')
        return 1


if __name__ == '__main__':
    sys.exit(main())
