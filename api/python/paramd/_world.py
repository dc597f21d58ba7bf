"""What a function can reach and change: its closure, attributes, default arguments, the globals
that its code names, and what these contain; and the random generators, as Chance.

World(function) looks at all of it, saves and restores it, and puts other values into single places.
A place is a path of labels from the function on, such as ('self', '.mom', Item('w')); path_text()
writes it as people do: self.mom['w'].

A container has a place of its own, its path and '#', with its type and length; so growing is seen.
An object is looked at once, at the first path that leads to it. What belongs to the standard
library, numpy, paramd or an installed package (functions, classes, modules) counts as constant;
generators, whose state cannot be seen, are refused by `refuse`.
"""

import collections
import copy
import functools
import pickle
import random
import sys
import types

import numpy as np

# Beyond this the time and memory that a look takes would surprise.
CELLS_MAX = 2_000_000

Item = collections.namedtuple('Item', 'key')
Item.__doc__ = 'The label of a member of a dict or sequence.'

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, np.generic, range, slice, type(...))
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
# Packages whose objects are machinery: large, changed by other threads, and no state of an updater.
_LEFT_ALONE = {'paramd', 'unittest', 'logging', 'threading', '_thread', '_io', 'io', 'socket', '_socket', 'ctypes',
               '_ctypes', 'weakref', 'typing', 'abc', 'numpy', 're', 'importlib', '_frozen_importlib'}
_ABSENT = object()


def path_text(path):
    """A path as it is written in Python."""
    text = ''
    for label in path:
        if label == '#':
            return f'the length of {text}'
        text += f'[{label.key!r:.60}]' if isinstance(label, Item) else label if text else label.lstrip('.')
    return text


@functools.lru_cache(maxsize=None)
def _is_foreign(module):
    """Does a module belong to Python, numpy, paramd or an installed package?"""
    root = (module or '').partition('.')[0]
    if root == '__main__':
        return False
    if root in sys.stdlib_module_names or root in ('numpy', 'paramd'):
        return True
    file = getattr(sys.modules.get(root), '__file__', None) or ''
    return 'site-packages' in file or 'dist-packages' in file


def _is_left_alone(value):
    return (getattr(type(value), '__module__', '') or '').partition('.')[0] in _LEFT_ALONE


def _is_iterator(value):
    return hasattr(type(value), '__next__') and not _is_left_alone(value)


def _has_own_state(value):
    """Is it a leaf that changes without being assigned to, and that can be copied?"""
    return isinstance(value, _RANDOM) or _is_iterator(value)


def _array_content(array):
    """What compares arrays by their bytes; cheap to keep for arrays of one number."""
    if array.dtype.hasobject:
        return 'array', id(array)
    flat = array.reshape(-1)
    if flat.size > 0 and flat.dtype.kind in 'biufc' and bool((flat == flat[0]).all()):
        return 'array', array.shape, array.dtype.str, flat[:1].tobytes()
    return 'array', array.shape, array.dtype.str, array.tobytes()


def _names_of(code, found=None):
    """All names of globals and attributes in a code object and those within it."""
    found = set() if found is None else found
    found.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _names_of(constant, found)
    return found


# ---- holders: things with parts ------------------------------------------------------------------
#
# A part is (label, value). save() answers what restore() puts back; put() changes one part.

class _Dict:
    """A dict, or the attributes of an object."""

    def __init__(self, target, label):
        self.target, self.label = target, label

    def parts(self):
        label = self.label
        return [(label(k), v) for k, v in list(self.target.items())]

    def put(self, label, value):
        self.target[label.key if isinstance(label, Item) else label[1:]] = value

    def save(self):
        return list(self.target.items())

    def restore(self, saved):
        now = list(self.target.items())
        if len(now) != len(saved) or any(a[0] is not b[0] or a[1] is not b[1] for a, b in zip(now, saved)):
            dict.clear(self.target)
            for key, value in saved:
                dict.__setitem__(self.target, key, value)


