"""Python functions as updaters of a daemon's store.

A daemon runs no Python. kv.set_updater(f) calls an ordinary function f(key, grad, stored) for each
key, with the key itself and with symbolic arrays of its shape and dtype, which write down what is
done to them. The result is a text in the updater language (gpu/updaters.md); it is set, and can be
read with kv.get_updater().

    class Momentum:
        def __init__(self):
            self.mom = {}

        def __call__(self, key, grad, stored):
            self.mom[key] = 0.9 * self.mom.get(key, 0) + grad
            stored -= 0.1 * self.mom[key]

becomes

    # traced from Momentum(key, grad, stored)
    slot mom = 0
    mom = 0.9 * mom + grad
    stored -= 0.1 * mom

Python itself runs at the time of tracing: loops, closures, branches on the key, .shape and print
happen then, not at each update. Prints show once for each key. The function and all that it reaches
is afterwards as it was found.

Elements
    Arithmetic, comparisons, numpy.where, minimum, maximum, clip, abs, sqrt, exp, log, tanh, sign,
    square, copyto, zeros_like, ones_like, full_like, isnan, isfinite, & | ~ of comparisons, and
    whole powers, which are multiplied out. All of it is computed in the dtype of the key, where
    numpy may compute in float64; a comparison in arithmetic is 1 or 0. What looks at elements (if,
    float, indices, sums) is refused.

What a function keeps
    It is called three times for each key, with other symbols each time. What the calls leave in
    attributes, closures, globals, default arguments, containers and objects is compared:

    arrays          for each key, such as self.m[key]: a slot. It begins as 0 or as `stored`; another
                    first update, such as of `if key not in self.m`, becomes where(step == 1, ...).
    counts          for each key, such as self.t[key] += 1: `step`, plus what it was before. numpy,
                    math.sqrt and the like take them. A branch may tell the first update from
                    later ones. A branch that tells later ones apart (if t > 100, min, max) is
                    refused: numpy.where, minimum and maximum choose.
    what is made    once, at the first update, and then stays (a dict, a flag): constant.
    anything else   that changes is refused, with its name and line: other numbers, lists that grow,
                    random numbers, clocks, generators, state that begins later than the first
                    update or that several keys share. A daemon updates each key by itself, so
                    self.t += 1 counts updates of a key only while the store has one key; a second
                    key is then refused.

    Slots and `step` begin when the text is set; where the store has the same text already, from
    another worker or an earlier start, they go on.

All keys of a store must write the same text. At most KEYS_MAX keys are traced; for more, or to set
it elsewhere, trace() answers the text.

When the store gets it
    At once if it has keys, whoever made them. Else before this client's first init makes some, or
    before its next push or barrier once another client has.

A refusal is Unimplemented (FailedPrecondition for what another text or dtype would cure), and
changes nothing.
"""

import contextlib
import functools
import gc
import itertools
import math
import sys
import threading
import types

import numpy as np

from . import errors, _program, _world
from ._symbols import (NOTHING, Node, Promote, SymbolicArray, SymbolicNumber, UNDEFINED, constant,
                       expression_text, is_mask, mapped, node_of, reachable, refuse, refuse_at,
                       tracing, undefined)

__all__ = ['trace']


# ---- while a function runs -----------------------------------------------------------------------

def _creating(original, fill):
    """numpy.zeros and the like: of the shape of the key they are symbolic, for results may be
    written into them."""
    def create(shape, *args, **kwargs):
        run, made = tracing.now, original(shape, *args, **kwargs)
        if run is None or made.shape != run.shape or made.dtype.kind != 'f':
            return made
        value = undefined() if fill is UNDEFINED else made.flat[0] if made.size > 0 else 0.0
        return run.constant(value)
    return create


def _of_number(original, function):
    """math.sqrt and the like take numbers that change with each update, too."""
    def compute(*args):
        return (function if any(isinstance(a, SymbolicNumber) for a in args) else original)(*args)
    return compute


_REPLACED = [(np, name, _creating(getattr(np, name), fill))
             for name, fill in {'zeros': 0, 'ones': 1, 'full': None, 'empty': UNDEFINED}.items()]
