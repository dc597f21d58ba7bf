#!/usr/bin/python3
"""Networks from outside: the builder and the drawings of the Python package, `paramctl viz` and `summary`, the routes of
the daemon with live keys, and the page in a browser where there is one. Ends with "N passed, N failed"."""

import contextlib
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
import warnings
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'api' / 'python'))
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))

import counted  # noqa: E402
import numpy as np
import paramd
from paramd import errors, sym, viz

SVG = '{http://www.w3.org/2000/svg}'
PARAMCTL = str(ROOT / 'build' / 'paramctl')


def factorization():
    """The network of the tutorials."""
    user, item, score = sym.Variable('user'), sym.Variable('item'), sym.Variable('score')
    user = sym.Embedding(data=user, input_dim=1000, output_dim=64, name='user_embed')
    item = sym.Embedding(data=item, input_dim=500, output_dim=64, name='item_embed')
    net = sym.sum_axis(data=user * item, axis=1, name='sum_ reducción')
    return sym.LinearRegressionOutput(data=sym.Flatten(data=net, name='flatten'), label=score, name='loss')


def boxes(svg):
    return [g for g in xml.fromstring(svg).iter(SVG + 'g') if g.get('id')]


class Symbols(unittest.TestCase):
    def test_the_builder_makes_and_names_parameters(self):
        net = factorization()
        self.assertEqual(net.list_arguments(), ['user', 'user_embed_weight', 'item', 'item_embed_weight', 'score'])
        self.assertEqual(net.list_outputs(), ['loss_output'])
        internals = net.get_internals()
        self.assertEqual(len(list(internals)), 11)
        self.assertIn('sum_ reducción_output', internals.list_outputs())
        self.assertEqual(internals['flatten_output'].name, 'flatten')
        self.assertEqual([s.name for s in net.get_children()], ['flatten', 'score'])

    def test_a_file_comes_back_as_it_was(self):
        net = factorization()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'net.json')
            net.save(path)
            self.assertEqual(sym.load(path).tojson(), net.tojson())
        file = json.loads(net.tojson())
        self.assertEqual(len(file['nodes']), 11)
        self.assertEqual(file['heads'], [[10, 0, 0]])
        self.assertEqual(file['arg_nodes'], [0, 1, 3, 4, 9])
        self.assertEqual(file['nodes'][2]['attrs'], {'input_dim': '1000', 'output_dim': '64'})

    def test_shapes_with_zeros_are_written_and_completed(self):
        """A network as gluon exports it: parameters say shapes in which zero is what gluon had not seen."""
        def param(name, shape):
            return sym.var(name, shape=shape, dtype='float32', lr_mult=1.0, wd_mult=1.0, init='zeros')

        net, counted, width = sym.var('data'), 0, 3
        for i, filters in enumerate((16, 32, 64)):
            net = sym.Convolution(net, weight=param(f'net0_conv{i}_weight', (filters, 0, 3, 3)), kernel=(3, 3), pad=(1, 1),
                                  num_filter=filters, no_bias=True, name=f'net0_conv{i}_fwd')
            counted += filters * width * 9 + 4 * filters
            net = sym.BatchNorm(net, name=f'net0_batchnorm{i}_fwd', fix_gamma=False, **{
                slot: param(f'net0_batchnorm{i}_{slot}', (0,)) for slot in ('gamma', 'beta', 'moving_mean', 'moving_var')})
            net, width = sym.Activation(net, act_type='relu'), filters
        net = sym.Pooling(net, global_pool=True, kernel=(1, 1), pool_type='avg')
        net = sym.FullyConnected(net, weight=param('net0_dense0_weight', (10, 0)), bias=param('net0_dense0_bias', (10,)),
                                 num_hidden=10, name='net0_dense0_fwd')
        counted += 64 * 10 + 10
        self.assertIn('"__shape__": "(16, 0, 3, 3)"', net.tojson())
        self.assertEqual(sym.fromjson(net.tojson()).tojson(), net.tojson())
        total = json.loads(viz.draw(net, 'summary-json', shape={'data': (1, 3, 32, 32)}))['total']
        self.assertEqual((total['parameters'], total['unknown']), (counted, 0))
        total = json.loads(viz.draw(net, 'summary-json'))['total']
        self.assertEqual((total['parameters'], total['known'], total['unknown']), (None, counted - 16 * 3 * 9, 1))
        self.assertIn("Give the shape of 'data'.", viz.draw(net, 'summary').decode())

        text = io.StringIO()
        viz.print_summary(net, shape={'data': (1, 3, 32, 32)}, view='mxnet', file=text)
        self.assertIn(f'Total params: {counted - 2 * (16 + 32 + 64)}\n', text.getvalue())     # without the statistics

    def test_the_first_state_of_a_cell_gets_its_batch(self):
        state = sym.op('_zeros', shape=(0, 100), name='begin_state_0')
        i2h = sym.FullyConnected(sym.var('data'), num_hidden=100, name='i2h')
        h2h = sym.FullyConnected(state, num_hidden=100, name='h2h')
        net = sym.Activation(i2h + h2h, act_type='tanh', name='cell')
        layers = {layer['name']: layer for layer in json.loads(viz.draw(net, 'summary-json', shape={'data': (32, 50)}))['layers']}
        self.assertEqual(layers['begin_state_0']['shape'], '32x100')
        self.assertEqual(layers['h2h']['parameters'], 100 * 100 + 100)
        self.assertEqual(layers['i2h']['parameters'], 50 * 100 + 100)

    def test_layers_have_the_inputs_of_mxnet(self):
        x = sym.Convolution(sym.var('data'), kernel=(3, 3), num_filter=8, name='c')
        x = sym.BatchNorm(x, name='b')
        x = sym.LeakyReLU(x, act_type='prelu', name='l')
        x = sym.Pooling(x, kernel=(2, 2), pool_type='max')
        x = sym.FullyConnected(x, num_hidden=3, no_bias=True, name='f')
        net = sym.SoftmaxOutput(x, name='softmax')
        self.assertEqual(net.list_arguments(), ['data', 'c_weight', 'c_bias', 'b_gamma', 'b_beta', 'l_gamma', 'f_weight', 'softmax_label'])
        self.assertEqual(net.list_auxiliary_states(), ['b_moving_mean', 'b_moving_var'])
        self.assertEqual(json.loads(net.tojson())['nodes'][3]['attrs']['kernel'], '(3, 3)')

    def test_arithmetic_with_symbols_and_numbers(self):
        a, b = sym.var('a'), sym.var('b')
        ops = [node['op'] for node in json.loads(((2 - a) / b + np.float32(1) * a - b ** 2).tojson())['nodes']]
        self.assertEqual([o for o in ops if o != 'null'], ['_rminus_scalar', 'elemwise_div', '_mul_scalar', 'elemwise_add',
                                                           '_power_scalar', 'elemwise_sub'])
        with self.assertRaises(TypeError):
            a + 'b'
        with self.assertRaises(TypeError):
            bool(a)

    def test_several_outputs(self):
        first, second = sym.SliceChannel(sym.var('x'), num_outputs=2, name='s')
        self.assertEqual(second.list_outputs(), ['s_output1'])
        net = sym.Group([first, second])
        self.assertEqual(json.loads(net.tojson())['heads'], [[1, 0, 0], [1, 1, 0]])
        self.assertEqual(sym.load_json(net.tojson()).list_outputs(), ['s_output0', 's_output1'])

    def test_a_deep_network_needs_no_stack(self):
        x = sym.var('x')
        for _ in range(5000):
            x = x + 1
        self.assertEqual(len(json.loads(x.tojson())['nodes']), 5001)

    def test_what_is_wrong_is_refused(self):
        for bad in (lambda: sym.Embedding(3), lambda: sym.FullyConnected(), lambda: sym.Variable(''),
                    lambda: sym.Variable('x', dtype='float31'), lambda: sym.Group([1]), lambda: sym.load_json('{}'),
                    lambda: sym.load_json('{"nodes": [{"op": "f", "name": "a", "inputs": [[0, 0]]}]}'),
                    lambda: factorization()['nothing']):
            with self.assertRaises((TypeError, ValueError)):
                bad()