class _List:
    """A list or deque."""

    def __init__(self, target):
        self.target = target

    def parts(self):
        return [(Item(i), v) for i, v in enumerate(self.target)]

    def put(self, label, value):
        self.target[label.key] = value

    def save(self):
        return list(self.target)

    def restore(self, saved):
        if len(saved) != len(self.target) or any(a is not b for a, b in zip(saved, self.target)):
            self.target.clear()
            self.target.extend(saved)


class _Names:
    """Some attributes or variables of a thing: get(name), set(name, value) and delete(name) reach
    them."""

    def __init__(self, names, get, set_, delete):
        self.names, self.get, self.set, self.delete = names, get, set_, delete

    def parts(self):
        return [(label, value) for label, name in self.names.items()
                for value in [self.get(name)] if value is not _ABSENT]

    def put(self, label, value):
        self.set(self.names[label], value)

    def save(self):
        return [(name, self.get(name)) for name in self.names.values()]

    def restore(self, saved):
        for name, value in saved:
            if self.get(name) is not value:
                if value is _ABSENT:
                    self.delete(name)
                else:
                    self.set(name, value)


def _attributes(target, names):
    return _Names({'.' + n: n for n in names}, lambda n: getattr(target, n, _ABSENT),
                  lambda n, v: setattr(target, n, v), lambda n: delattr(target, n))