_REPLACED += [(math, name, _of_number(getattr(math, name), function))
              for name, function in {'sqrt': np.sqrt, 'exp': np.exp, 'log': np.log, 'tanh': np.tanh, 'fabs': np.abs,
                                     'pow': np.power}.items()]
_ORIGINAL = {id(getattr(where, name)): made for where, name, made in _REPLACED}
_lock = threading.RLock()


class _Muted:
    """Standard output without what this thread writes; with the first writing noted."""

    def __init__(self, out, shows):
        self._out, self._shows, self._thread, self.heard = out, shows, threading.get_ident(), False

    def write(self, text):
        if threading.get_ident() == self._thread:
            self.heard = True
            if not self._shows:
                return len(text)
        return self._out.write(text)

    def __getattr__(self, name):
        return getattr(self._out, name)


@contextlib.contextmanager
def _replaced():
    """While a function is traced numpy.zeros and others are those of above. Other threads get what
    they are used to."""
    with _lock:
        originals = [(where, name, getattr(where, name)) for where, name, _ in _REPLACED]
        try:
            for where, name, made in _REPLACED:
                setattr(where, name, made)
            yield
        finally:
            for where, name, original in originals:
                setattr(where, name, original)


@contextlib.contextmanager
def _without_collector():
    """Many keys make many objects, all of which stay: to look through them again and again takes
    most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# So many runs in a row must show that a function draws random numbers.
_SURE = 5

# What gives another answer each time, by the module or class that it is a function of.
_CLOCKS = {'time', 'posix', 'nt', '_random', 'datetime.datetime', 'datetime.date'}
_HARMLESS = {'sleep', 'fspath', 'getpid', 'stat'}


def _watch_calls(frame, event, function):
    """A profiler: refuses calls of clocks and sources of chance from the function's own code, and notes that this
    thread draws random numbers, whoever's code does it for the function."""
    if event != 'c_call':
        return
    of = getattr(function, '__self__', None)
    if isinstance(of, _world._RANDOM) and tracing.now is not None:
        tracing.now.drew = True
    if _world._is_foreign(frame.f_globals.get('__name__', '')):
        return
    name = f'{of.__module__}.{of.__name__}' if isinstance(of, type) else getattr(function, '__module__', None)
    if name is None and isinstance(of, types.ModuleType):
        name = of.__name__
    if name in _CLOCKS and function.__name__ not in _HARMLESS:
        if name in ('posix', 'nt') and function.__name__ not in ('urandom', 'getrandom', 'times'):
            return
        sys.setprofile(None)
        refuse(f'{name}.{function.__name__}(), which answers something else each time,',
                'the daemon computes the same formula at each update')


# ---- one key -------------------------------------------------------------------------------------

def _frozen(value):
    if isinstance(value, SymbolicArray):
        return 'symbol', value._node.number, value._key_dtype, value.dtype
    if isinstance(value, SymbolicNumber):
        return 'number', value._node.number
    return None


def _identity(value, path):
    """What two places share when a change of the one is a change of the other."""
    return path if _is_number(value) else id(value)


def _is_number(value):
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


