"""Symbolic arrays and numbers: what is done to them is written down as expressions, and these as
text in the updater language. For paramd.trace."""

import itertools
import linecache
import math
import os
import sys
import threading
import weakref

import numpy as np

from . import errors

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


# ---- refusals ------------------------------------------------------------------------------------

def _place():
    """Where the function is: the innermost line that is neither here nor numpy's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        path = os.path.abspath(name)
        if os.path.dirname(path) != _PACKAGE and not path.startswith(_NUMPY) and not name.startswith('<__array_function__'):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f'{name}, line {frame.f_lineno}' + (f': {line}' if line else '')
        frame = frame.f_back
    return 'the updater function'


def refuse(what, cure=''):
    error = errors.Unimplemented(f'an updater function of a daemon is traced, and {what} cannot be written down'
                                 f'{"; " + cure if cure else ""} ({_place()})', reason='unimplemented')
    if tracing.now is not None:
        tracing.now.raised = error
    raise error


def refuse_at(what, cure, line):
    where = 'the updater function'
    if line is not None:
        text = linecache.getline(*line).strip()
        where = f'{line[0]}, line {line[1]}' + (f': {text}' if text else '')
    raise errors.Unimplemented(f'an updater function of a daemon is traced, and {what} cannot be written down; {cure} '
                               f'({where})', reason='unimplemented')


class _Tracing(threading.local):
    now = None                  # the _Run of this thread whose function runs


tracing = _Tracing()


class Promote(BaseException):
    """An array that was there before turns out to hold results: the function is to be traced anew
    with a symbolic one in its place. array: None when it is not known which one."""

    def __init__(self, array):
        self.array, self.place = array, _place()


# ---- expressions ---------------------------------------------------------------------------------

class Node:
    """One operation or leaf. Never changes, and equal ones are the same object, so that traces
    compare by identity. `number` rises: operands have smaller ones."""

    __slots__ = ('op', 'operands', 'number', '__weakref__')
    _numbers = itertools.count()
    _known = weakref.WeakValueDictionary()

    def __init__(self, op, operands):
        self.op, self.operands, self.number = op, operands, next(Node._numbers)

    @classmethod
    def of(cls, op, *operands):
        # 0.0 == -0.0, and they are not the same number.
        known = (op, repr(operands[0])) if op == 'number' else (op, *operands)
        node = cls._known.get(known)
        if node is None:
            node = cls._known[known] = cls(op, operands)
        return node


_INFIX = {'+': 2, '-': 2, '*': 3, '/': 3, '<': 1, '<=': 1, '>': 1, '>=': 1, '==': 1, '!=': 1, '^': 5}
_NEGATIVE, _ATOM = 4, 6
# Beyond these an expression gets a name: for readers, and within the language's bounds.
_LENGTH_MAX, _DEPTH_MAX = 100, 12


class _Text:
    """An expression as text, how close it binds, and how deep it is."""

    def __init__(self, text, binds=_ATOM, depth=0):
        self.text, self.binds, self.depth = text, binds, depth

    def within(self, least):
        return self.text if self.binds >= least else f'({self.text})'


def _number_text(value):
    text = repr(value)
    return _Text(text, _NEGATIVE if text.startswith('-') else _ATOM)


def _operation_text(op, parts):
    depth = 1 + max(p.depth for p in parts)
    if op in _INFIX:
        binds = _INFIX[op]
        left, right = parts[0].within(binds + (op == '^' or binds == 1)), parts[1].within(binds + 1)
        return _Text(f'{left} {op} {right}', binds, depth)
    if op == 'neg':
        return _Text('-' + parts[0].within(_NEGATIVE), _NEGATIVE, depth)
    return _Text(f'{op}({", ".join(p.text for p in parts)})', _ATOM, depth)


def reachable(root):
    """All nodes of an expression, operands first."""
    found, todo = {root.number: root}, [root]
    while todo:
        for operand in todo.pop().operands:
            if isinstance(operand, Node) and operand.number not in found:
                found[operand.number] = operand
                todo.append(operand)
    return [found[n] for n in sorted(found)]


def mapped(root, change):
    """A node with others for some of its parts: change(node, operands) answers the new one."""
    new = {}
    for node in reachable(root):
        operands = [new[o.number] if isinstance(o, Node) else o for o in node.operands]
        new[node.number] = change(node, operands)
    return new[root.number]


def _uses(roots):
    """How often each node is an operand or a root, by its number."""
    nodes = {n.number: n for root in roots for n in reachable(root)}
    uses = dict.fromkeys(nodes, 0)
    for node in (*roots, *(o for n in nodes.values() for o in n.operands if isinstance(o, Node))):
        uses[node.number] += 1
    return uses


class Writer:
    """Writes assignments: each of `targets`, a dict of name to node, becomes what its node says of
    the values before the first of them. What is used more than once or is long gets a name of its
    own."""

    def __init__(self, targets):
        self._todo, self._lines, self._named, self._temporaries = dict(targets), [], {}, 0
        self._uses = _uses(targets.values())

    def lines(self):
        while self._todo:
            name = next((n for n in self._todo if not self._is_read_by_others(n)), None)
            if name is not None:
                self._assign(name, self._todo.pop(name))
            else:
                # All read the old values of one another. One is computed before its turn.
                node = next(n for n in self._todo.values() if n.number not in self._named)
                self._name(node, self._text(node))
        return self._lines

    def _is_read_by_others(self, name):
        """Does what is left read the value that a name has now? What has a name of its own is not
        computed again."""
        todo = [n for other, n in self._todo.items() if other != name]
        seen = {self._todo[name].number} if self._todo[name].op not in ('name', 'number') else set()
        while todo:
            node = todo.pop()
            if node.number in seen or node.number in self._named:
                continue
            seen.add(node.number)
            if node.op == 'name' and node.operands[0] == name:
                return True
            todo += [o for o in node.operands if isinstance(o, Node)]
        return False

    def _text(self, root):
        """The text of a node, after assignments to what it needs and has no name yet. Without
        recursion, for expressions may be deep."""
        wanted, todo, texts = {}, [root], {}
        while todo:
            node = todo.pop()
            if node.number not in wanted:
                wanted[node.number] = node
                if node.number not in self._named:
                    todo += [o for o in node.operands if isinstance(o, Node)]
        for number in sorted(wanted):
            texts[number] = self._text_of(wanted[number], root, texts)
        return texts[root.number]

    def _text_of(self, node, root, texts):
        if node.number in self._named:
            return _Text(self._named[node.number])
        if node.op == 'name':
            return _Text(node.operands[0])
        if node.op == 'number':
            return _number_text(node.operands[0])
        text = _operation_text(node.op, [texts[o.number] for o in node.operands])
        if node is root or (self._uses[node.number] == 1 and text.depth <= _DEPTH_MAX and len(text.text) <= _LENGTH_MAX):
            return text
        return self._name(node, text)

    def _name(self, node, text):
        self._temporaries += 1
        self._named[node.number] = f't{self._temporaries}'
        self._lines.append(f't{self._temporaries} = {text.text}')
        return _Text(f't{self._temporaries}')

    def _assign(self, name, node):
        first = node.operands[0] if node.op in ('+', '-', '*', '/') and node.number not in self._named else None
        if first is not None and first.op == 'name' and first.operands[0] == name:
            # As people write it: stored += x for stored = stored + x.
            self._lines.append(f'{name} {node.op}= {self._text(node.operands[1]).text}')
        else:
            self._lines.append(f'{name} = {self._text(node).text}')
        if node.op not in ('name', 'number'):
            self._named[node.number] = name


def expression_text(root):
    return Writer({'stored': root}).lines()[-1].split('= ', 1)[1]


# ---- symbolic arrays -----------------------------------------------------------------------------

def constant(value):
    """A number as a node."""
    number = float(value)
    if not math.isfinite(number):
        refuse(f'the number {number}', 'the language has finite numbers only')
    return Node.of('number', number)


def node_of(thing):
    """What an operand stands for: a symbolic array, a number, or an array that is the same number
    everywhere."""
    if isinstance(thing, (SymbolicArray, SymbolicNumber)):
        return thing._node
    if isinstance(thing, (bool, int, float, np.bool_, np.integer, np.floating)):
        return constant(thing)
    if isinstance(thing, np.ndarray):
        if thing.dtype.kind in 'biuf' and thing.size > 0 and (thing == thing.flat[0]).all():
            return constant(thing.flat[0])
        refuse('an array of different numbers as a constant', 'a number of the language is the same for all elements')
    refuse(f'{type(thing).__name__} {thing!r:.40} as an operand')


def is_mask(thing):
    if isinstance(thing, SymbolicNumber):
        return thing.is_mask
    if isinstance(thing, (SymbolicArray, np.ndarray)):
        return thing.dtype == np.bool_
    return isinstance(thing, (bool, np.bool_))


_CHOOSE = 'numpy.where(condition, a, b) chooses for each element, numpy.minimum and maximum do so by size'


_BOOL = np.dtype(np.bool_)


def _operator(ufunc, general):
    """An operator that looks first whether the same was computed before, which many keys do."""
    name = general.__name__
    reflected, in_place = name.startswith('__r'), name.startswith('__i')

    def operate(self, other):
        run = tracing.now
        mark = _mark_of(other)
        made = run and run.made.get((ufunc, mark, self._mark) if reflected else (ufunc, self._mark, mark))
        if made is None or type(other) is SymbolicArray and type(self) is SymbolicArray and other.shape != self.shape:
            return general(self, other)
        if type(made) is SymbolicNumber:
            return made
        if not in_place or type(self) is SymbolicNumber:
            return SymbolicArray(made._node, (other if type(self) is SymbolicNumber else self).shape, run.dtype)
        self._node = self._mark = made._node
        return self
    operate.__name__ = name
    return operate


def _mark_of(thing):
    """What stands for an operand in run.made. Operations on what has none are not kept there."""
    kind = type(thing)
    if kind is SymbolicArray or kind is SymbolicNumber:
        return thing._mark
    # 0.0 == -0.0, and they are not the same number.
    return thing if (kind is float or kind is int) and thing != 0 else _NO_MARK


# Never part of a key of run.made.
_NO_MARK = object()


class SymbolicArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of a key while an updater function is traced. Has shape and dtype; its
    elements are not known."""

    def __init__(self, node, shape, key_dtype, mask=False):
        self._node, self.shape, self._key_dtype = node, shape, key_dtype
        self.dtype = _BOOL if mask else key_dtype
        self._mark = _NO_MARK if mask else node

    # -- what is known

    __class__ = property(lambda self: np.ndarray)       # isinstance() must answer what it answers for real arrays
    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def __len__(self):
        if not self.shape:
            raise TypeError('len() of unsized object')
        return self.shape[0]

    def __repr__(self):
        return f'<{self.dtype} {self.shape}, traced: {expression_text(self._node)}>'

    def __format__(self, _):
        return repr(self)

    # -- what is written down

    def _like(self, node, mask=False):
        return SymbolicArray(node, self.shape, self._key_dtype, mask)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        return _apply(ufunc, method, inputs, out, options)

    def __array_function__(self, function, _, args, kwargs):
        made = _FUNCTIONS.get(function.__name__)
        if made is None:
            refuse(f'numpy.{function.__name__}')
        return made(*args, **kwargs)

    def copy(self, order='C'):
        return self._like(self._node, is_mask(self))

    def astype(self, dtype, *_, **__):
        if np.dtype(dtype) != self._key_dtype:
            refuse(f'astype({np.dtype(dtype)})', f'everything is computed in the dtype of the key, {self._key_dtype}')
        return self._like(self._node)

    def clip(self, min=None, max=None, out=None):
        return _clip(self, min, max, out)

    def fill(self, value):
        _store(self, node_of(value), is_mask(value))

    def save(self):
        """What restore() brings back, after changes in place."""
        return self._node, self._mark, self.dtype

    def restore(self, saved):
        self._node, self._mark, self.dtype = saved

    # -- elements as such

    def __getitem__(self, index):
        if not _is_all(index):
            refuse(f'the index {index!r:.40}', 'a statement holds for every element')
        return self

    def __setitem__(self, index, value):
        if isinstance(index, SymbolicArray) and is_mask(index) and not isinstance(value, np.ndarray):
            _store(self, Node.of('where', index._node, node_of(value), self._node), is_mask(self) and is_mask(value))
        elif _is_all(index):
            _check_shapes(self, (value,))
            _store(self, node_of(value), is_mask(value))
        else:
            refuse(f'the index {index!r:.40}', 'a statement holds for every element')

    def __bool__(self):
        refuse('the truth of elements (if, while, and, or, not, min, max)', _CHOOSE)

    def __iter__(self):
        refuse('a loop over elements', 'a statement holds for every element')

    def __contains__(self, _):
        refuse('a search for an element')

    def __array__(self, *_, **__):
        if tracing.now is not None:
            tracing.now.promote(None)
        refuse('its elements as a plain array (numpy.array, numpy.asarray, assignment into another array)')

    def __getattr__(self, name):
        if name.startswith('__') or not hasattr(np.ndarray, name) and name not in _NDARRAY:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        refuse(f'.{name} of an array')