def _cell_value(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _empty_cell(cell):
    del cell.cell_contents


class _Class:
    """The attributes of a class that somebody wrote."""

    def __init__(self, target):
        self.target = target

    def _own(self):
        return {k: v for k, v in vars(self.target).items()
                if not isinstance(v, (types.GetSetDescriptorType, types.MemberDescriptorType))
                and (not k.startswith('__') or isinstance(v, types.FunctionType))}

    def parts(self):
        return [('.' + k, getattr(v, '__func__', getattr(v, 'fget', v))) for k, v in self._own().items()]

    def put(self, label, value):
        setattr(self.target, label[1:], value)

    def save(self):
        return self._own()

    def restore(self, saved):
        now = self._own()
        for name, value in saved.items():
            if now.get(name, _ABSENT) is not value:
                setattr(self.target, name, value)
        for name in now.keys() - saved.keys():
            delattr(self.target, name)


class _Cache:
    """What functools.lru_cache made. One that was empty is emptied again."""

    def __init__(self, target):
        self.target = target

    def parts(self):
        return [('', self.target.__wrapped__)]

    def save(self):
        return self.target.cache_info().currsize

    def restore(self, saved):
        if saved == 0:
            self.target.cache_clear()


class _Fixed:
    """Parts that are never put or restored: those of tuples, bound methods, partial."""

    def __init__(self, *parts):
        self._parts = parts

    def parts(self):
        return self._parts

    def save(self):
        return None

    def restore(self, _):
        pass


def _slots_of(value):
    return [n for c in type(value).__mro__ for n in ([c.__dict__['__slots__']] if isinstance(
        c.__dict__.get('__slots__'), str) else c.__dict__.get('__slots__', ())) if n not in ('__dict__', '__weakref__')]


def _function_holders(function):
    code, scope = function.__code__, function.__globals__
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    names = _names_of(code)
    yield _Names({n: n for n in cells}, lambda n: _cell_value(cells[n]),
                 lambda n, v: setattr(cells[n], 'cell_contents', v), lambda n: _empty_cell(cells[n]))
    yield _Names({n: n for n in sorted(names)}, lambda n: scope.get(n, _ABSENT), scope.__setitem__,
                 lambda n: scope.pop(n, None))
    yield _Dict(function.__dict__, lambda k: '.' + k)
    yield _attributes(function, ['__defaults__', '__kwdefaults__'])
    modules = {v for n in names for v in (scope.get(n), sys.modules.get(n)) if isinstance(v, types.ModuleType)}
    for module in sorted(modules, key=lambda m: m.__name__):
        if not _is_foreign(module.__name__):
            yield _Names({f'{module.__name__}.{n}': n for n in sorted(names)},
                         lambda n, d=vars(module): d.get(n, _ABSENT), vars(module).__setitem__,
                         lambda n, d=vars(module): d.pop(n, None))


def _instance_holders(value):
    if isinstance(getattr(value, '__dict__', None), dict):
        yield _Dict(value.__dict__, lambda k: '.' + k)
    slots = _slots_of(value)
    if slots:
        yield _attributes(value, slots)
    if not _is_foreign(type(value).__module__):
        yield _Fixed(('.__class__', type(value)))


def _holders(value):
    """The holders of a value, or None for a leaf."""
    if isinstance(value, type):
        return None if _is_foreign(value.__module__) else [_Class(value), *(
            _Fixed(('', base)) for base in value.__bases__ if not _is_foreign(base.__module__))]
    if isinstance(value, _PLAIN) or isinstance(value, np.ndarray):
        return None
    if isinstance(value, dict):
        held = [_Dict(value, Item)]
        if isinstance(value, collections.defaultdict):
            held.append(_Fixed(('.default_factory', value.default_factory)))
        return held if type(value) is dict else held + list(_instance_holders(value))
    if isinstance(value, (list, collections.deque)):
        return [_List(value)]
    if isinstance(value, tuple):
        return [_Fixed(*((Item(i), v) for i, v in enumerate(value)))]
    if isinstance(value, types.FunctionType):
        return None if _is_foreign(value.__module__) else list(_function_holders(value))
    if isinstance(value, types.MethodType):
        return [_Fixed(('self', value.__self__), ('', value.__func__))]
    if isinstance(value, functools.partial):
        return [_Fixed(('', value.func), ('.args', value.args), ('.keywords', value.keywords))]
    if isinstance(value, (set, frozenset, types.ModuleType)) or _has_own_state(value):
        return None
    if isinstance(value, functools._lru_cache_wrapper):
        return [_Cache(value)]
    if hasattr(value, '__wrapped__') and isinstance(value.__wrapped__, types.FunctionType):
        return [_Fixed(('', value.__wrapped__))]
    if _is_left_alone(value):
        return None
    held = list(_instance_holders(value))
    return held or None


class Look:
    """What was found: content[path] compares, value[path] is the thing itself, holder[path] the one
    to put another with."""

    def __init__(self):
        self.content, self.value, self.holder, self.all, self.leaves = {}, {}, {}, [], []


class World:
    """What a function reaches. frozen(value) answers what compares a value that only the caller
    knows, else None; refuse(what, path) raises."""

    def __init__(self, function, frozen, refuse):
        self._function, self._frozen, self._refuse = function, frozen, refuse
        root = {'self': function}
        if isinstance(function, types.FunctionType):
            root = {'': function}
        self._root = _Dict(root, lambda k: k)

    def look(self):
        """Looks at everything."""
        found, seen, todo = Look(), {}, [((), self._root, None)]
        while todo:
            path, holder, within = todo.pop()
            found.all.append(holder)
            later = []
            for label, value in holder.parts():
                here = path + (label,) if label != '' else path
                self._look_at(found, seen, later, here, holder, within, label, value)
            todo += reversed(later)
            if len(found.content) > CELLS_MAX:
                self._refuse(f'more than {CELLS_MAX} values that it reaches', path)
        return found

    def _look_at(self, found, seen, later, path, holder, within, label, value):
        own = self._frozen(value)
        held = None if own is not None else _holders(value)
        is_tuple = held is not None and isinstance(value, tuple)
        if held is not None:
            if id(value) in seen and not is_tuple:
                return
            seen[id(value)] = value
            if isinstance(value, (dict, list, collections.deque, tuple)):
                found.content[path + ('#',)] = type(value), len(value)
            # A tuple in a tuple is put anew with what it lies in.
            later += [(path, h, (holder, label, value, within) if is_tuple else None) for h in held]
            return
        found.content[path] = own if own is not None else self._content(value, path)
        found.value[path], found.holder[path] = value, (holder, label, within)
        if isinstance(value, (np.ndarray, set)) and id(value) not in seen:
            seen[id(value)] = value
            found.leaves.append(value)

    def _content(self, value, path):
        if isinstance(value, np.ndarray):
            return _array_content(value)
        if isinstance(value, (bool, int, float, complex, np.generic)):
            return type(value), repr(value)
        if isinstance(value, (str, bytes, type(None))):
            return value
        if isinstance(value, (set, frozenset)):
            return 'set', frozenset(map(repr, value))
        if _has_own_state(value):
            try:
                return 'state', pickle.dumps(value)
            except Exception:
                self._refuse(f'what a {type(value).__name__} will give next', path)
        return 'thing', id(value)

    # -- saving

    def save(self, look=None):
        """What restore() brings back. Things with a state of their own are copied in their place,
        for what changes then is the copy."""
        look = look or self.look()
        saved = [(h, h.save()) for h in look.all]
        for path, value in look.value.items():
            if _has_own_state(value) and look.holder[path][2] is None and not isinstance(look.holder[path][0], _Fixed):
                holder, label, _ = look.holder[path]
                holder.put(label, copy.deepcopy(value))
        arrays = [(v, _packed(v)) for v in look.leaves]
        return saved, arrays

    def restore(self, state):
        saved, arrays = state
        for holder, was in saved:
            holder.restore(was)
        for value, was in arrays:
            _unpack(value, was)

    # -- putting

    def put(self, look, values):
        """Puts other values at paths of a look. Members of one tuple are put together."""
        tuples = {}
        for path, value in values.items():
            holder, label, within = look.holder[path]
            if within is None and isinstance(holder, _Fixed):
                self._refuse('an array that is replaced', path)
            elif within is None:
                holder.put(label, value)
            else:
                tuples.setdefault(id(within[2]), (within, {}))[1][label.key] = value
        while tuples:
            _, (within, changes) = max(tuples.items(), key=lambda item: _depth(item[1][0]))
            del tuples[id(within[2])]
            holder, label, old, outer = within
            members = [changes.get(i, v) for i, v in enumerate(old)]
            new = type(old)(*members) if hasattr(old, '_fields') else type(old)(members)
            if outer is None and isinstance(holder, _Fixed):
                self._refuse('an array in its fixed arguments', (label,))
            elif outer is None:
                holder.put(label, new)
            else:
                tuples.setdefault(id(outer[2]), (outer, {}))[1][label.key] = new


def _depth(within):
    depth = 0
    while within is not None:
        depth, within = depth + 1, within[3]
    return depth


def _packed(value):
    if hasattr(type(value), 'save'):
        return value.save()
    if isinstance(value, set):
        return set(value)
    content = _array_content(value) if not value.dtype.hasobject else (None,) * 4
    small = value.dtype.itemsize == len(content[3] or b'')
    return value.reshape(-1)[:1].copy() if small and value.size > 0 else value.copy()


def _unpack(value, was):
    if hasattr(type(value), 'restore'):
        value.restore(was)
    elif isinstance(value, set):
        if value != was:
            value.clear()
            value.update(was)
    elif value.flags.writeable and not np.array_equal(value, was if was.shape == value.shape else np.broadcast_to(
            was.reshape(-1)[:1], value.shape), equal_nan=value.dtype.kind in 'fc'):
        value[...] = was if was.shape == value.shape else was.reshape(-1)[0]


class Chance:
    """The state of the random generators that Python and numpy have for all."""

    def __init__(self):
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def __eq__(self, other):
        return (self._python == other._python and self._numpy[0] == other._numpy[0]
                and self._numpy[2:] == other._numpy[2:]
                and np.array_equal(self._numpy[1], other._numpy[1]))

    def restore(self):
        random.setstate(self._python)
        np.random.set_state(self._numpy)