class _Run:
    """A function as it is traced for one key at a time."""

    def __init__(self, function):
        self.function, self.shape, self.dtype = function, None, None
        self.world = _world.World(function, _frozen, self._refuse_place)
        self.heard, self.raised = False, None       # raised: the last refusal within the function
        self.made = {}      # results of operations, by the ufunc and the marks of operands

    def _refuse_place(self, what, path):
        refuse_at(f'{what} ({_world.path_text(path)})', 'keep state in arrays, for each key', None)

    def constant(self, value):
        node = value if isinstance(value, Node) else constant(value)
        return SymbolicArray(node, self.shape, self.dtype)

    def leaf(self, name):
        return SymbolicArray(Node.of('name', name), self.shape, self.dtype)

    def promote(self, array):
        self.raised = Promote(array)
        raise self.raised

    def check_raised(self):
        """A function that goes on after a refusal (try, except) would do something else with
        elements."""
        if self.raised is not None:
            raise self.raised

    def set_key(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype

    def begin(self):
        """Functions that were imported by name are replaced as well."""
        look = self.world.look()
        names = {p: _ORIGINAL[id(v)] for p, v in look.value.items() if id(v) in _ORIGINAL}
        self.world.put(look, names)

    def call(self, key, number, shows=False, watched=False):
        """Calls the function once with symbols of this number; answers what it made of `stored`."""
        grad, stored = self.leaf(f'grad#{number}'), self.leaf(f'stored#{number}')
        out, err = _Muted(sys.stdout, shows), _Muted(sys.stderr, shows)
        # Where somebody measures or debugs, that goes on.
        watched, before = watched and sys.getprofile() is None, tracing.now
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            tracing.now = self
            self.drew = not watched              # not known then, so it may have drawn
            if watched:
                sys.setprofile(_watch_calls)
            self.raised = None
            try:
                self.function(key, grad, stored)
            finally:
                tracing.now = before
                if watched:
                    sys.setprofile(None)
        self.check_raised()
        self.heard |= out.heard and shows
        return stored._node

    def state(self, value, number, index):
        """The symbol of what a slot holds when trace `number` begins."""
        return SymbolicArray(Node.of('name', f'slot {index}#{number}'), self.shape, self.dtype, is_mask(value))

    def node(self, value, path):
        """What a slot holds as a node; refuses what is not the same in all elements."""
        if type(value) is SymbolicArray:
            return value._node
        if isinstance(value, np.ndarray) and value.shape != self.shape:
            refuse(f'{_world.path_text(path)} of the shape {value.shape}', f'the key has {self.shape}')
        if isinstance(value, np.ndarray) and value.size == 0:
            return constant(0)
        return node_of(value)

    def is_slot(self, value):
        return type(value) is SymbolicArray or (isinstance(value, np.ndarray) and value.shape == self.shape
                                                    and value.dtype.kind == 'f')


class _Traced:
    """What three traces of a function for a key have shown. slots and counters are dicts from place
    to index and offset."""

    def __init__(self):
        self.first = self.later = None      # what becomes of stored in the first update, and later
        self.slots, self.counters, self.promoted = {}, {}, set()
        self.firsts, self.laters = [], []           # the same of slots, by their index


class _OneKey:
    """Three traces of a function for one key. Leaves everything as it was."""

    def __init__(self, run, key, shows):
        self.run, self.key, self.shows, self.world = run, key, shows, run.world

    def trace(self):
        start = self.world.save()
        promoted = set()
        try:
            while True:
                try:
                    return self._rounds(promoted)
                except Promote as wanted:
                    self.world.restore(start)
                    more = self._candidates(wanted.array) - promoted
                    if not more:
                        raise errors.Unimplemented(
                            'an updater function of a daemon is traced, and elements of an array as such (numpy.array, '
                            'numpy.asarray, results written into an array of the function\'s own) cannot be written '
                            'down; make arrays that are kept with numpy.zeros_like(stored), for each key, such as '
                            f'self.m[key] ({wanted.place})', reason='unimplemented') from None
                    promoted |= more
        finally:
            self.world.restore(start)

    def _candidates(self, array):
        look = self.world.look()
        return {p for p, v in look.value.items() if type(v) is not SymbolicArray and self.run.is_slot(v)
                and (v is array if array is not None else v.size == 0 or bool((v == v.flat[0]).all()))}

    def _rounds(self, promoted):
        run, done = self.run, _Traced()
        done.promoted = set(promoted)
        run.begin()
        look = self.world.look()
        self.world.put(look, {p: run.constant(run.node(look.value[p], p)) for p in promoted})
        self._entry, self._number, before = None, 1, self.world.look()
        done.first = self._call(1)
        self.shows = False
        one = self.world.look()
        changed = {p for p in one.content if before.content.get(p) != one.content[p]}
        for path in (p for p in one.content if p in changed and p in one.value):
            if run.is_slot(one.value[path]):
                done.slots[path] = len(done.slots)
        after_one = self.world.save(one)
        while True:
            later, two = self._next(2, one, done)
            if not self._take_scalars(changed, before, one, two, done):
                break
            self.world.restore(after_one)
            one = self.world.look()
        done.firsts = [run.node(one.value[p], p) for p in done.slots]
        results = self._check_same(one, two, done)
        again, three = self._next(3, two, done)
        results_again = self._check_same(two, three, done)
        done.later, done.laters = _renamed(later, 2), [_renamed(n, 2) for n in results]
        if done.later is not _renamed(again, 3) or done.laters != [_renamed(n, 3) for n in results_again]:
            self._refuse_change(later, again)
        done.first, done.firsts = _renamed(done.first, 1), [_renamed(n, 1) for n in done.firsts]
        for node in (done.first, done.later, *done.firsts, *done.laters):
            _check_leaves(node)
        return done

    def _call(self, number):
        self._number = number
        self._entry = self.world.save()
        before = _world.Chance()
        try:
            node = self.run.call(self.key, number, self.shows, watched=True)
        finally:
            # Another thread may have drawn, whose numbers must not come again. Where the calls of this one cannot be
            # watched, several runs in a row must show that it draws.
            line = None
            if self.run.drew and _world.Chance() != before:
                lines = itertools.takewhile(bool, (self._line(_world.Chance) for _ in range(_SURE)))
                lines = list(lines)
                line = lines[0] if len(lines) == _SURE else None
            if line:
                before.restore()
        if line:
            refuse_at('a random number, which is another each time,',
                      'the daemon computes the same formula at each update', line)
        return node

    def _next(self, number, look, done):
        """The next trace: with symbols for what slots hold and for what counters have come to."""
        symbols, values = {}, {}
        for path, index in done.slots.items():
            value = look.value[path]
            values[path] = symbols.setdefault(_identity(value, path), self.run.state(value, number, index))
        values.update((p, SymbolicNumber.of_step(offset - 1)) for p, offset in done.counters.items())
        self.world.put(look, values)
        return self._call(number), self.world.look()

    def _take_scalars(self, changed, before, one, two, done):
        """Finds out what numbers that changed are, from the first two updates. Answers whether some
        are new."""
        found = False
        for path in changed:
            if path in done.slots or path in done.counters or path not in one.value or not _is_number(one.value[path]):
                continue
            first, second = one.value[path], two.value.get(path)
            if two.content.get(path) == one.content[path]:
                continue
            if isinstance(second, SymbolicArray):
                done.slots[path] = len(done.slots)
            elif _is_number(second) and second - first == 1 and float(first).is_integer():
                done.counters[path] = int(first) - 1
            else:
                self._refuse_cell(path, f'changes from {before.value.get(path, "nothing")!r:.30} to {first!r:.30} to '
                                        f'{second!r:.30}', 'a number may count the updates of its key; others are computed '
                                        'of that count, such as beta ** self.t[key]')
            found = True
        return found

    def _check_same(self, was, now, done):
        """All but slots and counters is as it was. Answers the nodes of slots."""
        for path in {**was.content, **now.content}:
            if path in done.slots and path in now.value and (self.run.is_slot(now.value[path])
                                                             or _is_number(now.value[path])):
                if is_mask(was.value[path]) == is_mask(now.value[path]):
                    continue
            if path in done.counters:
                value = now.value.get(path)
                if isinstance(value, SymbolicNumber) and value._offset == done.counters[path]:
                    continue
            elif path not in done.slots and was.content.get(path) == now.content.get(path):
                continue
            self._refuse_cell(path, 'changes with later updates in another way than a slot or a count of the updates',
                              'an array for each key is kept as a slot and a number that counts its updates as step')
        groups = [{p: _identity(look.value[p], p) for p in done.slots} for look in (was, now)]
        if self._partition(groups[1], done) != self._partition(groups[0], done):
            refuse('one array under two names that are different arrays in a later update', 'keep copies: x.copy()')
        return [self.run.node(now.value[p], p) for p in done.slots]

    def _partition(self, group, done):
        first = {}
        return [first.setdefault(group[p], i) for i, p in enumerate(done.slots)]

    # -- refusals that name the place and the line

    def _refuse_cell(self, path, what, cure):
        line = self._line(lambda: self.world.look().content.get(path))
        refuse_at(f'{_world.path_text(path)}, which {what},', cure, line)

    def _refuse_change(self, later, again):
        for node, number in ((later, 2), (again, 3)):
            _check_leaves(_renamed(node, number))
        refuse_at('a function that computes something else at the second and the third update', 'the texts are '
                   f'{expression_text(_renamed(later, 2))!r:.80} and {expression_text(_renamed(again, 3))!r:.80}', None)

    def _line(self, watched):
        """The line of the function that changes what `watched` answers, by another run of the last
        trace."""
        self.world.restore(self._entry)
        seen, last, found = [watched()], [None], []

        def check():
            now = watched()
            if now != seen[0] and last[0] is not None and not found:
                found.append(last[0])

        def trace_lines(frame, event, _):
            if _world._is_foreign(frame.f_globals.get('__name__', '')) or found:
                return None
            if event != 'call':
                check()
            if event == 'line':
                last[0] = (frame.f_code.co_filename, frame.f_lineno)
            return trace_lines
        tracer = sys.gettrace()
        sys.settrace(trace_lines)
        try:
            self.run.call(self.key, self._number)
        except (Exception, Promote):
            pass
        finally:
            sys.settrace(tracer)
        check()
        return found[0] if found else None


def _renamed(root, number):
    """With the names of symbols without the number of their trace."""
    end = f'#{number}'

    def rename(node, operands):
        if node.op == 'name' and operands[0].endswith(end):
            return Node.of('name', operands[0][:-len(end)])
        return Node.of(node.op, *operands)
    return mapped(root, rename)


def _check_leaves(root):
    for node in reachable(root):
        if node.op == 'name' and node.operands[0] == NOTHING:
            refuse('what numpy.empty leaves in an array', 'begin with numpy.zeros_like(stored)')
        if node.op == 'name' and '#' in node.operands[0]:
            refuse('an array that is kept from an earlier update at a place that is not seen (functools.lru_cache, a '
                    'generator, a library)', 'keep it in an attribute or a dict, for each key')


# ---- tracing -------------------------------------------------------------------------------------

# Tracing calls the function at least three times for each key.
KEYS_MAX = 100_000
# So many keys are traced one by one, and so show their own places of state; others have theirs
# where these have it.
_ALONE_MAX = 16
# Of more, those that are not alone are traced twice: they must become what the others have become
# in three traces.
_THRICE_MAX = 1000


def _name_of(function):
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, '__name__', type(function).__name__)
    return ''.join(c if c.isascii() and c.isprintable() else '?' for c in name)[:60]