# What MXNet's NDArray has beside numpy's.
_NDARRAY = ('asnumpy', 'asscalar', 'as_in_context', 'as_in_ctx', 'context', 'ctx', 'wait_to_read', 'norm', 'square',
            'sqrt')


def _refusing(what):
    def method(self, *_):
        refuse(what)
    return method


for _name, _what in {'__float__': 'one element as a number (float)', '__int__': 'one element as a number (int)',
                     '__complex__': 'one element as a number (complex)', '__index__': 'an element as an index',
                     '__round__': 'round', '__trunc__': 'trunc', '__floor__': 'floor', '__ceil__': 'ceil'}.items():
    setattr(SymbolicArray, _name, _refusing(_what))


class SymbolicNumber(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a number that is another at each update: `step` of the language plus `offset`, or
    what is computed of it. truth: what a comparison is at all updates but the first; None when it
    is not the same at all of them."""

    def __init__(self, node, offset=None, is_mask=False, truth=None):
        self._node, self._offset, self.is_mask, self._truth = node, offset, is_mask, truth
        self._mark = _NO_MARK if is_mask else (SymbolicNumber, node, offset)

    @classmethod
    def of_step(cls, offset):
        """step + offset."""
        step = Node.of('name', 'step')
        node = step if offset == 0 else Node.of('+-'[offset < 0], step, constant(abs(offset)))
        return cls(node, offset)

    shape, ndim, size = (), 0, 1

    def __repr__(self):
        return f'<number, traced: {expression_text(self._node)}>'

    def __format__(self, _):
        return repr(self)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        return _apply(ufunc, method, inputs, out, options)

    __array_function__ = SymbolicArray.__array_function__

    def __bool__(self):
        truth = self._truth if self._offset is None else _compare_steps('!=', self._offset, 0)
        if truth is None:
            refuse('a branch (if, while, min, max) on a number that changes with each update',
                    'numpy.where, numpy.minimum and numpy.maximum take it')
        return truth

    def __hash__(self):
        refuse('a number that changes with each update as a key of a dict or set')


# Numbers are not changed in place: other names of them stay what they were.
for _name in ('add', 'sub', 'mul', 'truediv', 'pow'):
    setattr(SymbolicNumber, f'__i{_name}__', getattr(SymbolicNumber, f'__{_name}__'))
for _name in ('float', 'int', 'complex', 'index', 'round', 'trunc', 'floor', 'ceil'):
    setattr(SymbolicNumber, f'__{_name}__',
            _refusing(f'{_name}() of a number that changes with each update'))


for _class in (SymbolicArray, SymbolicNumber):
    for _name, _ufunc in {'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'truediv': np.true_divide,
                          'pow': np.power}.items():
        for _name in (f'__{_name}__', f'__r{_name}__', f'__i{_name}__'):
            setattr(_class, _name, _operator(_ufunc, getattr(_class, _name)))


def _compare_steps(sign, offset, number):
    """What step + offset compared with a number is for all steps from 2 on, or None."""
    least = 2 + offset
    never = {'<': least >= number, '<=': least > number, '==': number < least or number != int(number)}
    if sign in never:
        return False if never[sign] else None
    return True if never[{'>=': '<', '>': '<=', '!=': '=='}[sign]] else None


_FLIPPED = {'<': '>', '>': '<', '<=': '>=', '>=': '<=', '==': '==', '!=': '!='}


def _number_of(name, inputs, node, mask):
    """The result of an operation on single values alone."""
    left, right = inputs if len(inputs) == 2 else (inputs[0], None)
    flip = not isinstance(left, SymbolicNumber)
    number, other = (right, left) if flip else (left, right)
    if number._offset is None or isinstance(other, SymbolicNumber) or other is None or not math.isfinite(other):
        return SymbolicNumber(node, None, mask)
    if name in ('add', 'subtract') and float(other).is_integer() and not (flip and name == 'subtract'):
        return SymbolicNumber.of_step(number._offset + int(other) * (1 if name == 'add' else -1))
    sign = _COMPARE.get(name)
    truth = sign and _compare_steps(_FLIPPED[sign] if flip else sign, number._offset, other)
    return SymbolicNumber(node, None, mask, truth)


def _apply(ufunc, method, inputs, out, options):
    if len(inputs) == 1 and method == '__call__' and out is None and not options and tracing.now is not None:
        made = tracing.now.made.get((ufunc, _mark_of(inputs[0])))
        if made is not None:
            return made if type(made) is SymbolicNumber else SymbolicArray(made._node, inputs[0].shape,
                                                                                  inputs[0]._key_dtype)
    name = ufunc.__name__
    if method != '__call__':
        refuse(f'numpy.{name}.{method}', 'a value of one element may not depend on others')
    if any(option not in ('casting', 'subok') for option in options):
        refuse(f'numpy.{name} with {", ".join(options)}')
    arrays = [x for x in (*inputs, *(out or ())) if isinstance(x, SymbolicArray)]
    several = arrays or tracing.now is not None and any(isinstance(x, np.ndarray) and x.ndim for x in (*inputs, *(out or ())))
    first = arrays[0] if arrays else tracing.now.constant(0.0) if several else None
    if first is not None:
        _check_shapes(first, inputs)
    node, mask = _ufunc_node(name, inputs)
    made = _number_of(name, inputs, node, mask) if first is None else first._like(node, mask)
    marks = [_mark_of(x) for x in inputs]
    if tracing.now is not None and not mask and _NO_MARK not in marks:
        tracing.now.made[ufunc, *marks] = made if first is None else made.copy()
    return made if out is None else _store(out[0], made._node, is_mask(made))


def _is_all(index):
    """[:], [...] and the like."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is Ellipsis or isinstance(p, slice) and p == slice(None) for p in parts)


def _check_shapes(array, operands):
    for other in operands:
        if isinstance(other, (SymbolicArray, np.ndarray)) and other.shape not in ((), array.shape):
            try:
                fits = np.broadcast_shapes(other.shape, array.shape) == array.shape
            except ValueError:
                raise ValueError('operands could not be broadcast together with shapes '
                                 f'{array.shape} {other.shape}') from None
            if isinstance(other, SymbolicArray) or not fits:
                refuse(f'a result of another shape than the key\'s {array.shape}')


def _store(target, node, mask=False):
    if not isinstance(target, SymbolicArray):
        if tracing.now is not None and isinstance(target, np.ndarray):
            tracing.now.promote(target)
        refuse('a result written into an array of the function\'s own',
                'make it with numpy.zeros_like(stored), and keep it for each key, such as self.m[key]')
    if target.dtype == np.bool_ and not mask:
        raise TypeError(f'Cannot cast output from dtype({target._key_dtype}) to dtype("bool")')
    target._node, target._mark = node, _NO_MARK if mask else node
    return target


# ---- ufuncs and functions ------------------------------------------------------------------------

def _one():
    return Node.of('number', 1.0)


def _square(x):
    return Node.of('*', x, x)


def _is_finite(x):
    return Node.of('==', Node.of('-', x, x), Node.of('number', 0.0))


_BINARY = {'add': '+', 'subtract': '-', 'multiply': '*', 'divide': '/', 'true_divide': '/', 'minimum': 'min',
           'maximum': 'max'}
_UNARY = {'negative': 'neg', 'absolute': 'abs', 'fabs': 'abs', 'sqrt': 'sqrt', 'exp': 'exp', 'log': 'log', 'tanh': 'tanh',
          'sign': 'sign'}
_COMPARE = {'less': '<', 'less_equal': '<=', 'greater': '>', 'greater_equal': '>=', 'equal': '==', 'not_equal': '!='}
_LOGIC = {'logical_and': 'min', 'bitwise_and': 'min', 'logical_or': 'max', 'bitwise_or': 'max', 'logical_xor': '!=',
          'bitwise_xor': '!='}
_COMPOSED = {
    'positive': lambda x: x,
    'conjugate': lambda x: x,
    'square': _square,
    'reciprocal': lambda x: Node.of('/', _one(), x),
}
_TESTS = {'isnan': lambda x: Node.of('!=', x, x), 'isfinite': _is_finite}
_SIGNS = {'floor_divide': '//', 'remainder': '%', 'matmul': '@', 'left_shift': '<<', 'right_shift': '>>',
          'divmod': 'divmod'}
_CURES = {'fmin': 'numpy.minimum lets a NaN through, so that it is seen',
          'fmax': 'numpy.maximum lets a NaN through, so that it is seen',
          'expm1': 'write numpy.exp(x) - 1', 'log1p': 'write numpy.log(1 + x)',
          'log2': 'write numpy.log(x) / numpy.log(2)', 'log10': 'write numpy.log(x) / numpy.log(10)',
          'exp2': 'write numpy.exp(x * numpy.log(2))'}


def _ufunc_node(name, inputs):
    """The node of a ufunc, and whether it is a mask."""
    masks = [is_mask(x) for x in inputs]
    if name in _LOGIC or name in ('add', 'multiply') and all(masks):
        return _logic_node(name, inputs, masks)
    if name in ('logical_not', 'invert'):
        if name == 'invert' and not masks[0]:
            refuse('numpy.invert (~) of numbers')
        return Node.of('==', node_of(inputs[0]), Node.of('number', 0.0)), True
    if name in ('subtract', 'negative') and all(masks):
        raise TypeError(f'numpy boolean {name}, the `-` operator, is not supported: use ~ or ^ of comparisons')
    if name == 'power':
        return _power_node(*inputs), False
    if name in _BINARY or name in _UNARY:
        return Node.of(_BINARY.get(name) or _UNARY[name], *map(node_of, inputs)), False
    if name in _COMPARE:
        return Node.of(_COMPARE[name], *map(node_of, inputs)), True
    if name in _COMPOSED:
        return _COMPOSED[name](node_of(inputs[0])), False
    if name in _TESTS:
        return _TESTS[name](node_of(inputs[0])), True
    refuse(f'numpy.{name}' + (f' ({_SIGNS[name]})' if name in _SIGNS else ''), _CURES.get(name, ''))


def _logic_node(name, inputs, masks):
    if name.startswith('bitwise') and not all(masks):
        refuse(f'numpy.{name} of numbers', '& | ^ are for comparisons')
    nodes = [node_of(x) if mask else Node.of('!=', node_of(x), Node.of('number', 0.0)) for x, mask in zip(inputs, masks)]
    return Node.of({'add': 'max', 'multiply': 'min'}.get(name) or _LOGIC[name], *nodes), True


def _power_node(base, exponent):
    """Powers that numpy takes apart, too. The language's own are of single values."""
    if isinstance(base, (bool, int, float, np.number, SymbolicNumber)) and isinstance(exponent, (
            bool, int, float, np.number, SymbolicNumber)):
        return Node.of('^', node_of(base), node_of(exponent))
    if isinstance(exponent, (SymbolicArray, SymbolicNumber)) or np.ndim(exponent) > 0:
        refuse('a power with an exponent for each element', 'write numpy.exp(y * numpy.log(x))')
    x, p = node_of(base), float(exponent)
    if p == 0.5:
        return Node.of('sqrt', x)
    if p != int(p) or not 1 <= abs(p) <= 4:
        refuse(f'the power {p:g}', 'from -4 to 4, and 0.5; write numpy.exp(y * numpy.log(x))')
    node = x
    for _ in range(int(abs(p)) - 1):
        node = Node.of('*', node, x)
    return node if p > 0 else Node.of('/', _one(), node)


def _first_symbolic(*things):
    return next((t for t in things if isinstance(t, SymbolicArray)), None)


def _result(first, node, mask=False):
    return SymbolicNumber(node, None, mask) if first is None else first._like(node, mask)


def _where(condition, *choices):
    if len(choices) != 2:
        refuse('numpy.where with one argument', 'the places of elements are not known')
    first = _first_symbolic(condition, *choices)
    if first is None and any(isinstance(x, np.ndarray) and x.ndim for x in choices) and tracing.now is not None:
        first = tracing.now.constant(0.0)
    if first is not None:
        _check_shapes(first, (condition, *choices))
    return _result(first, Node.of('where', *map(node_of, (condition, *choices))), all(map(is_mask, choices)))


def _clip(a, a_min=None, a_max=None, out=None, **options):
    if options:
        refuse(f'numpy.clip with {", ".join(options)}')
    if a_min is None and a_max is None:
        raise ValueError('One of max or min must be given')
    first = _first_symbolic(a, a_min, a_max)
    x, least, most = node_of(a), *(None if bound is None else node_of(bound) for bound in (a_min, a_max))
    node = (Node.of('min', x, most) if least is None else Node.of('max', x, least) if most is None
            else Node.of('clamp', x, least, most))
    return _result(first, node) if out is None else _store(out, node)


def _copyto(dst, src, casting='same_kind', where=True):
    if where is not True:
        src = _where(where, src, dst)
    _store(dst, node_of(src), is_mask(src))


UNDEFINED = object()
NOTHING = 'what numpy.empty leaves'


def undefined():
    return Node.of('name', NOTHING)


def _full_like(a, fill_value, dtype=None, **_):
    if dtype is not None and np.dtype(dtype).kind != 'f':
        refuse(f'an array of {np.dtype(dtype)}', f'everything is computed in the dtype of the key, {a._key_dtype}')
    return a._like(undefined() if fill_value is UNDEFINED else node_of(fill_value))


_FUNCTIONS = {
    'where': _where, 'clip': _clip, 'copyto': _copyto, 'full_like': _full_like,
    'empty_like': lambda a, dtype=None, **_: _full_like(a, UNDEFINED, dtype),
    'zeros_like': lambda a, dtype=None, **_: _full_like(a, 0.0, dtype),
    'ones_like': lambda a, dtype=None, **_: _full_like(a, 1.0, dtype),
    'copy': lambda a, **_: a.copy(), 'shape': lambda a: a.shape, 'ndim': lambda a: a.ndim,
    'size': lambda a, axis=None: a.size if axis is None else a.shape[axis],
}
