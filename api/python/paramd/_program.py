"""The text of a function that was traced: names of slots, what they start as, and how the first
update differs. For paramd.trace."""

import itertools
import math
import re

from . import _world
from ._symbols import Node, Writer, mapped, reachable


_WORDS = {'grad', 'stored', 'step', 'contributors', 'num_workers', 'staleness', 'pi', 'e', 'param', 'slot', 'master', 'min',
          'max', 'abs', 'sqrt', 'exp', 'log', 'tanh', 'sign', 'clamp', 'where'}
_NAME_MAX = 28


def _slot_names(paths, key):
    """Names of slots after the attributes and variables that hold them; what tells members of one
    apart only if it must."""
    def labels_of(path):
        labels = [x for x in path if x not in ('self', '', '.__class__')]
        if _world.Item(key) in labels:
            labels.remove(_world.Item(key))
        return labels

    def text(labels):
        return '_'.join(str(x.key) if isinstance(x, _world.Item) else x for x in labels)
    found = [labels_of(p) for p in paths]
    short = [text([x for x in labels if not isinstance(x, _world.Item)]) for labels in found]
    names = []
    for labels, name in zip(found, short):
        name = text(labels) if short.count(name) > 1 else name
        name = re.sub('[^A-Za-z0-9]+', '_', name).strip('_')[:_NAME_MAX].rstrip('_') or 'state'
        if not name[0].isalpha() or re.fullmatch(r't\d+', name) or name in _WORDS:
            name = f'slot_{name}'
        plain, n = name, 2
        while name in names:
            name, n = f'{plain}_{n}', n + 1
        names.append(name)
    return names


def _fold(node, operands):
    """A node of numbers alone is a number; 0 + x is x."""
    numbers = [o.operands[0] if isinstance(o, Node) and o.op == 'number' else None for o in operands]
    if node.op in ('name', 'number'):
        return Node.of(node.op, *operands)
    if node.op == 'where' and numbers[0] is not None:
        return operands[1] if numbers[0] != 0 else operands[2]
    if None not in numbers:
        try:
            value = float(_COMPUTED[node.op](*numbers))
        except (ArithmeticError, ValueError, TypeError, KeyError):
            return Node.of(node.op, *operands)
        return Node.of('number', value) if math.isfinite(value) else Node.of(node.op, *operands)
    if node.op == '+' and numbers[0] == 0 or node.op in '+-' and numbers[1] == 0:
        return operands[1] if numbers[0] == 0 else operands[0]
    return Node.of(node.op, *operands)


_COMPUTED = {'+': lambda a, b: a + b, '-': lambda a, b: a - b, '*': lambda a, b: a * b, '/': lambda a, b: a / b,
             '^': lambda a, b: a ** b, 'neg': lambda a: -a, 'abs': abs, 'sqrt': math.sqrt, 'exp': math.exp,
             'log': math.log, 'tanh': math.tanh, 'min': min, 'max': max, '<': lambda a, b: a < b,
             '<=': lambda a, b: a <= b, '>': lambda a, b: a > b, '>=': lambda a, b: a >= b, '==': lambda a, b: a == b,
             '!=': lambda a, b: a != b, 'sign': lambda a: math.copysign(1, a) if a else a,
             'where': lambda c, a, b: a if c else b, 'clamp': lambda x, a, b: min(max(x, a), b)}


def _begun(root, starts):
    """A later update as it is when it is the first: with what the slots start as."""
    def change(node, operands):
        if node.op == 'name' and operands[0] in starts:
            return starts[operands[0]]
        return _fold(node, operands)
    return mapped(root, change)


def _folded(root):
    return mapped(root, _fold)


def _live(done):
    """The slots that later values depend on, in order."""
    def read(root):
        return {int(n.operands[0][5:]) for n in reachable(root) if n.op == 'name' and n.operands[0].startswith('slot ')}
    live, todo = set(), read(done.later)
    while todo:
        index = todo.pop()
        if index not in live:
            live.add(index)
            todo |= read(done.laters[index])
    return sorted(live)


_CHOICES_MAX = 10


def text_of(done, key, title):
    """The text of what was traced."""
    live = _live(done)
    names = dict(zip(live, _slot_names([list(done.slots)[i] for i in live], key)))
    parts = [('stored', done.first, done.later)] + [(f'slot {i}', done.firsts[i], done.laters[i]) for i in live]
    first = [_folded(f) for _, f, _ in parts]

    def differing(stored):
        """The parts whose first update differs from a later one, where these slots start as stored
        and others as 0."""
        starts = {f'slot {i}': Node.of('name', 'stored') if i in stored else Node.of('number', 0.0) for i in live}
        starts['step'] = Node.of('number', 1.0)
        return [name for (name, _, later), f in zip(parts, first) if _begun(later, starts) is not f]
    best, as_stored = differing(()), ()
    for some in itertools.chain.from_iterable(itertools.combinations(live[:_CHOICES_MAX], n)
                                              for n in range(1, len(live) + 1)):
        if not best:
            break
        fewer = differing(some)
        if len(fewer) < len(best):
            best, as_stored = fewer, some
    begins = Node.of('==', Node.of('name', 'step'), Node.of('number', 1.0))
    finals = {name: Node.of('where', begins, f, later) if name in best else later for name, f, later in parts}

    def name_slots(node, operands):
        if node.op == 'name' and operands[0].startswith('slot '):
            return Node.of('name', names[int(operands[0][5:])])
        return Node.of(node.op, *operands)
    order = [f'slot {i}' for i in live] + ['stored']
    lines = Writer({names[int(n[5:])] if n != 'stored' else n: mapped(finals[n], name_slots) for n in order}).lines()
    slots = [f'slot {names[i]} = {"stored" if i in as_stored else "0"}' for i in live]
    return '\n'.join([title, *slots, *lines]) + '\n'