class Drawings(unittest.TestCase):
    def test_the_plot_has_what_graphviz_objects_have(self):
        plot = viz.plot_network(factorization(), title='mf', shape={'user': ('N',), 'item': ('N',)})
        self.assertIn('digraph "mf"', plot.source)
        self.assertEqual(plot.source.count(' -> '), 8)
        self.assertEqual(len(boxes(plot._repr_svg_())), 9)
        with tempfile.TemporaryDirectory() as folder:
            path = plot.render('mf', directory=folder, format='svg')
            self.assertEqual(path, os.path.join(folder, 'mf.svg'))
            with open(os.path.join(folder, 'mf'), encoding='utf-8') as file:
                self.assertEqual(file.read(), plot.source)
            self.assertEqual(plot.save(directory=folder), os.path.join(folder, 'mf.gv'))

    @unittest.skipUnless(shutil.which('rsvg-convert'), "it needs rsvg-convert: package librsvg2-bin")
    def test_pdf_is_the_standard(self):
        with tempfile.TemporaryDirectory() as folder:
            path = viz.plot_network(factorization()).render(os.path.join(folder, 'net'))
            self.assertTrue(path.endswith('net.pdf'))
            self.assertEqual(pathlib.Path(path).read_bytes()[:4], b'%PDF')

    def test_mxnet_arguments(self):
        full = viz.plot_network(factorization(), hide_weights=False)
        self.assertEqual(full.source.count('label='), 11)
        plot = viz.plot_network(factorization(), 'p', 'png', {'user': (8,), 'item': (8,)}, {'user': 'float32'},
                                {'shape': 'oval', 'fixedsize': 'false'}, view='mxnet')
        self.assertIn('"shape"="oval"', plot.source)
        self.assertIn('[label="64(float32)"]', plot.source)
        self.assertIn('rankdir=BT', plot.source)
        self.assertEqual(plot.format, 'png')

    def test_names_survive_in_every_form(self):
        for form in ('svg', 'dot', 'json', 'text', 'summary'):
            self.assertIn('sum_ reducción', viz.draw(factorization(), form).decode())

    def test_the_description_of_the_tutorial(self):
        lines = viz.describe(factorization()).splitlines()
        self.assertEqual(lines[0], '1. Inputs: `user` and `item`.')
        self.assertTrue(lines[1].startswith('2. `user_embed` and `item_embed`: embedding of `user` and `item`: each id becomes the 64 numbers'))
        self.assertRegex(lines[2], r'^3\. `_mul\d+`: elementwise product of `user_embed` and `item_embed`\.$')
        self.assertRegex(lines[3], r'^4\. `sum_ reducción`: sum of `_mul\d+` over axis 1\.$')
        self.assertEqual(lines[4], '5. `flatten`: `sum_ reducción` flattened to one row for each example.')
        self.assertEqual(lines[5], '6. `loss`: squared error of `flatten` against `score`.')

    def test_the_summary_is_printed_where_one_wants(self):
        for positions, columns in ((None, 'Updater'), ([.44, .64, .74, 1.], 'Previous Layer')):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                viz.print_summary(factorization(), shape={'user': (8,), 'item': (8,)}, positions=positions)
            self.assertIn(columns, out.getvalue())
            self.assertIn('Total params: 96,000 in 2 arrays, 384,000 bytes', out.getvalue())
            self.assertEqual(max(map(len, out.getvalue().splitlines())), 120)

    def test_equal_names_warn_and_stay_apart(self):
        x = sym.var('x')
        net = sym.relu(sym.relu(x, name='r'), name='r')
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            plot = viz.plot_network(net)
        self.assertEqual(caught[0].category, RuntimeWarning)
        self.assertIn('r', str(caught[0].message))
        self.assertEqual(len(boxes(plot.svg)), 3)

    def test_a_store_lends_its_shapes_versions_and_updater(self):
        with paramd.kv.create('local') as kv:
            kv.init('user_embed_weight', np.zeros((1000, 64), np.float32))
            kv.init('item_embed_weight', np.zeros((500, 64), np.float64))
            kv.set_optimizer('sgd', learning_rate=0.1)
            kv.push('user_embed_weight', np.ones((1000, 64), np.float32))
            kv.wait()
            plot = viz.plot_network(factorization(), color='version', store=kv)
            colors = {g.get('data-name'): g.get('class') for g in boxes(plot.svg)}
            self.assertIn('q6', colors['user_embed'])
            self.assertIn('q0', colors['item_embed'])
            summary = json.loads(viz.draw(factorization(), 'summary-json', store=kv))
            row = next(r for r in summary['layers'] if r['name'] == 'item_embed')
            self.assertEqual((row['bytes'], row['dtype'], row['updater']), (500 * 64 * 8, 'float64', 'sgd'))
            tree = viz.draw(store=kv).decode()
            self.assertIn('data-key="item_embed_weight"', tree)

    def test_what_is_wrong_is_told(self):
        with self.assertRaises(TypeError):
            viz.plot_network(3)
        with self.assertRaises(errors.InvalidArgument) as caught:
            viz.plot_network(factorization(), shape={'usr': (1,)})
        self.assertIn("did you mean 'user'", str(caught.exception))
        with self.assertRaises(ValueError) as caught:
            viz.draw(b'{"nodes": [{"op": "f", "name": "a", "inputs": [[3, 0]]}]}')
        self.assertIn("node 0 ('a'): input 0 refers to node 3", str(caught.exception))
        self.assertEqual(caught.exception.reason, 'network-invalid')

    def test_threads_draw_at_once(self):
        want, got = viz.draw(factorization(), 'summary'), []

        def work():
            got.extend(viz.draw(factorization(), 'svg') for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(got), 80)
        self.assertEqual(len({re.sub(rb'_mul\d+| textLength="[\d.]+"', b'', g) for g in got}), 1, 'the same network is drawn the same')
        self.assertTrue(want)


