#!/usr/bin/env python3
"""compare.py MODEL ENCODE [THREADSxBATCH]... - encode beside onnxruntime, on the same weights

SPDX-License-Identifier: BSD-2-Clause

Needs numpy, onnx, onnxruntime and tokenizers. The graph has onnxruntime's own operators for BERT,
as its optimizer makes them; its int8 is quantize_dynamic(). Sentences are made of parts, in order
of length, so that onnxruntime, which pads a batch, pads little. Runs take turns, and of each the
fastest counts. RUNS and FORMATS in the environment say how many, and of which formats.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

WHO = ["The captain", "My neighbour", "A young doctor", "The committee", "An old fisherman",
       "The teacher", "Her brother", "The engine", "A small company", "The river"]
DID = ["repaired the broken bridge", "lost the key to the house", "sold apples at the market",
       "read a letter from the bank", "measured the temperature of the water",
       "forgot the name of the street", "built a boat out of oak", "won the game by one point",
       "paid for the concert tickets", "heard music behind the wall"]
WHEN = ["", "yesterday", "before the storm reached the coast", "after three weeks of rain",
        "while the children were asleep in the room above the kitchen",
        "because nobody else had been willing to do it, although everybody had promised to help"]


def sentences():
    """200 of them, of 7 to 60 tokens"""
    made = []
    for i in range(200):
        parts = [WHO[i % 10], DID[(i * 7 + i // 10) % 10], WHEN[i * 5 // 3 % 6]]
        if i % 3 == 2:
            parts += ["and", WHO[(i * 3 + 1) % 10].lower(), DID[(i + 4) % 10],
                      WHEN[(i + i // 6) % 6]]
        made.append(" ".join(p for p in parts if p) + ".")
    return sorted(made, key=lambda s: (len(s), s))


def tensors(path):
    """The tensors of a .safetensors file of F32"""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = numpy.fromfile(file, numpy.uint8)
    return {name: data[slice(*t["data_offsets"])].view("<f4").reshape(t["shape"])
            for name, t in header.items() if t.get("dtype") == "F32"}


def make_graph(w, heads, kind, path):
    """The encoder up to the last layer; fused: attention with its product by the weights; linear:
    linear layers alone, of the embeddings"""
    nodes, values, ends = [], [], []

    def put(name, data):
        values.append(numpy_helper.from_array(numpy.ascontiguousarray(data), name))
        return name

    def node(op, inputs, n=1, domain="com.microsoft", **attributes):
        name = f"{op}_{len(nodes)}"
        outputs = [f"{name}_{i}" for i in range(n)]
        nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return outputs

    def dense(x, *names):
        return (node("MatMul", [x, put(names[0] + ".w", numpy.concatenate(
            [w[n + ".weight"] for n in names]).T)], domain="")[0],
                put(names[0] + ".b", numpy.concatenate([w[n + ".bias"] for n in names])))

    def norm(x, skip, bias, name):
        return node("SkipLayerNormalization", [x, skip, put(name + ".weight", w[name + ".weight"]),
                                               put(name + ".bias", w[name + ".bias"]), bias],
                    epsilon=1e-12)[0]

    embeddings = [put(n, w[f"embeddings.{n}"]) for n in
                  ("word_embeddings.weight", "position_embeddings.weight",
                   "token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")]
    x = node("EmbedLayerNormalization", ["ids", "types", *embeddings], 2, epsilon=1e-12)[0]
    for layer in range(sum(".intermediate.dense.weight" in n for n in w)):
        at = f"encoder.layer.{layer}."
        names = [at + "attention.self." + n for n in ("query", "key", "value")]
        up = at + "intermediate.dense"
        if kind == "linear":
            for names in (names, [at + "attention.output.dense"]):
                ends += node("Add", dense(x, *names), domain="")
            ends += node("Add", dense(node("BiasGelu", dense(x, up))[0], at + "output.dense"),
                         domain="")
            continue
        if kind == "fused":
            a = node("Attention", [x, put(at + "w", numpy.concatenate(
                [w[n + ".weight"] for n in names]).T), put(at + "b", numpy.concatenate(
                    [w[n + ".bias"] for n in names])), "mask"], num_heads=heads)[0]
        else:
            qkv, bias = dense(x, *names)
            a = node("MultiHeadAttention", [*node("Split", [qkv, put(at + "s", numpy.array(
                [x_.shape[0] for x_ in (w[n + ".weight"] for n in names)]))], 3, "", axis=2),
                                            bias, "mask"], num_heads=heads)[0]
        x = norm(*dense(a, at + "attention.output.dense")[:1], x,
                 at + "attention.output.dense.b", at + "attention.output.LayerNorm")
        x = norm(*dense(node("BiasGelu", dense(x, up))[0], at + "output.dense")[:1], x, at + "output.dense.b",
                 at + "output.LayerNorm")
    graph = helper.make_graph(
        nodes, "encoder", [helper.make_tensor_value_info(n, TensorProto.INT32, ["b", "t"])
                           for n in ("ids", "types", "mask")],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["b", "t", None])
         for y in ends or [x]], values)
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]), path)


class Onnx:
    """A model of onnxruntime"""

    def __init__(self, path, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.bytes = os.path.getsize(path)
        self.session = onnxruntime.InferenceSession(path, options,
                                                    providers=["CPUExecutionProvider"])

    def encode(self, batches):
        """Vectors, seconds, seconds of CPU"""
        wall, cpu, vectors = time.perf_counter(), time.process_time(), []
        for ids, mask in batches:
            # Of more outputs one is fetched; all nodes run.
            y = self.session.run(self.session.get_outputs()[0].name.split(), {
                "ids": ids, "types": numpy.zeros_like(ids), "mask": mask})[0]
            y = (y * mask[:, :, None]).sum(1)
            vectors.append(y / numpy.linalg.norm(y, axis=1, keepdims=True))
        return (numpy.concatenate(vectors), time.perf_counter() - wall,
                time.process_time() - cpu)


def ranks(v):
    """Ranks of the similarities of all pairs"""
    pairs = (v @ v.T)[numpy.triu_indices(len(v), 1)]
    return pairs.argsort().argsort().astype(float)


def main():
    model, encode = sys.argv[1:3]
    runs = int(os.environ.get("RUNS", "5"))
    formats = os.environ.get("FORMATS", "f32 s8-row s8-g128 e8-4.5 e8-4.5-fast e8-4.25-best "
                             "e8-4.25 s4-g32 nvfp4 mxfp4").split()
    w = tensors(f"{model}/model.safetensors")
    with open(f"{model}/config.json", encoding="utf-8") as file:
        heads = json.load(file)["num_attention_heads"]
    tokenizer = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.no_padding()
    text = sentences()
    ids = [t.ids for t in tokenizer.encode_batch(text)]

    def batches(size):
        for i in range(0, len(ids), size):
            part = ids[i:i + size]
            most = max(map(len, part))
            yield (numpy.array([p + [0] * (most - len(p)) for p in part], numpy.int32),
                   numpy.array([[1] * len(p) + [0] * (most - len(p)) for p in part],
                               numpy.int32))

    with tempfile.TemporaryDirectory() as work:
        paths = {}
        for kind in ("plain", "fused", "linear"):
            name = f"{work}/{kind}"
            make_graph(w, heads, kind, name + ".onnx")
            quantize_dynamic(name + ".onnx", name + "8.onnx", weight_type=QuantType.QInt8,
                             extra_options={"DefaultTensorType": TensorProto.FLOAT})
            paths["onnxruntime f32", kind] = name + ".onnx"
            paths["onnxruntime int8", kind] = name + "8.onnx"
        with open(f"{work}/text", "w", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n")
        want = Onnx(paths["onnxruntime f32", "plain"], 1).encode(list(batches(1)))[0]
        rank = ranks(want)
        for case in sys.argv[3:] or ("1x1", "1x32", "2x1", "2x32"):
            threads, size = map(int, case.split("x"))
            data = list(batches(size))
            sessions = {(n, f): Onnx(p, threads) for (n, f), p in paths.items()}
            best = {}

            def keep(name, v, size, times):
                old = best.get(name, (v, size, [numpy.inf] * 4))
                best[name] = (old[0], old[1], [min(*t) for t in zip(old[2], times)])

            for _ in range(runs):
                for (name, kind), session in sessions.items():
                    v, *times = session.encode(data)
                    keep(name, v, session.bytes, [numpy.inf] * 2 + times if kind == "linear"
                         else times + [numpy.inf] * 2)
                for name in formats:
                    for rotate in ([], ["--rotate"])[:1 if name[:2] in ("f3", "s8") else 2]:
                        p = subprocess.run(
                            [encode, f"--model={model}", f"--format={name}", *rotate,
                             f"--threads={threads}", f"--batch={size}", "--repeat=3",
                             f"{work}/text"], check=True, capture_output=True,
                            env={**os.environ, "OMP_WAIT_POLICY": "passive"})
                        v = numpy.frombuffer(p.stdout[128:], "<f4").reshape(len(text), -1)
                        for line in p.stderr.decode().splitlines():
                            n = [float(x) for x in re.findall(r"[\d.]+", line)]
                            keep(" ".join([name, *rotate]), v, n[2], n[3:7])
            print(f"threads {threads}, batch {size}: sentences/s, CPU ms a sentence; linear "
                  "layers: ms, CPU ms a sentence; cosine to f32: mean, least; Spearman; MB")
            for name, (v, bytes_, times) in best.items():
                cosine = (v * want).sum(1)
                wall, cpu, linear, linear_cpu = (1e3 * t / len(text) for t in times)
                print(f"{name:22} {1e3 / wall:8.1f} {cpu:7.2f} {linear:7.2f} {linear_cpu:7.2f} "
                      f"{cosine.mean():.4f} {cosine.min():.4f} "
                      f"{numpy.corrcoef(rank, ranks(v))[0, 1]:.4f} {bytes_ / 1e6:6.1f}",
                      flush=True)


if __name__ == "__main__":
    main()