def _trace_alone(run, key, shape, dtype, shows):
    """(what was traced, its text) of one key."""
    dtype = np.dtype(dtype)
    if dtype.kind != 'f':
        raise errors.FailedPrecondition(f'key {key!r} is {dtype}: an updater function of a daemon computes with '
                                        'fractions, so its keys are float32 or float64', reason='updater-incompatible')
    run.set_key(shape, dtype)
    name = _name_of(run.function)
    done = _OneKey(run, key, shows).trace()
    start = Node.of('name', 'stored')
    if done.later is start and done.first is start:
        raise errors.Unimplemented(f'{name}({key!r}, grad, stored) leaves stored as it is: change it in '
                                   'place, such as stored += x or stored[:] = x', reason='unimplemented')
    return done, _program.text_of(done, key, f'# traced from {name}(key, grad, stored)')


def trace(function, key, shape, dtype):
    """The text that function(key, grad, stored) writes for a key, as it can be set with
    kv.set_updater({'type': 'program', 'text': text}). The function is left as it was found."""
    with _replaced():
        return _trace_alone(_Run(function), key, shape, dtype, True)[1]


# ---- many keys -----------------------------------------------------------------------------------

def _place_for(path, key, other):
    """The place of another key's state where this key has it at `path`; None when the key is not
    part of it."""
    at = next((i for i, label in enumerate(path) if label == _world.Item(key)), None)
    return None if at is None else path[:at] + (_world.Item(other),) + path[at + 1:]