class Command(unittest.TestCase):
    def run_it(self, *words, code=0, env=None):
        done = subprocess.run([PARAMCTL, *words], capture_output=True, text=True, timeout=90, cwd=self.folder.name, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        factorization().save(os.path.join(self.folder.name, 'net.json'))

    def test_viz_writes_by_the_name_of_the_file(self):
        self.run_it('viz', 'net.json', '-o', 'net.svg', '--shape', 'user=N;item=N')
        svg = pathlib.Path(self.folder.name, 'net.svg').read_text()
        self.assertEqual(len(boxes(svg)), 9)
        self.assertIn('→ Nx64', svg)
        self.run_it('viz', 'net.json', '--out=net.gv', '--view', 'mxnet')
        self.assertTrue(pathlib.Path(self.folder.name, 'net.gv').read_text().startswith('digraph'))
        self.assertTrue(self.run_it('viz', 'net.json', '--text').startswith('1. Inputs:'))
        self.assertEqual(len(json.loads(self.run_it('viz', 'net.json', '--format', 'json'))['nodes']), 9)

    def test_graphviz_places_the_boxes_when_it_is_asked_to(self):
        no_programs = dict(os.environ, PATH=self.folder.name)
        self.assertIn('install the package graphviz', self.run_it('viz', 'net.json', '--engine=dot', code=1, env=no_programs))
        self.assertIn('svg, png and pdf', self.run_it('viz', 'net.json', '--engine=dot', '--format', 'json', code=1))
        self.assertIn('none of own, dot', self.run_it('viz', 'net.json', '--engine', 'neato', code=1))
        # a program of this name gets our DOT text on stdin, by itself and not by a shell
        other = pathlib.Path(self.folder.name, 'dot')
        other.write_text('#!/bin/sh\nread first\necho "$*|$first"\n')
        other.chmod(0o755)
        told = self.run_it('viz', 'net.json', '--engine=dot', '--format', 'png', env=no_programs)
        self.assertEqual(told, '-Tpng -Gcharset=UTF-8|digraph "plot" {\n')
        other.write_text('#!/bin/sh\nexit 1\n')
        self.assertIn("'own' can be had", self.run_it('viz', 'net.json', '--engine=dot', code=1, env=no_programs))

    @unittest.skipUnless(shutil.which('dot'), "it needs dot: package graphviz")
    def test_graphviz_draws_what_we_write(self):
        self.run_it('viz', 'net.json', '--engine=dot', '-o', 'net.svg')
        drawing = xml.parse(os.path.join(self.folder.name, 'net.svg')).getroot()
        self.assertEqual([g.get('class') for g in drawing.iter(SVG + 'g')].count('node'), 9)
        self.assertIn('sum_ reducción', ''.join(drawing.itertext()))
        self.run_it('viz', 'net.json', '--engine=dot', '-o', 'net.pdf')
        self.assertEqual(pathlib.Path(self.folder.name, 'net.pdf').read_bytes()[:4], b'%PDF')

    def test_summary_counts(self):
        self.assertIn('Total params: 96,000', self.run_it('summary', 'net.json', '--shape', 'user=8;item=8'))
        self.assertEqual(json.loads(self.run_it('summary', 'net.json', '--json'))['total']['parameters'], 96000)
        self.assertIn('Total params: 96000\n', self.run_it('summary', 'net.json', '--view', 'mxnet'))

    def test_what_is_wrong_is_told(self):
        self.assertIn('No such file', self.run_it('viz', 'nothing.json', code=2))
        self.assertIn('none of default', self.run_it('viz', 'net.json', '--view', 'pretty', code=1))
        pathlib.Path(self.folder.name, 'bad.json').write_text('{"nodes": [')
        self.assertIn('bad.json: line 1', self.run_it('viz', 'bad.json', code=1))


class Daemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.proc = subprocess.Popen([os.environ.get('PARAMD_BIN', str(ROOT / 'build' / 'paramd')), '--listen', 'tcp://127.0.0.1:0',
                                     '--admin', '127.0.0.1:0', '--probe', '127.0.0.1:0'], stdout=subprocess.PIPE, text=True,
                                    stderr=subprocess.DEVNULL)
        cls.fields = dict(word.split('=', 1) for word in cls.proc.stdout.readline().split()[2:])

    @classmethod
    def tearDownClass(cls):
        cls.proc.send_signal(signal.SIGTERM)
        cls.proc.wait(20)
        cls.proc.stdout.close()

    def ask(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection(self.fields['admin'].split('//')[1], timeout=20)
        try:
            c.request(method, path, body, {name.replace('_', '-'): value for name, value in headers.items()})
            answer = c.getresponse()
            data = answer.read()
        finally:
            c.close()
        if 'json' in answer.headers.get('Content-Type', ''):
            data = json.loads(data)
        return answer.status, answer.headers, data

    def put(self, name, net=None):
        at = '/v1/networks/' + urllib.parse.quote(name, safe='')
        status, _, said = self.ask('PUT', at, (net or factorization()).tojson().encode())
        self.assertIn(status, (200, 201), said)
        return at

    def store(self):
        return paramd.kv.create('dist_async', url=self.fields['data'], num_workers=1, on_reinit='replace')

    def test_a_network_is_kept_listed_got_and_forgotten(self):
        name = 'mi red/ñandú & <x>'
        at = self.put(name)
        status, _, said = self.ask('GET', '/v1/networks')
        row = next(r for r in said['items'] if r['name'] == name)
        self.assertEqual((row['nodes'], row['edges'], row['parameters']), (11, 10, 2))
        status, _, file = self.ask('GET', at)
        self.assertEqual(len(file['nodes']), 11)
        self.assertEqual(self.ask('PUT', at, factorization().tojson().encode())[0], 200)
        self.assertEqual(self.ask('GET', at + '/graph')[0], 200)
        self.assertEqual(self.ask('DELETE', at)[0], 204)
        self.assertEqual(self.ask('GET', at)[0], 404)
        status, _, said = self.ask('DELETE', at)
        self.assertEqual((status, said['code']), (404, 'no-such-network'))

    def test_forms(self):
        at = self.put('forms')
        status, headers, svg = self.ask('GET', at + '/graph?shape=user=N;item=N')
        self.assertEqual(headers['Content-Type'], 'image/svg+xml')
        self.assertIn("default-src 'none'", headers['Content-Security-Policy'])
        self.assertEqual(len(boxes(svg)), 9)
        self.assertTrue(self.ask('GET', at + '/graph?format=dot')[2].startswith(b'digraph "forms"'))
        self.assertEqual(len(self.ask('GET', at + '/graph?format=json')[2]['edges']), 8)
        self.assertIn('4. `sum_ reducción`'.encode(), self.ask('GET', at + '/text')[2])
        self.assertIn(b'96,000', self.ask('GET', at + '/summary')[2])
        self.assertEqual(self.ask('GET', at + '/summary?format=json')[2]['total']['bytes'], 384000)
        self.assertIn(b'Total params: 96000\n', self.ask('GET', at + '/summary?view=mxnet')[2])
        self.assertNotIn(b'<style', self.ask('GET', at + '/graph?style=none')[2])
        if shutil.which('rsvg-convert'):
            self.assertEqual(self.ask('GET', at + '/graph?format=png')[2][:4], b'\x89PNG')

    def test_colours_follow_the_store_and_304_follows_the_bytes(self):
        at = self.put('live')
        with self.store() as kv:
            kv.init(['user_embed_weight', 'item_embed_weight'], [np.zeros((1000, 64), np.float32), np.zeros((500, 64), np.float32)])
            kv.push('item_embed_weight', np.ones((500, 64), np.float32))
            kv.wait()
            status, headers, svg = self.ask('GET', at + '/graph?color=version')
            colors = {g.get('data-name'): g.get('class') for g in boxes(svg)}
            self.assertIn('q6', colors['item_embed'])
            self.assertIn('data-key="user_embed_weight"', svg.decode())
            status, again, nothing = self.ask('GET', at + '/graph?color=version', If_None_Match=headers['ETag'])
            self.assertEqual((status, nothing), (304, b''))
            kv.push('user_embed_weight', np.ones((1000, 64), np.float32))
            kv.push('user_embed_weight', np.ones((1000, 64), np.float32))
            kv.wait()
            status, _, svg = self.ask('GET', at + '/graph?color=version', If_None_Match=headers['ETag'])
            colors = {g.get('data-name'): g.get('class') for g in boxes(svg)}
            self.assertIn('q6', colors['user_embed'])
            tree = self.ask('GET', '/v1/stores/default/graph?color=version')[2].decode()
            self.assertIn('data-key="item_embed_weight"', tree)
            done = subprocess.run([PARAMCTL, 'viz', '--url', self.fields['data'], '--text'], capture_output=True, text=True, timeout=20)
            self.assertIn('`item_embed_weight` 500x64', done.stdout)

    def parameters(self, at, color):
        nodes = self.ask('GET', f'{at}/graph?format=json&color={color}')[2]['nodes']
        return {p['name']: p for n in nodes for p in n.get('parameters', [])}

    def test_norms_ratio_and_staleness_are_those_of_the_store(self):
        at, rng = self.put('measured'), np.random.default_rng(3)
        w, g = ({'user_embed_weight': rng.normal(size=(1000, 64)).astype('float32'),
                 'item_embed_weight': rng.normal(size=(500, 64)).astype('float32') * scale} for scale in (10, 1000))
        with self.store() as kv:
            for name in w:
                kv.init(name, w[name])
            kv.set_optimizer('sgd', learning_rate=0.125)
            told = self.parameters(at, 'norm')
            for name in w:
                self.assertAlmostEqual(told[name]['norm'] / np.linalg.norm(w[name].astype('float64')), 1, delta=1e-6)
                self.assertNotIn('grad_norm', told[name])
            drawing = self.ask('GET', at + '/graph?color=grad_norm')[2].decode()
            self.assertIn('not known', drawing)
            for name in w:
                kv.pull(name)
                kv.push(name, g[name])
                kv.wait()
            told = self.parameters(at, 'grad_norm')
            for name in w:
                kv.push(name, g[name])
                kv.wait()
                old, new = w[name].astype('float64'), (w[name] - np.float32(0.125) * g[name]).astype('float64')
                self.assertAlmostEqual(told[name]['grad_norm'] / np.linalg.norm(g[name].astype('float64')), 1, delta=1e-6)
                self.assertAlmostEqual(told[name]['update_ratio'] / (np.linalg.norm(new - old) / np.linalg.norm(new)), 1, delta=1e-5)
                self.assertEqual(told[name]['staleness'], 1)
            self.assertEqual(self.parameters(at, 'staleness')['item_embed_weight']['staleness'], 2)
            for color in ('norm', 'grad_norm', 'update_ratio', 'staleness'):
                drawing = self.ask('GET', f'{at}/graph?color={color}')[2].decode()
                self.assertNotIn('not known', drawing, color)
                self.assertRegex(drawing, 'class="b[^"]* q[0-6]', color)
            tree = self.ask('GET', '/v1/stores/default/graph?format=json')[2]
            self.assertTrue(any('norm' in p for n in tree['nodes'] for p in n.get('parameters', [n])))
            done = subprocess.run([PARAMCTL, 'viz', '--url', self.fields['data'], '--format', 'json', '--color', 'norm'],
                                  capture_output=True, text=True, timeout=20)
            self.assertIn('"norm":', done.stdout)
            drawn = json.loads(viz.draw(factorization(), 'json', store=kv, color='norm'))
            drawn = {p['name']: p for n in drawn['nodes'] for p in n.get('parameters', [])}
            # of the newest version, or of the one before when its turn has not come again
            name = 'item_embed_weight'
            possible = [np.linalg.norm(w[name].astype('float64') - steps * 0.125 * g[name]) for steps in (1, 2)]
            self.assertLess(min(abs(drawn[name]['norm'] / norm - 1) for norm in possible), 1e-6)

    def test_nobody_who_does_not_look_at_norms_has_them_measured(self):
        at = self.put('plain')
        with self.store() as kv:
            kv.init('user_embed_weight', np.ones((1000, 64), np.float32))
            self.ask('GET', at + '/graph?color=version')
            kv.push('user_embed_weight', np.ones((1000, 64), np.float32))
            kv.wait()
            self.assertIsNone(self.ask('GET', '/v1/keys/user_embed_weight/stats')[2]['gradient'])

    def test_what_is_wrong_is_told(self):
        at = self.put('wrong')
        for path, status, word in ((at + '/graph?format=gif', 400, 'svg'), (at + '/graph?view=pretty', 400, 'blocks'),
                                   (at + '/graph?colour=op', 400, 'color'), (at + '/graph?store=nowhere', 404, 'nowhere'),
                                   (at + '/graph?shape=usr=3', 400, 'user'), ('/v1/networks/none/graph', 404, 'none'),
                                   (at + '/summary?format=xml', 400, 'text'), ('/v1/stores/nowhere/graph', 404, 'nowhere')):
            got, _, said = self.ask('GET', path)
            self.assertEqual(got, status, (path, said))
            self.assertIn(word, said['detail'], path)
        for body, word in ((b'', 'empty'), (b'{', 'line 1'), (b'{"nodes": [{}]}', 'node 0'), (b'\x08\x07', 'no graph'),
                           (b'\xff' * 100, 'byte 0')):
            status, _, said = self.ask('PUT', '/v1/networks/bad', body)
            self.assertIn(status, (400, 422), said)
            self.assertIn(word, said['detail'])
        status, _, said = self.ask('PUT', '/v1/networks/bad', b'{"nodes": [' + b' ' * (17 << 20))
        self.assertEqual(status, 413, said)

    def test_networks_are_bounded_in_number(self):
        small = sym.relu(sym.var('x')).tojson().encode()
        codes = [self.ask('PUT', f'/v1/networks/many{i}', small)[0] for i in range(70)]
        self.assertIn(429, codes)
        for i in range(70):
            self.ask('DELETE', f'/v1/networks/many{i}')

    def test_the_page_has_a_strict_policy_and_all_its_parts(self):
        status, headers, page = self.ask('GET', '/networks/x')
        self.assertEqual(status, 200)
        policy = headers['Content-Security-Policy']
        self.assertIn("default-src 'none'; script-src 'self'; style-src 'self'", policy)
        for part in re.findall(rb'(?:href|src)="(/[^"]*)"', page):
            self.assertEqual(self.ask('GET', part.decode())[0], 200, part)
        self.assertNotRegex(page.decode(), r'<script>|style=|onclick')

    def browse(self, path):
        """What a browser makes of a page."""
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={folder}',
                                   '--virtual-time-budget=5000', '--enable-logging=stderr', '--dump-dom',
                                   self.fields['admin'] + path], capture_output=True, text=True, timeout=90)

    @unittest.skipUnless(shutil.which('chromium'), "it needs chromium: package chromium")
    def test_a_browser_shows_a_key_and_links_to_the_networks(self):
        self.put('linked')
        with self.store() as kv:
            kv.init('seen <b>', np.array([3, 4, 0, np.nan], np.float32))
            done = self.browse('/#key=seen+%3Cb%3E')
        self.assertIn('<a href="/networks/linked#store=default">linked</a>', done.stdout)
        self.assertRegex(done.stdout, r'<b id="key">seen &lt;b&gt;</b>')
        self.assertRegex(done.stdout, r'<td>value</td><td class="n">1</td><td class="n">5</td>')
        self.assertIn('<td class="n bad">1</td>', done.stdout)
        self.assertIn('<td class="n">1</td><td class="n">0</td><td class="n">16 B</td>', done.stdout)  # version, updates
        self.assertRegex(done.stdout, r'<svg class="bars"[^>]*><rect')
        self.assertNotIn('Content Security Policy', done.stderr)
        self.assertNotIn('Uncaught', done.stderr)

    @unittest.skipUnless(shutil.which('chromium'), "it needs chromium: package chromium")
    def test_a_browser_shows_the_network(self):
        self.put('shown')
        done = self.browse('/networks/shown#color=size&find=reducci%C3%B3n')
        self.assertEqual(done.stdout.count('<g id="n'), 9, done.stderr[-2000:])
        self.assertIn('1 found', done.stdout)
        self.assertRegex(done.stdout, r'id="scale"><svg[^>]*graph colored[^>]*><g class="legend"')  # always in sight
        self.assertNotIn('Content Security Policy', done.stderr)
        self.assertNotIn('Uncaught', done.stderr)


class Example(unittest.TestCase):
    def test_the_matrix_factorization_learns(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(ROOT / 'api/python/examples/matrix_factorization.py'), '--out', folder + '/mf'],
                                  capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('Total params: 96,000', done.stdout)
            self.assertIn('data-key', pathlib.Path(folder, 'mf-trained.svg').read_text())

    def test_two_users_of_one_machine_get_folders_of_their_own(self):
        with tempfile.TemporaryDirectory() as shared:
            for _ in range(2):
                done = subprocess.run([sys.executable, str(ROOT / 'api/python/examples/matrix_factorization.py')],
                                      capture_output=True, text=True, timeout=300, env={**os.environ, 'TMPDIR': shared})
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(os.listdir(shared)), 2)


if __name__ == '__main__':
    counted.main()
