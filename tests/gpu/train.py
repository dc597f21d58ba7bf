#!/usr/bin/env python3
"""Trains the same small network twice: in a daemon whose values lie on a GPU, and in this process on the CPU.

    train.py [--device cuda:0] [--steps 200]

The gradients are made of what was pulled, so a step that differs in one bit changes all that follow; at the end every bit
of every weight must be the same. Prints one line. Status 77: numpy is not there."""
import argparse
import json
import sys
import time
import urllib.request

try:
    import numpy as np
except ImportError:
    print("this Python has no numpy")
    sys.exit(77)
import paramd
import paramd.daemon

SHAPES = {"hidden.weight": (64, 96), "hidden.bias": (96,), "output.weight": (96, 10), "output.bias": (10,)}
UPDATERS = [{"type": "adam", "learning_rate": 0.01}, {"type": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            {"type": "lamb", "learning_rate": 0.01}]


def data():
    random = np.random.default_rng(1)
    x = random.standard_normal((256, 64)).astype("f4")
    return x, np.argmax(x @ random.standard_normal((64, 10)).astype("f4"), axis=1)


def gradients(w, x, y):
    """Loss and gradients of softmax(relu(x a + b) c + d)."""
    h = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0)
    z = h @ w["output.weight"] + w["output.bias"]
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = float(-np.log(p[np.arange(len(y)), y]).mean())
    p[np.arange(len(y)), y] -= 1
    p /= np.float32(len(y))
    back = (p @ w["output.weight"].T) * (h > 0)
    return loss, {"hidden.weight": x.T @ back, "hidden.bias": back.sum(axis=0), "output.weight": h.T @ p,
                  "output.bias": p.sum(axis=0)}


def train(kv, updater, steps):
    """First and last loss, and the weights."""
    random, (x, y), losses = np.random.default_rng(2), data(), []
    names = list(SHAPES)
    for name in names:
        kv.init(name, (random.standard_normal(SHAPES[name]) / 8).astype("f4"))
    kv.set_optimizer(updater)
    w = {name: kv.pull(name) for name in names}
    for _ in range(steps):
        loss, g = gradients(w, x, y)
        losses.append(loss)
        kv.push(names, [np.ascontiguousarray(g[name]) for name in names])
        for name in names:
            w[name] = kv.pull(name)
    return losses[0], losses[-1], w


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--steps", type=int, default=200)
    args = options.parse_args()
    with paramd.daemon.Daemon("--device", args.device) as daemon:
        with urllib.request.urlopen(daemon.admin + "/v1/info", timeout=10) as answer:
            info = json.load(answer)
        if info["device"] != args.device:
            sys.exit(f"the daemon has {info['device']}, not {args.device}")
        for updater in UPDATERS:
            began = time.monotonic()
            with paramd.kv.create("dist_sync", daemon.url, num_workers=1, store=updater["type"]) as kv:
                first, last, there = train(kv, updater, args.steps)
            seconds = time.monotonic() - began
            with paramd.kv.create("local") as kv:
                here = train(kv, updater, args.steps)[2]
            for name in SHAPES:
                if here[name].tobytes() != there[name].tobytes():
                    sys.exit(f"{updater['type']}: {name} differs from the CPU's after {args.steps} steps")
            if not last < first:
                sys.exit(f"{updater['type']}: the loss went from {first:.4f} to {last:.4f}")
            print(f"{updater['type']}: loss {first:.3f} to {last:.3f} in {args.steps} steps of {len(SHAPES)} keys, "
                  f"{seconds / args.steps * 1e3:.2f} ms each")
    print(f"{len(UPDATERS)} trainings on {info.get('card') or info['device']}, weights as on the CPU bit for bit")


main()