class _Places:
    """Where a key's slots and counters are."""

    def __init__(self, done, key=None, other=None):
        def moved(path):
            return path if other is None else _place_for(path, key, other)
        self.slots = [moved(p) for p in done.slots]
        self.counters = {moved(p): offset for p, offset in done.counters.items()}
        self.promoted = [moved(p) for p in done.promoted]

    def all(self):
        return [*self.slots, *self.counters]


class _Together:
    """Three traces of a function for many keys, one after another as a store would update them:
    each key must become what it becomes alone. places: of each key."""

    def __init__(self, run, keys, places):
        self.run, self.keys, self.places, self.world = run, keys, places, run.world
        self._known = {}

    def _short(self, node, number):
        """The node without the number of its trace; the same for many keys, so made once."""
        known = self._known.get((node.number, number))
        if known is None:
            known = self._known[node.number, number] = (_renamed(node, number), node)
        return known[0]

    def trace(self, shown):
        """Answers what became of stored and of slots, for each key; `shown` tells for which keys
        prints show."""
        start = self.world.save()
        try:
            self.run.begin()
            look = self.world.look()
            self._put(look, lambda key, places: {p: self.run.constant(self.run.node(look.value[p], p))
                                                 for p in places.promoted if p in look.value})
            firsts, look = self._round(1, shown), self.world.look()
            one = look.content
            results = [[first, None, self._nodes(key, look, 1), None] for key, first in zip(self.keys, firsts)]
            before = None
            for number in (2, 3) if len(self.keys) <= _THRICE_MAX else (2,):
                self._enter(look, number)
                laters, look = self._round(number, ()), self.world.look()
                rest = {p: c for p, c in look.content.items() if p not in self._own}
                before = before or {p: c for p, c in one.items() if p not in self._own}
                if rest != before:
                    path = next(p for p in {**rest, **before} if rest.get(p) != before.get(p))
                    refuse_at(f'{_world.path_text(path)}, which changes with each round of updates,', _BY_KEY, None)
                for key, later, result in zip(self.keys, laters, results):
                    nodes = self._nodes(key, look, number)
                    if number == 3 and (later is not result[1] or nodes != result[3]):
                        _refuse_key(self.run, key[0])
                    result[1], result[3] = later, nodes
            return results
        except Promote as wanted:
            raise errors.Unimplemented(f'an updater function of a daemon is traced, and an array that several keys write '
                                       f'into cannot be written down; {_BY_KEY} ({wanted.place})',
                                       reason='unimplemented') from None
        finally:
            self.world.restore(start)

    def _round(self, number, shown):
        run, results = self.run, []
        before, out, err = tracing.now, sys.stdout, sys.stderr
        muted = _Muted(out, False), _Muted(err, False)
        with contextlib.redirect_stdout(muted[0]), contextlib.redirect_stderr(muted[1]):
            tracing.now, run.raised = run, None
            try:
                for key, shape, dtype in self.keys:
                    for m in muted:
                        m.shows = key in shown
                    run.set_key(shape, dtype)
                    grad, stored = run.leaf(f'grad#{number}'), run.leaf(f'stored#{number}')
                    run.function(key, grad, stored)
                    results.append(self._short(stored._node, number))
            finally:
                tracing.now = before
        run.check_raised()
        run.heard |= muted[0].heard and bool(shown)
        return results

    def _put(self, look, values_of):
        values = {}
        for key, shape, dtype in self.keys:
            self.run.set_key(shape, dtype)
            values.update(values_of(key, self.places[key]))
        self.world.put(look, values)

    def _enter(self, look, number):
        """Symbols for what slots hold, and for what counters have come to."""
        owner, self._own = {}, set()

        def values_of(key, places):
            symbols, values = {}, {}
            for index, path in enumerate(places.slots):
                value = look.value[path]
                same = _identity(value, path)
                if owner.setdefault(same, key) != key:
                    _refuse_shared(path, owner[same], key)
                if same not in symbols:
                    symbols[same] = self.run.state(value, number, index)
                values[path] = symbols[same]
            values.update((p, SymbolicNumber.of_step(offset - 1)) for p, offset in places.counters.items())
            self._own.update(values)
            return values
        self._put(look, values_of)

    def _nodes(self, key, look, number):
        """What the slots of a key hold after a round; its counters have counted it."""
        self.run.set_key(*key[1:])
        places = self.places[key[0]]
        for path, offset in places.counters.items():
            value = look.value.get(path)
            if not (value == offset + 1 if number == 1 else isinstance(value, SymbolicNumber) and value._offset == offset):
                _refuse_key(self.run, key[0])
        if any(p not in look.value for p in places.slots):
            _refuse_key(self.run, key[0])
        return [self._short(self.run.node(look.value[p], p), number) for p in places.slots]


_BY_KEY = ('a daemon updates each key by itself: keep state for each key, such as self.m[key] and '
           'self.t[key]')


def _refuse_key(run, key):
    refuse_at(f'{_name_of(run.function)}, which makes something else of key {key!r} after '
              'updates of other keys,', _BY_KEY, None)


def _refuse_shared(path, key, other):
    refuse_at(f'{_world.path_text(path)}, which the keys {key!r} and {other!r} both change,', _BY_KEY, None)


class Updater:
    """A function that was set as the updater of a daemon's store, and the one text that it writes
    for all keys. is_set: the store has it."""

    def __init__(self, function):
        self.function, self.text, self.is_set = function, None, False
        self._traced, self._alone, self._owner, self._noted = set(), {}, {}, False

    def document(self):
        return {'type': 'program', 'text': self.text}

    def trace(self, keys):
        """Traces it for each (key, shape, dtype) that is new. FailedPrecondition if two keys get
        different texts; then, and when it is refused, the updater is as it was before."""
        with _lock:
            new = list(dict.fromkeys(k for k in keys if k not in self._traced))
            if new:
                self._take(new)

    def _take(self, new):
        if len(self._traced) + len(new) > KEYS_MAX:
            self._refuse_many(len(self._traced) + len(new), new[0])
        kept = self.text, dict(self._alone), dict(self._owner)
        run = _Run(self.function)
        try:
            with _replaced(), _without_collector():
                self._trace_new(run, new)
        except BaseException:
            self.text, self._alone, self._owner = kept
            raise
        self._traced.update(new)
        if run.heard and not self._noted:
            self._noted = True
            print(f'paramd: {_name_of(self.function)} was traced, so what it prints shows once for each key, not at each '
                  'update', file=sys.stderr)

    def _refuse_many(self, count, example):
        with _replaced():
            text = _trace_alone(_Run(self.function), *example, False)[1]
        raise errors.Unimplemented(
            f'an updater function of a daemon is traced for each key, for {KEYS_MAX} at most, not {count}: set its text, '
            f"which paramd.trace.trace(function, key, shape, dtype) answers. For {example[0]!r}: set_updater({{'type': "
            f"'program', 'text': {text!r}}})", reason='unimplemented')

    def _trace_new(self, run, new):
        for key in new[:_ALONE_MAX]:
            self._trace_one(run, key, True)
        by_key, found = {k[0]: k for k in self._alone}, {d for d in self._alone.values()}
        example = next(iter(self._alone))
        keys = [*([example] if example not in new else []), *new]
        if len(keys) == 1:
            return
        places = {k: _Places(self._alone[by_key[k]]) if k in by_key else
                  _Places(self._alone[example], example[0], k) for k, _, _ in keys}
        for key in new[_ALONE_MAX:]:
            self._own(key[0], places[key[0]].all())
        results = _Together(run, keys, places).trace({k for k, _, _ in new[_ALONE_MAX:]})
        expected = {(d.first, d.later, *d.firsts, *d.laters) for d in found}
        for key, (first, later, firsts, laters) in zip(keys, results):
            if (first, later, *firsts, *laters) not in expected:
                self._trace_one(run, key, False)
                done = self._alone[key]
                if (first, later, *firsts, *laters) != (done.first, done.later, *done.firsts, *done.laters):
                    _refuse_key(run, key[0])

    def _trace_one(self, run, key, shows):
        done, text = _trace_alone(run, *key, shows)
        first = next(iter(self._alone), None)
        if self.text is None:
            self.text = text
        elif text != self.text:
            raise errors.FailedPrecondition(
                f'{_name_of(self.function)} writes different programs for the keys {first[0]!r} and {key[0]!r}, and a '
                f'store has one updater: use a store for each kind of key. For {first[0]!r}:\n{self.text}For {key[0]!r}:\n'
                f'{text}', reason='updater-incompatible')
        self._own(key[0], [*done.slots, *done.counters])
        self._alone[key] = done

    def _own(self, key, paths):
        """No two keys change the same place."""
        for path in paths:
            if path is None:
                refuse_at('state of so many keys that is not kept by key', _BY_KEY, None)
            if self._owner.setdefault(path, key) != key:
                _refuse_shared(path, self._owner[path], key)
